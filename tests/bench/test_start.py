"""The start bench, on whatever backend this machine has."""

from __future__ import annotations

import pytest

from headstart.bench import start

pytestmark = pytest.mark.anyio


async def test_both_series_are_measured_and_every_sample_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_QUIET_S", 0.01)
    result = await start.run(quick=True)
    samples = list(result.samples)
    for series in ("back_to_back", "spaced"):
        told = result.summary[f"{series}_ms"]
        assert told["n"] == sum(sample["series"] == series for sample in samples)
        assert 0 < told["min"] <= told["p50"] <= told["p99"]
    assert all(sample["total_ms"] >= sample["create_ms"] for sample in samples)
