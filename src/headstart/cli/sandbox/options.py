"""What several of these commands are told, and how they say it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from headstart.cli.interrupts import run_interruptible
from headstart.cli.terminal import print_json, say
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from headstart.sandbox import HostedSandboxes, SandboxOptions

__all__ = [
    "CpuOption",
    "DiskOption",
    "EnvOption",
    "FilesOnlyOption",
    "IdentityOption",
    "JsonOption",
    "MemoryOption",
    "MountOption",
    "NetworkOption",
    "PidsOption",
    "QuietOption",
    "SandboxArgument",
    "TemplateOption",
    "as_json",
    "done",
    "made",
    "mount",
    "sandbox_options",
    "variable",
    "with_service",
]

TemplateOption = Annotated[
    str, typer.Option("--template", metavar="NAME", help="What it is started from: host, or one that was built.")
]
MountOption = Annotated[
    list[str] | None,
    typer.Option("--mount", metavar="PATH[:MODE]", help="Show a host path: ro (the default), rw or overlay."),
]
EnvOption = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="Add to the environment of its commands.")
]
NetworkOption = Annotated[str, typer.Option("--network", help="none or host.")]
MemoryOption = Annotated[int, typer.Option("--memory", metavar="MB", help="The most it may use.")]
DiskOption = Annotated[float, typer.Option("--disk", metavar="MB", help="The most it may write, outside of rw mounts.")]
PidsOption = Annotated[
    int, typer.Option("--pids", metavar="COUNT", help="The most processes and threads that it may have at once.")
]
CpuOption = Annotated[float | None, typer.Option("--cpu", metavar="CORES", help="The most it may use.")]
SandboxArgument = Annotated[
    str, typer.Argument(metavar="SANDBOX", help="Its id or name; the beginning of its id is enough.")
]
FilesOnlyOption = Annotated[bool, typer.Option("--files-only", help="Leave out what runs, which goes on.")]
IdentityOption = Annotated[
    Literal["same", "fresh"],
    typer.Option(
        "--identity",
        help="The names and random state that it was kept with, or its own; what cannot be made anew is told.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, also on a terminal.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print the id alone.")]

_MODES = ("ro", "rw", "overlay")

_T = TypeVar("_T")


def sandbox_options(  # noqa: PLR0913 (what these commands take)
    *,
    template: str,
    mounts: list[str] | None,
    env: list[str] | None,
    network: str,
    memory_mb: int,
    cpu_cores: float | None,
    disk_mb: float,
    pids: int,
) -> SandboxOptions:
    """Return what a sandbox is to be made with.

    Raises:
        ConfigError: An option cannot be used.
    """
    from headstart.sandbox import SandboxOptions

    return SandboxOptions(
        template=template,
        mounts=dict(mount(each) for each in mounts or ()),
        network=network,
        memory_mb=memory_mb,
        cpu_cores=cpu_cores,
        disk_mb=disk_mb,
        pids=pids,
        env=dict(variable(each) for each in env or ()),
    )


def mount(written: str) -> tuple[str, str]:
    """Split `PATH[:MODE]`; a path may have colons, so only a known mode counts as one.

    Raises:
        ConfigError: Neither is the whole a path that is there, nor its end a mode.
    """
    path, colon, mode = written.rpartition(":")
    if colon and mode in _MODES:
        return path, mode
    if colon and "/" not in mode and not Path(written).expanduser().exists():
        hint = f"write {path or 'PATH'}:MODE, with one of {', '.join(_MODES)}; or correct the path, if the colon is part of it"
        raise ConfigError(f"{mode!r} is no way to mount", where="--mount", key=written, hint=hint)
    return written, "ro"


def variable(written: str) -> tuple[str, str]:
    """Split `NAME=VALUE`.

    Raises:
        ConfigError: It is no variable.
    """
    name, equals, value = written.partition("=")
    if not name or not equals:
        raise ConfigError(f"{written!r} is no variable", where="--env", hint="write NAME=VALUE")
    return name, value


def with_service(state_dir: Path | None, work: Callable[[HostedSandboxes], Awaitable[_T]]) -> _T:
    """Do something with the sandboxes of the running service.

    Raises:
        NoService: None is running.
        Exception: What the work raises; what the system says of a file in a sandbox is told as an error of the command's.
    """
    from headstart.sandbox import connect

    async def main() -> _T:
        async with connect(state_dir) as service:
            return await work(service)

    return run_interruptible(main)


def as_json(*, asked: bool) -> bool:
    """Whether to print JSON: if asked to, or if a program reads it."""
    return asked or not sys.stdout.isatty()


def done(facts: Mapping[str, Any], *, json: bool) -> None:
    """Tell a program what was done; people know what they have asked for."""
    if as_json(asked=json):
        print_json(facts)


def made(facts: Mapping[str, Any], *, quiet: bool, json: bool, then: str) -> None:
    """Tell the id of what was made, and on a terminal what can be done `then`."""
    if quiet:
        print(facts["id"])
    elif as_json(asked=json):
        print_json(facts)
    else:
        print(facts["id"])
        say(then)
