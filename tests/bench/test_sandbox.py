"""The sandbox bench, on whatever backend this machine has."""

from __future__ import annotations

import pytest

from headstart.bench import sandbox

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
    assert told["checkpoint_ms"] is None
