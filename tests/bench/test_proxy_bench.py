import pytest

from headstart.bench.proxy import Plan, measure


@pytest.mark.anyio
async def test_a_tiny_run_fills_the_summary_from_samples_of_all_three_ways() -> None:
    plan = Plan(single_rounds=3, light_seconds=0.1, light_rounds=1, full_seconds=0.1, bursts=1)
    result = await measure(plan)
    assert list(result.summary) == [
        "ttft_added_ms_p50",
        "chunk_added_ms_p50",
        "streams",
        "chunks_per_s_each",
        "behind_ms_p99",
        "burst100_ttft_added_ms_p50",
    ]
    samples = list(result.samples)
    assert {(sample["part"], sample["way"]) for sample in samples} == {
        *((part, way) for part in ("warm-up", "single", "light", "burst") for way in ("direct", "proxied", "relayed")),
        ("full", "direct"),
        ("full", "proxied"),
    }
    assert sum(sample["part"] == "full" for sample in samples) == 200
    assert all(len(sample["transit_ms"]) == 10 for sample in samples if sample["part"] == "full")
    assert all(sample["ttft_ms"] > 0 for sample in samples)
