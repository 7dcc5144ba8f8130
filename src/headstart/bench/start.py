"""How long a sandbox takes from being asked for to the end of its first command.

Twice: back to back, and after a second of quiet, because the kernel forgets: attaching to
a control group takes 0.2 ms in a busy loop and 7 ms after 100 ms without one. A bench that
only loops would miss what a user meets. In between, `true` is started on the bare machine
by `vfork` and exec, so that the machine's own speed (and whoever else is using it) shows.
"""

from __future__ import annotations

import os
import subprocess
from time import perf_counter_ns
from typing import Any

import anyio

from headstart.backends.contract import Backend, Command, Identity, Prepared, Template
from headstart.bench.isolation import open_best_backend
from headstart.bench.result import BenchResult, percentile
from headstart.ids import SandboxId

__all__ = ["run"]

_TRUE = Command(argv=("true",), env={"PATH": "/usr/local/bin:/usr/bin:/bin"})
_TEMPLATE = Template(name="bench", command=_TRUE)
_QUIET_S = 1.0


async def run(*, quick: bool) -> BenchResult:
    """Measure the local backend, or, where there are no namespaces, the process backend (and say so)."""
    back_to_back, spaced = (100, 15) if quick else (1_000, 100)
    notes: list[str] = []
    async with open_best_backend(notes.append) as backend:
        notes.extend(backend.capabilities.weaker)
        prepared = await backend.prepare(_TEMPLATE)
        await _measure(backend, prepared, "warm-up", count=5, pause_s=0.0)
        samples = await _measure(backend, prepared, "back_to_back", count=back_to_back, pause_s=0.0)
        samples += await _measure(backend, prepared, "spaced", count=spaced, pause_s=_QUIET_S)
        await prepared.aclose()
    summary = {
        "back_to_back_ms": _percentiles(samples, "back_to_back", "total_ms"),
        "spaced_ms": _percentiles(samples, "spaced", "total_ms"),
        "bare_true_ms": _percentiles(samples, "spaced", "bare_true_ms"),
        "backend": backend.name,
    }
    load = os.getloadavg()[0]
    return BenchResult(summary=summary, samples=samples, notes=(*notes, f"load average at the end: {load:.1f}"))


async def _measure(
    backend: Backend, prepared: Prepared, series: str, *, count: int, pause_s: float
) -> list[dict[str, Any]]:
    samples: list[dict[str, Any]] = []
    for number in range(count):
        await anyio.sleep(pause_s)
        began = perf_counter_ns()
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId(f"{series}-{number}")))
        started = perf_counter_ns()
        await sandbox.run(_TRUE)
        ended = perf_counter_ns()
        await sandbox.aclose()
        samples.append(
            {
                "series": series,
                "total_ms": (ended - began) / 1e6,
                "create_ms": (started - began) / 1e6,
                "command_ms": (ended - started) / 1e6,
                "bare_true_ms": _bare_true_ms(),
            }
        )
    return samples


def _bare_true_ms() -> float:
    began = perf_counter_ns()
    subprocess.run(_TRUE.argv, check=True)
    return (perf_counter_ns() - began) / 1e6


def _percentiles(samples: list[dict[str, Any]], series: str, field: str) -> dict[str, float]:
    values = [sample[field] for sample in samples if sample["series"] == series]
    return {
        "p50": round(percentile(values, 50), 2),
        "p99": round(percentile(values, 99), 2),
        "min": round(min(values), 2),
        "n": len(values),
    }
