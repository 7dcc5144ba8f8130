"""What a bench hands over: one summary, and every sample that it came from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

__all__ = ["BenchResult", "percentile", "save_run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """The outcome of one bench.

    Attributes:
        summary: What `--json` prints.
        samples: One mapping per measured thing, nothing averaged away.
        notes: One line each: what limited the run, for people.
    """

    summary: Mapping[str, Any]
    samples: Iterable[Mapping[str, Any]]
    notes: tuple[str, ...] = ()


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile from 1 to 99 of two values or more, never outside of what was measured."""
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def save_run(result: BenchResult, folder: Path) -> Path:
    """Write `summary.json` and `samples.jsonl` into a folder, beside what the run itself has put there.

    Raises:
        FileExistsError: Another run's are there already; runs are never overwritten.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "samples.jsonl").open("x", encoding="utf-8") as file:
        for sample in result.samples:
            file.write(json.dumps(sample, ensure_ascii=False) + "\n")
    summary = {**result.summary, "notes": list(result.notes)}
    with (folder / "summary.json").open("x", encoding="utf-8") as file:
        file.write(json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    return folder
