"""The demo's material: a repository, a shop's database, exports, pages, contracts.

Made anew for each run, always the same, with what the machine has: git, SQLite, and for
PDFs the library that the PDF server brings with it.
"""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
from collections.abc import Sequence
from pathlib import Path

__all__ = ["make_data"]

_PDF_SCRIPT = """
import sys, pymupdf
path, *pages = sys.argv[1:]
document = pymupdf.open()
for text in pages:
    document.new_page().insert_textbox((60, 60, 540, 780), text, fontsize=11)
document.save(path)
"""
_GIT_IDENTITY = {
    "GIT_AUTHOR_NAME": "Demo",
    "GIT_AUTHOR_EMAIL": "demo@example.test",
    "GIT_COMMITTER_NAME": "Demo",
    "GIT_COMMITTER_EMAIL": "demo@example.test",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
}


def make_data(folder: Path, *, pdf_python: Path) -> None:
    """Fill a folder (which must not exist) with the demo's material.

    Args:
        folder: Where to put it.
        pdf_python: An interpreter that has `pymupdf`.
    """
    folder.mkdir(parents=True)
    _make_repository(folder / "repo")
    _make_database(folder / "shop.db")
    _make_prices(folder / "prices.csv")
    _make_pages(folder)
    for name, pages in _CONTRACTS.items():
        _make_pdf(folder / name, pages, python=pdf_python)


def _make_repository(repo: Path) -> None:
    repo.mkdir()
    environment = {**os.environ, **_GIT_IDENTITY}

    def git(*arguments: str, day: int = 1) -> None:
        dated = {
            **environment,
            "GIT_AUTHOR_DATE": f"2026-05-{day:02}T10:00:00Z",
            "GIT_COMMITTER_DATE": f"2026-05-{day:02}T10:00:00Z",
        }
        subprocess.run(["git", *arguments], cwd=repo, env=dated, check=True, stdout=subprocess.DEVNULL)

    git("init", "--initial-branch=main")
    for day, (message, files) in enumerate(_COMMITS, start=1):
        for name, text in files.items():
            (repo / name).write_text(text, encoding="utf-8")
        git("add", ".", day=day)
        git("commit", "--message", message, day=day)


def _make_database(path: Path) -> None:
    dice = random.Random(7)  # noqa: S311 sample data
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE products (name TEXT, cost REAL, stock INTEGER)")
        db.execute("CREATE TABLE orders (customer TEXT, region TEXT, product TEXT, total REAL, day TEXT)")
        products = [f"{kind} {size}" for kind in ("Lamp", "Chair", "Desk", "Shelf") for size in ("S", "M", "L")]
        db.executemany(
            "INSERT INTO products VALUES (?, ?, ?)",
            [(p, round(dice.uniform(9, 200), 2), dice.randrange(80)) for p in products],
        )
        db.executemany(
            "INSERT INTO orders VALUES (?, ?, ?, ?, ?)",
            [
                (
                    f"customer {i % 40}",
                    dice.choice(("North", "South", "West")),
                    dice.choice(products),
                    round(dice.uniform(10, 900), 2),
                    f"2026-0{1 + i % 6}-{1 + i % 28:02}",
                )
                for i in range(600)
            ],
        )
    db.close()


def _make_prices(path: Path) -> None:
    dice = random.Random(11)  # noqa: S311 sample data
    rows = ["month,price,volume"]
    for i in range(2_000):
        price = dice.uniform(8, 12)
        rows.append(f"{1 + i % 12},{price:.2f},{int(2_000 - 120 * price + dice.uniform(-90, 90))}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def _make_pages(folder: Path) -> None:
    for name, title, paragraphs in _PAGES:
        body = "".join(f"<h2>{head}</h2><p>{text}</p>" for head, text in paragraphs)
        (folder / name).write_text(
            f"<html><head><title>{title}</title></head><body><h1>{title}</h1>{body}</body></html>", encoding="utf-8"
        )


def _make_pdf(path: Path, pages: Sequence[str], *, python: Path) -> None:
    subprocess.run([str(python), "-c", _PDF_SCRIPT, str(path), *pages], check=True, stdout=subprocess.DEVNULL)


_COMMITS: tuple[tuple[str, dict[str, str]], ...] = (
    (
        "Start",
        {
            "invoice.py": "def total(lines):\n    return round(sum(lines), 2)\n",
            "CHANGES.md": "# 1.2\n- first invoices\n",
        },
    ),
    ("Add customers", {"customers.py": "def greet(name):\n    return f'Dear {name}'\n"}),
    (
        "Round every line, not the sum",
        {"invoice.py": "def total(lines):\n    return sum(round(line, 2) for line in lines)\n"},
    ),
    (
        "Export tables as CSV",
        {
            "export.py": "import csv\n\n\ndef export(rows, file):\n    csv.writer(file).writerows(rows)\n",
            "CHANGES.md": "# 1.3\n- rounding\n- CSV export\n\n# 1.2\n- first invoices\n",
        },
    ),
)
_PAGES = (
    ("handbook.html", "Onboarding handbook", [("First week", "Meet your buddy and get your keys."), ("Tools", "Laptop, chat and calendar."), ("Shipping", "Ship something small on day three.")]),
    ("survey.html", "Feedback", [("Praise", "Friendly people, good prices."), ("Delivery", "It takes too long. Fourteen of thirty say so."), ("Search", "The search box finds nothing. Nine of thirty say so.")]),
    ("team.html", "The team", [("People", "Four engineers, two designers."), ("Office", "Second floor.")]),
)  # fmt: skip
_CONTRACTS = {
    "agreement.pdf": ["SUPPLIER AGREEMENT\n\n1. Term. 24 months; renewal by written notice.\n2. Price. List price less 12 percent.", "3. Liability. Capped at the fees of one year.\n4. Law. The courts of Berlin."],
    "tender.pdf": ["CALL FOR TENDER\n\nWe need 40 desks and 40 chairs by October.", "Requirements: price per piece, delivery date, warranty of five years."],
    "lease.pdf": ["LEASE\n\nRepairs are the landlord's, cosmetic work is the tenant's."],
}  # fmt: skip
