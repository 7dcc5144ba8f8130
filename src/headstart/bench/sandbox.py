"""What a sandbox costs its user: creating one, running a command in it, taking a lot of output, keeping states of it.

Through the library, as a user has it. What is not measured is null.
"""

from __future__ import annotations

import resource
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import anyio

from headstart import Sandbox, Sandboxes
from headstart.bench import kernels
from headstart.bench.bases import by_base
from headstart.bench.docker import beside_docker
from headstart.bench.isolation import best_backend_name
from headstart.bench.result import BenchResult, percentile
from headstart.bench.scratch import scratch_dir
from headstart.bench.states import checkpoints, paused
from headstart.errors import BackendError

__all__ = ["run"]

_QUIET_S = 1.0
_BURST = 50
_TRUE = ("true",)
_STATES: Final = ("checkpoint", "rollback", "fork")


async def run(*, quick: bool) -> BenchResult:
    """Measure on the best backend of this machine; if that does not isolate, the notes say so."""
    notes: list[str] = []
    name = await best_backend_name(notes.append)
    samples: list[dict[str, Any]] = []
    async with Sandboxes.open(backend=name, state_dir=scratch_dir()) as boxes:
        for _ in range(5):
            await _create(boxes)  # warm up
        for series, count, pause_s in (
            ("create", 100 if quick else 1_000, 0.0),
            ("spaced", 15 if quick else 100, _QUIET_S),
        ):
            for _ in range(count):
                await anyio.sleep(pause_s)
                samples.append({"series": series, "ms": await _create(boxes)})
        samples += await beside_docker(partial(_create, boxes), count=10 if quick else 50, tell=notes.append)
        samples += await _burst(boxes)
        async with boxes.create() as box:
            for _ in range(200 if quick else 2_000):
                began = perf_counter()
                await box.run(_TRUE)
                samples.append({"series": "true", "ms": (perf_counter() - began) * 1e3})
            stream = await _stream(box, megabytes=200 if quick else 1_000)
            samples.append(stream)
        forks: dict[str, Any] | None = None
        if name == "local":  # no other has layers
            samples += await checkpoints(boxes, count=15 if quick else 100)
            if await kernels.are_kept(boxes):
                samples += await kernels.with_kernel(boxes, count=10 if quick else 100)
                forks = None if quick else await kernels.share_of_forks(boxes)
            else:
                notes.append("no Python kernel can be kept here: nobody may trace processes")
        standing = None if quick else await paused(boxes)
    if name == "local" and not quick:
        samples += await by_base(scratch_dir(), count=50, tell=notes.append)
    if standing is not None:
        samples.append(standing)
        notes.append(
            f"paused500_mb: fall of MemAvailable, kernel included; user memory {standing['pss_mb']:.0f} MB (PSS)"
        )
    if forks is not None:
        samples.append(forks)
    summary = {
        "create_to_first_command_ms": _percentiles(samples, "create"),
        "create_spaced_ms": _percentiles(samples, "spaced"),
        **_docker_summary(samples),
        "burst50_ms": _burst_summary(samples),
        "run_true_ms": _percentiles(samples, "true"),
        "stream_mb_per_s": round(stream["mb_per_s"]),
        "stream_memory_grown_mb": round(stream["memory_grown_mb"], 1),
        **{f"{series}_ms": _percentiles(samples, series) if name == "local" else None for series in _STATES},
        "by_base_mb": _base_summary(samples),
        "paused500_mb": standing and round(standing["mb"]),
        "with_kernel_ms": _kernel_summary(samples),
        "fork100_shared_share": forks and round(forks["share"], 3),
        "backend": name,
    }
    return BenchResult(summary=summary, samples=samples, notes=tuple(notes))


async def _create(boxes: Sandboxes) -> float:
    """Create a sandbox and run a command in it; return the milliseconds until that has ended."""
    began = perf_counter()
    async with boxes.create() as box:
        done = await box.run(_TRUE)
        took = (perf_counter() - began) * 1e3
        if not done.ok:
            raise BackendError(f"`true` ended with {done.status} in {box.id}")
        return took


async def _burst(boxes: Sandboxes) -> list[dict[str, Any]]:
    """Create many at once, which all live until the last has run its command."""
    samples: list[dict[str, Any]] = []
    all_have_run = anyio.Event()
    began = perf_counter()

    async def one() -> None:
        async with boxes.create() as box:
            done = await box.run(_TRUE)
            samples.append({"series": "burst", "ms": (perf_counter() - began) * 1e3, "ok": done.ok})
            if len(samples) == _BURST:
                all_have_run.set()
            await all_have_run.wait()

    async with anyio.create_task_group() as tasks:
        for _ in range(_BURST):
            tasks.start_soon(one)
    return samples


async def _stream(box: Sandbox, *, megabytes: int) -> dict[str, Any]:
    """Take a lot of output as it comes; the memory of this process is sampled at each 10 MB."""
    taken, next_look, most_bytes = 0, 0, 0
    before_bytes = _resident_bytes()

    async def on_output(_: str, chunk: bytes) -> None:
        nonlocal taken, next_look, most_bytes
        taken += len(chunk)
        if taken >= next_look:
            next_look += 10_000_000
            most_bytes = max(most_bytes, _resident_bytes())

    began = perf_counter()
    await box.run(f"head -c {megabytes}000000 /dev/zero", on_output=on_output)
    took_s = perf_counter() - began
    grown_mb = max(0, most_bytes - before_bytes) / 1e6
    return {"series": "stream", "mb": taken / 1e6, "mb_per_s": taken / 1e6 / took_s, "memory_grown_mb": grown_mb}


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _docker_summary(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Tell what `docker run` takes, and how many times what a sandbox takes that is, as they took turns."""
    if not any(sample["series"] == "docker" for sample in samples):
        return {"docker_run_ms": None, "docker_run_vs_create": None}
    docker, create = (_percentiles(samples, series) for series in ("docker", "create_beside_docker"))
    return {"docker_run_ms": docker, "docker_run_vs_create": round(docker["p50"] / create["p50"], 1)}


def _base_summary(samples: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Tell what keeping states takes for each size of what the sandboxes began with; None where no size was tried."""
    sizes = dict.fromkeys(sample["base_mb"] for sample in samples if "base_mb" in sample)
    told = {str(size): [sample for sample in samples if sample.get("base_mb") == size] for size in sizes}
    return {
        size: {f"{series}_ms": _percentiles(of_size, f"{series}_on_base") for series in _STATES}
        for size, of_size in told.items()
    } or None


def _kernel_summary(samples: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Tell what keeping states takes with a kernel, for each kind of memory that it holds."""
    told = {held: [sample for sample in samples if sample.get("held") == held] for held in kernels.HELD}
    return {
        held: {series: _percentiles(of_kind, f"{series}_with_kernel") for series in kernels.SERIES}
        for held, of_kind in told.items()
        if of_kind
    } or None


def _percentiles(samples: list[dict[str, Any]], series: str) -> dict[str, float]:
    values = [sample["ms"] for sample in samples if sample["series"] == series]
    return {"p50": round(percentile(values, 50), 2), "p99": round(percentile(values, 99), 2), "n": len(values)}


def _burst_summary(samples: list[dict[str, Any]]) -> dict[str, float]:
    burst = [sample for sample in samples if sample["series"] == "burst"]
    return {
        "max": round(max(sample["ms"] for sample in burst), 1),
        "lost": _BURST - sum(1 for sample in burst if sample["ok"]),
    }
