"""The sandbox bench, on whatever backend this machine has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import headstart
from headstart.bench import bases, kernels, sandbox, states
from headstart.bench.isolation import best_backend_name
from headstart.sandbox.templates import TemplateStore

pytestmark = pytest.mark.anyio


async def test_what_is_measured_comes_from_samples_and_what_is_not_is_null(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sandbox, "_QUIET_S", 0.01)
    monkeypatch.setattr(kernels, "_QUIET_S", 0.01)
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\ntrue\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    result = await sandbox.run(quick=True)
    samples, told = list(result.samples), result.summary
    for key, series in (
        ("create_to_first_command_ms", "create"),
        ("create_spaced_ms", "spaced"),
        ("run_true_ms", "true"),
        ("docker_run_ms", "docker"),
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
    assert told["docker_run_ms"]["n"] == sum(sample["series"] == "create_beside_docker" for sample in samples) == 10
    assert told["docker_run_vs_create"] > 0
    if told["backend"] == "local":
        for held in kernels.HELD:
            of_kind = [sample for sample in samples if sample.get("held") == held]
            for series, measured in told["with_kernel_ms"][held].items():
                assert measured["n"] == sum(sample["series"] == f"{series}_with_kernel" for sample in of_kind) == 10
                assert 0 < measured["p50"] <= measured["p99"]
    assert told["paused500_mb"] is told["by_base_mb"] is told["fork100_shared_share"] is None, (
        "too long for a quick look"
    )


async def test_states_are_kept_in_turns_on_bases_of_each_size_and_their_templates_are_removed(tmp_path: Path) -> None:
    if await best_backend_name(print) != "local":
        pytest.skip("no other backend has layers")
    samples = await bases.by_base(tmp_path, count=3, tell=pytest.fail, sizes_mb=(1, 5))
    kept = [sample["base_mb"] for sample in samples if sample["series"] == "checkpoint_on_base"]
    assert kept == [1, 5] * 3
    told = sandbox._base_summary(samples)  # pyright: ignore[reportPrivateUsage]
    assert told is not None
    assert list(told) == ["1", "5"]
    for of_size in told.values():
        assert {series: of["n"] for series, of in of_size.items()} == {
            "checkpoint_ms": 3,
            "rollback_ms": 3,
            "fork_ms": 3,
        }
    assert TemplateStore(tmp_path / "templates").names() == []
    assert list((tmp_path / "templates" / "layers").iterdir()) == []


async def test_a_base_that_there_is_no_room_for_is_left_out_and_told(tmp_path: Path) -> None:
    if await best_backend_name(print) != "local":
        pytest.skip("no other backend has layers")
    told = list[str]()
    assert await bases.by_base(tmp_path, count=3, tell=told.append, sizes_mb=(1_000_000_000,)) == []
    assert [line.partition(", because")[0] for line in told] == ["by_base_mb: nothing of 1000000000 MB"]


async def test_paused_sandboxes_are_weighed_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(states, "PAUSED", 20)
    monkeypatch.setattr(states, "_SETTLE_S", 0.1)
    async with headstart.Sandboxes.open(backend=await best_backend_name(print), state_dir=tmp_path) as boxes:
        weighed = await states.paused(boxes)
    assert weighed["n"] == 20
    if os.geteuid() == 0:  # an ordinary user may not look into what is hidden from its sandboxes
        assert 0.1 * 20 < weighed["pss_mb"] < 20 * 20


async def test_branches_of_a_kernel_share_its_memory() -> None:
    if await best_backend_name(print) != "local":
        pytest.skip("no other backend has layers")
    async with headstart.Sandboxes.open() as boxes:
        if not await kernels.are_kept(boxes):
            pytest.skip("nobody may trace processes here")
        told = await kernels.share_of_forks(boxes, count=3)
    assert told["n"] == 3
    assert told["rss_mb"] > 3 * 200
    assert 0.9 < told["share"] < 1
