from headstart.bench.routing import run, thousand_tools


def test_the_bench_tells_its_figures_and_keeps_every_sample() -> None:
    result = run(quick=True)
    assert result.summary["tools"] == 1_000
    assert 80 <= result.summary["servers"] <= 150
    assert result.summary["keyword_us_per_delta_p50"] > 0
    assert result.summary["prefetch_us_per_step_p50"] > 0
    kinds = [sample["kind"] for sample in result.samples]
    assert {kind: kinds.count(kind) > 0 for kind in ("delta", "step", "quality")} == dict.fromkeys(
        ("delta", "step", "quality"), True
    )


def test_quality_is_told_with_both_numbers_of_every_rate() -> None:
    for row in run(quick=True).summary["keyword_quality"]:
        assert row["recall"] == round(row["right"] / row["wanted"], 3)
        assert row["precision"] == (round(row["right"] / row["named"], 3) if row["named"] else None)


def test_the_made_up_servers_are_the_same_every_time() -> None:
    assert thousand_tools() == thousand_tools()
