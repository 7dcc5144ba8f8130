"""The sandbox bench, on whatever backend this machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

import headstart
from headstart.bench import sandbox, states
from headstart.bench.isolation import best_backend_name

pytestmark = pytest.mark.anyio


async def test_what_is_measured_comes_from_samples_and_what_is_not_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_QUIET_S", 0.01)
    result = await sandbox.run(quick=True)
    samples, told = list(result.samples), result.summary
    for key, series in (
        ("create_to_first_command_ms", "create"),
        ("create_spaced_ms", "spaced"),
        ("run_true_ms", "true"),
    ):
        assert told[key]["n"] == sum(sample["series"] == series for sample in samples)
        assert 0 < told[key]["p50"] <= told[key]["p99"]
    assert told["burst50_ms"]["lost"] == 0
    assert told["burst50_ms"]["max"] >= told["create_to_first_command_ms"]["p50"]
    (stream,) = [sample for sample in samples if sample["series"] == "stream"]
    assert stream["mb"] == 200
    assert told["stream_mb_per_s"] == round(stream["mb_per_s"])
    for series in ("checkpoint", "rollback", "fork"):
        if told["backend"] != "local":
            assert told[f"{series}_ms"] is None
            continue
        assert told[f"{series}_ms"]["n"] == sum(sample["series"] == series for sample in samples) == 15
        assert 0 < told[f"{series}_ms"]["p50"] <= told[f"{series}_ms"]["p99"]
    assert {sample["capture"] for sample in samples if sample["series"] == "checkpoint"} <= {"sealed"}
    assert told["paused500_mb"] is None, "too long for a quick look"


async def test_paused_sandboxes_are_weighed_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(states, "PAUSED", 20)
    monkeypatch.setattr(states, "_SETTLE_S", 0.1)
    async with headstart.Sandboxes.open(backend=await best_backend_name(print), state_dir=tmp_path) as boxes:
        weighed = await states.paused(boxes)
    assert weighed["n"] == 20
    assert 0.1 * 20 < weighed["pss_mb"] < 20 * 20
