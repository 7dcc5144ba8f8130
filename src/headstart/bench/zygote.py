"""How long a real server takes from nothing to `tools/list`, started cold and forked.

Both go through the same backend and the same client, in turns, each in a sandbox of its
own. The clock runs from asking the backend for a sandbox until the list has been read. The
zygote itself is made before the clock starts; what it cost is in the samples. Which form a
server gets is chosen as the service chooses it, once, and remembered beside the installed
server; a server that starts cold has no forked figure, but a reason.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import anyio.to_thread

from headstart.backends.contract import Backend, Identity, Prepared, Template
from headstart.bench.isolation import open_best_backend
from headstart.bench.result import BenchResult
from headstart.bench.servers import InstalledServer, cache_dir, ensure_installed, load_specs
from headstart.clock import SystemClock
from headstart.config.model import MountSetting, ServerSettings, WarmupCall
from headstart.core.events import PrepareForm
from headstart.ids import RandomIds, ResourceId, SandboxId
from headstart.runtime.launch import HostFacts
from headstart.runtime.store import FormChoice
from headstart.runtime.templates import launch_spec
from headstart.runtime.zygote_trial import time_to_tools
from headstart.runtime.zygotes import CheckedForm, FormCheck, choose_form, restore_form

__all__ = ["run", "server_template"]

Sample = Mapping[str, Any]

COLD_ROUNDS, ZYGOTE_ROUNDS = 10, 20
QUICK_COLD_ROUNDS, QUICK_ZYGOTE_ROUNDS = 3, 7

_clock = SystemClock()
_ids = RandomIds()


async def run(
    *,
    quick: bool,
    backend: Backend | None = None,
    names: Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> BenchResult:
    """Measure the Python servers of `servers.toml` (quick: the light ones, fewer rounds).

    Raises:
        HeadstartError: A server could not be installed.
    """
    specs = {name: spec for name, spec in load_specs().items() if spec.kind == "pip"}
    chosen = names or [name for name, spec in specs.items() if spec.light or not quick]
    installed = await ensure_installed(chosen, progress=progress)
    rounds = (QUICK_COLD_ROUNDS, QUICK_ZYGOTE_ROUNDS) if quick else (COLD_ROUNDS, ZYGOTE_ROUNDS)
    samples: list[Sample] = []
    notes: list[str] = []
    async with _backend(backend, notes) as used:
        for name, server in installed.items():
            progress(name)
            samples += await _measure(server, used, rounds, notes)
    return BenchResult(summary=_summary(samples, installed), samples=samples, notes=tuple(notes))


@asynccontextmanager
async def _backend(given: Backend | None, notes: list[str]) -> AsyncGenerator[Backend]:
    if given is not None:
        yield given
        return
    async with open_best_backend(notes.append) as backend:
        yield backend


def server_template(server: InstalledServer) -> Template:
    """Return the template that the service would make of an installed server."""
    settings = ServerSettings(
        name=ResourceId(server.name),
        command=server.command,
        args=server.args,
        env=server.env,
        mounts=(MountSetting(path=server.data),),
    )
    return launch_spec(settings, HostFacts.here()).template


async def _measure(
    server: InstalledServer, backend: Backend, rounds: tuple[int, int], notes: list[str]
) -> list[Sample]:
    template = server_template(server)
    form = await _form(server, template, backend)
    cold = await backend.prepare(template)
    zygote: Prepared | None = None
    if form.form is PrepareForm.ZYGOTE:
        zygote = form.prepared or await backend.prepare(replace(template, preload=form.preload))
    else:
        notes.append(f"{server.name} starts cold: {form.reason}")
    try:
        return [
            {"server": server.name, "form": prepared.form.value, "ms": await _start_ms(backend, prepared)}
            for prepared in _turns(cold, zygote, rounds)
        ]
    finally:
        with anyio.CancelScope(shield=True):
            await cold.aclose()
            if zygote is not None:
                await zygote.aclose()


def _turns(cold: Prepared, zygote: Prepared | None, rounds: tuple[int, int]) -> list[Prepared]:
    """Mix the two, so that what else the machine does meets both."""
    cold_rounds, zygote_rounds = rounds
    if zygote is None:
        return [cold] * cold_rounds
    turns: list[Prepared] = []
    for number in range(cold_rounds):
        done = (zygote_rounds * number) // cold_rounds, (zygote_rounds * (number + 1)) // cold_rounds
        turns += [cold, *[zygote] * (done[1] - done[0])]
    return turns


async def _start_ms(backend: Backend, prepared: Prepared) -> float:
    began_s = _clock.monotonic_s()
    sandbox = await backend.start(prepared, Identity(sandbox=SandboxId(_ids.new("bench"))))
    try:
        return round((await time_to_tools(sandbox, clock=_clock) - began_s) * 1_000, 2)
    finally:
        await sandbox.aclose()


async def _form(server: InstalledServer, template: Template, backend: Backend) -> CheckedForm:
    """Choose the form, or remember what was chosen for the same files."""
    memory = cache_dir() / f"{server.name}.{backend.name}.form.json"
    remembered = await anyio.to_thread.run_sync(_remembered, memory)
    if remembered is not None:
        return remembered
    warmup = WarmupCall(tool=server.tool, arguments=server.arguments) if server.reads_only else None
    form = await choose_form(template, FormCheck(backend=backend, warmup=warmup))
    stored = form.stored()
    told = {"form": stored.form.value, "reason": stored.reason, "details": dict(stored.details)}
    await anyio.Path(memory).write_text(json.dumps(told))
    return form


def _remembered(memory: Path) -> CheckedForm | None:
    if not memory.exists():
        return None
    told = json.loads(memory.read_text())
    return restore_form(FormChoice(form=PrepareForm(told["form"]), reason=told["reason"], details=told["details"]))


def _summary(samples: Sequence[Sample], servers: Mapping[str, InstalledServer]) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {}
    for name in servers:
        cold, zygote = (
            [sample["ms"] for sample in samples if sample["server"] == name and sample["form"] == form.value]
            for form in (PrepareForm.COLD, PrepareForm.ZYGOTE)
        )
        found[name] = {
            "cold_ms_p50": round(median(cold), 1),
            "zygote_ms_p50": round(median(zygote), 1) if zygote else None,
            "n": min(len(cold), len(zygote)) if zygote else len(cold),
        }
    speedups = [one["cold_ms_p50"] / one["zygote_ms_p50"] for one in found.values() if one["zygote_ms_p50"]]
    light = [one["zygote_ms_p50"] for name, one in found.items() if servers[name].light and one["zygote_ms_p50"]]
    return {
        "servers": found,
        "speedup_median": round(median(speedups), 1) if speedups else None,
        "light_zygote_ms_p50": round(median(light), 1) if light else None,
    }
