"""`headstart sandbox create`, `list`, `show`, `pause`, `hibernate`, `resume`, `kill`, `events`: those that live in the service."""

from __future__ import annotations

import json as json_text
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.cli.plain import plain
from headstart.cli.sandbox.options import (
    CpuOption,
    DiskOption,
    EnvOption,
    JsonOption,
    MemoryOption,
    MountOption,
    NetworkOption,
    PidsOption,
    QuietOption,
    SandboxArgument,
    TemplateOption,
    as_json,
    done,
    made,
    sandbox_options,
    with_service,
)
from headstart.cli.settings import StateOption
from headstart.cli.terminal import print_json, shown, table
from headstart.cli.terminal import show as show_parts
from headstart.ids import IdParts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from pathlib import Path

    from rich.table import Table

    from headstart.sandbox import HostedInfo, HostedSandbox, HostedSandboxes

__all__ = ["create", "events", "hibernate", "kill", "list_", "pause", "resume", "show"]


def create(  # noqa: PLR0913 (a command's options)
    *,
    name: Annotated[str | None, typer.Option(help="What to call it, beside its id.")] = None,
    template: TemplateOption = "host",
    mounts: MountOption = None,
    env: EnvOption = None,
    network: NetworkOption = "none",
    memory_mb: MemoryOption = 2_000,
    cpu_cores: CpuOption = None,
    disk_mb: DiskOption = 1_000,
    pids: PidsOption = 512,
    ends_after_idle_s: Annotated[
        float | None, typer.Option("--idle", metavar="S", help="End it when nobody has used it for so long.")
    ] = None,
    hibernates_after_idle_s: Annotated[
        float | None,
        typer.Option("--hibernate-idle", metavar="S", help="Hibernate it when nobody has used it for so long."),
    ] = None,
    quiet: QuietOption = False,
    json: JsonOption = False,
    state_dir: StateOption = None,
) -> None:
    """Create a sandbox; it lives in the service until it is killed."""
    options = sandbox_options(
        template=template,
        mounts=mounts,
        env=env,
        network=network,
        memory_mb=memory_mb,
        cpu_cores=cpu_cores,
        disk_mb=disk_mb,
        pids=pids,
    )

    async def work(service: HostedSandboxes) -> str:
        box = await service.create_with(
            options,
            name=name,
            ends_after_idle_s=ends_after_idle_s,
            hibernates_after_idle_s=hibernates_after_idle_s,
        )
        return box.id

    id_ = with_service(state_dir, work)
    then = f"use it: headstart sandbox run --in {name or id_} COMMAND, or headstart sandbox shell {name or id_}"
    made({"id": id_, "name": name}, quiet=quiet, json=json, then=then)


def list_(*, json: JsonOption = False, state_dir: StateOption = None) -> None:
    """List the sandboxes that live in the service, and their branches."""

    async def work(service: HostedSandboxes) -> Sequence[HostedInfo]:
        return await service.list()

    found = with_service(state_dir, work)
    if as_json(asked=json):
        print_json({"sandboxes": plain(found)})
    elif found:
        show_parts(_table(found))
    else:
        show_parts("no sandbox lives here. headstart sandbox create makes one")


def show(sandbox: SandboxArgument, *, json: JsonOption = False, state_dir: StateOption = None) -> None:
    """Show one sandbox: what it was made with, its checkpoints, its branches."""

    async def work(service: HostedSandboxes) -> tuple[HostedInfo, list[HostedInfo]]:
        info = await (await service.get(sandbox)).info()
        return info, [each for each in await service.list() if each.branch_of == info.id]

    info, branches = with_service(state_dir, work)
    if as_json(asked=json):
        print_json({**plain(info), "branches": [each.id for each in branches]})
        return
    show_parts(_table([info]), *_facts(info))
    if info.checkpoints:
        kept = table("checkpoint", "how", "left out")
        for each in info.checkpoints:
            kept.add_row(each.id, each.capture.value, ", ".join(shown(name) for name in each.left_out) or "-")
        show_parts("", kept)
    if branches:
        show_parts("", _table(branches))


def pause(sandbox: SandboxArgument, *, json: JsonOption = False, state_dir: StateOption = None) -> None:
    """Have everything in a sandbox stand still; it keeps its memory and uses no CPU."""
    _change(sandbox, lambda box: box.pause(), json=json, state_dir=state_dir)


def hibernate(sandbox: SandboxArgument, *, json: JsonOption = False, state_dir: StateOption = None) -> None:
    """End what runs in a sandbox and keep its files, until it is used again; it takes no memory meanwhile."""
    _change(sandbox, lambda box: box.hibernate(), json=json, state_dir=state_dir)


def resume(sandbox: SandboxArgument, *, json: JsonOption = False, state_dir: StateOption = None) -> None:
    """Let a paused sandbox go on where it was; wake one that is hibernated."""
    _change(sandbox, lambda box: box.resume(), json=json, state_dir=state_dir)


def _change(
    sandbox: str, change: Callable[[HostedSandbox], Awaitable[None]], *, json: bool, state_dir: Path | None
) -> None:
    """Have a sandbox be at something else, and tell a program what it is at then."""

    async def work(service: HostedSandboxes) -> HostedInfo:
        box = await service.get(sandbox)
        await change(box)
        return await box.info()

    info = with_service(state_dir, work)
    done({"id": info.id, "state": info.state.value}, json=json)


def kill(
    sandboxes: Annotated[
        list[str] | None, typer.Argument(metavar="SANDBOX…", help="Ids or names; of a branch, it is discarded.")
    ] = None,
    *,
    all_of_them: Annotated[bool, typer.Option("--all", help="All that live.")] = False,
    json: JsonOption = False,
    state_dir: StateOption = None,
) -> None:
    """End sandboxes, with their branches and all that is in them."""
    from headstart.errors import ConfigError

    if bool(sandboxes) == all_of_them:
        raise ConfigError("say which", where="headstart sandbox kill", hint="give ids or names, or --all")

    async def work(service: HostedSandboxes) -> list[str]:
        names = sandboxes or [each.id for each in await service.list() if each.branch_of is None]
        found = [await service.get(each) for each in names]  # all are there, or none is killed
        boxes = {each.id: each for each in found}
        for box in boxes.values():
            await box.kill()
        return list(boxes)

    done({"killed": with_service(state_dir, work)}, json=json)


def events(*, json: JsonOption = False, state_dir: StateOption = None) -> None:
    """Tell what happens to sandboxes, a line each, until interrupted."""
    in_json = as_json(asked=json)

    async def work(service: HostedSandboxes) -> None:
        async with service.watch() as happenings:
            async for each in happenings:
                at = time.strftime("%H:%M:%S", time.localtime(each.at_wall_s))
                line = (
                    json_text.dumps(plain(each))
                    if in_json
                    else f"{at}  {each.sandbox}  {each.event.value}  {each.about}"
                )
                print(line.rstrip(), flush=True)

    with_service(state_dir, work)


def _table(found: Iterable[HostedInfo]) -> Table:
    rows = list(found)
    has_branches = any(each.branch_of for each in rows)
    length = _telling_length([each.id for each in rows])
    made_table = table("id", "name", "state", "age", "idle", "memory", *(["branch of"] if has_branches else []))
    for each in rows:
        made_table.add_row(
            each.id[:length],
            each.name or "-",
            each.state.value,
            _span(time.time() - each.created_wall_s),
            _span(each.idle_s) if each.state.value in _THAT_LIVE else "-",
            f"{each.usage.memory_bytes / 1e6:.0f} MB",
            *([(each.branch_of or "-")[:length]] if has_branches else []),
        )
    return made_table


def _telling_length(ids: Sequence[str]) -> int:
    """Return how much of an id tells it from the others, for a table that fits a terminal.

    >>> _telling_length(["box_0123456789ab", "box_0123456700ab"]), _telling_length(["box_0123456789ab"])
    (13, 12)
    >>> _telling_length(["box_gpu-3-0123456789ab"])
    18
    """
    length = max(map(_short_length, ids), default=0)
    while len({each[:length] for each in ids}) < len(set(ids)):
        length += 1
    return length


def _short_length(id_: str) -> int:
    parts = IdParts.read(id_)
    return _SHORT_ID + (len(parts.node) + 1 if parts is not None and parts.node is not None else 0)


def _facts(info: HostedInfo) -> list[Any]:
    facts = table("", "", header=False)
    facts.add_row("id", info.id)
    facts.add_row("state version", info.version or "-")
    if info.trouble:
        facts.add_row("trouble", info.trouble)
    facts.add_row("template", info.template)
    facts.add_row("processes", str(info.usage.processes))
    facts.add_row("network", info.network)
    for path, mode in info.mounts.items():
        facts.add_row("mount", f"{path} ({mode})")
    if info.ends_after_idle_s is not None:
        facts.add_row("ends", f"when nobody has used it for {_span(info.ends_after_idle_s)}")
    if info.hibernates_after_idle_s is not None:
        facts.add_row("hibernates", f"when nobody has used it for {_span(info.hibernates_after_idle_s)}")
    return ["", facts]


_THAT_LIVE = {"running", "paused"}
_SHORT_ID = len("box_") + 8
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def _span(seconds: float) -> str:
    """Write a time span in one unit.

    >>> _span(0.4), _span(75), _span(7_300), _span(200_000)
    ('0 s', '1 min', '2 h', '2 d')
    """
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"
