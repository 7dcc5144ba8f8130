"""What a bench leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headstart.bench.result import BenchResult, percentile, save_run

RESULT = BenchResult(summary={"n": 1}, samples=[{"ms": 3}, {"ms": 4}], notes=("a note",))


def test_a_run_is_saved_beside_what_it_has_put_into_its_folder_itself(tmp_path: Path) -> None:
    (tmp_path / "run" / "work").mkdir(parents=True)
    save_run(RESULT, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == {"n": 1, "notes": ["a note"]}
    samples = (tmp_path / "run" / "samples.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in samples] == [{"ms": 3}, {"ms": 4}]


@pytest.mark.parametrize("file", ["summary.json", "samples.jsonl"])
def test_a_run_that_is_there_is_never_overwritten(file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text("another run's")
    with pytest.raises(FileExistsError):
        save_run(RESULT, tmp_path)
    assert (tmp_path / file).read_text() == "another run's"


def test_a_percentile_is_never_outside_of_what_was_measured() -> None:
    assert percentile([1.0, 2.0], 99) <= 2.0
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0
