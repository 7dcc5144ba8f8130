"""The sample files that bench servers are asked about; small, and the same on every machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["make_samples"]

_SALES = "region,amount\n" + "".join(f"{'north' if n % 3 else 'south'},{n * 7 % 101}\n" for n in range(300))
_HTML = "<html><head><title>Sample</title></head><body><h1>Sample</h1><p>Some <b>words</b>.</p></body></html>\n"
_NOTES = "# Notes\n\nThe first line.\nThe second line.\n"
_TREE = {"README.md": _NOTES, "src/app.py": "def answer() -> int:\n    return 42\n", "src/words.txt": "one\ntwo\n"}


def make_samples(folder: Path) -> None:
    """Write the samples into `folder` unless they are all there."""
    if (folder / "complete").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sales.csv").write_text(_SALES)
    (folder / "page.html").write_text(_HTML)
    (folder / "notes.md").write_text(_NOTES)
    (folder / "page.pdf").write_bytes(_one_page_pdf("A sample page with a few words."))
    _make_repository(folder / "repository")
    (folder / "complete").touch()


def _make_repository(folder: Path) -> None:
    for name, text in _TREE.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    identity = ("-c", "user.name=Sample", "-c", "user.email=sample@localhost", "-c", "commit.gpgsign=false")
    for command in (
        ("init", "-q"),
        ("add", "-A"),
        (*identity, "commit", "-q", "--allow-empty", "-m", "A first commit"),
    ):
        subprocess.run(("git", "-C", str(folder), *command), check=True, timeout=60)


def _one_page_pdf(text: str) -> bytes:
    drawing = f"BT /F1 18 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = (
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(drawing), drawing),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    )
    out, offsets = bytearray(b"%PDF-1.4\n"), list[int]()
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return bytes(out) + b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table)
