"""A service that is killed at a given moment of what it does to a sandbox.

    killed_child.py STATE ACT MOMENT

MOMENT is `before:RECORD` or `after:RECORD`, of what is written to the sandbox's journal, or
`before:STEP` or `after:STEP` of what making, hibernating and waking a sandbox takes. When it comes, this process kills
itself. What it makes first: a file `f` with `1`, a checkpoint, and then `2` in it; in a branch, `3`; in the bash session,
where one is wanted, `W` with `7`.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import anyio
from tests.sandbox.hosted.hosting import open_host

from headstart.backends.local.store import LocalStore
from headstart.backends.local.stores import LocalStores
from headstart.runtime.lineage_journal import LineageJournal
from headstart.sandbox.hosted import SandboxHost, keeping
from headstart.sandbox.hosted.keeping import SandboxKeeping
from headstart.sandbox.options import SandboxOptions
from headstart.sandbox.sandbox import Sandbox


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def arm(moment: str) -> None:
    """Have the process killed when it comes to this."""
    when, _, what = moment.partition(":")
    write: Callable[[LineageJournal, object], None] = LineageJournal._write  # pyright: ignore[reportPrivateUsage]

    def watched(journal: LineageJournal, record: object) -> None:
        if when == "before" and type(record).__name__ == what:
            die()
        write(journal, record)
        if when == "after" and type(record).__name__ == what:
            die()

    setattr(LineageJournal, "_write", watched)  # noqa: B010
    steps: dict[str, tuple[Any, str]] = {
        "record": (keeping, "write_record"),
        "place": (SandboxKeeping, "_make_place"),
        "begun": (SandboxKeeping, "_begun"),
        "suspend": (Sandbox, "suspend"),
        "close": (LocalStore, "aclose"),
        "open": (LocalStores, "open"),
        "start": (LocalStore, "start"),
        "remove": (SandboxKeeping, "remove"),
        "delete": (LocalStores, "remove"),
    }
    if what in steps:
        arm_step(*steps[what], when)


def arm_step(owner: Any, name: str, when: str) -> None:
    """Have the process killed before or after it calls this."""
    step = getattr(owner, name)

    async def slow(*given: Any, **named: Any) -> NoReturn:
        if when == "after":
            await step(*given, **named)
        die()

    def fast(*given: Any, **named: Any) -> NoReturn:
        if when == "after":
            step(*given, **named)
        die()

    setattr(owner, name, slow if inspect.iscoroutinefunction(step) else fast)


async def prepare(host: SandboxHost) -> str:
    box = await host.create(SandboxOptions(), name="mine")
    await box.files.write("f", b"1")
    await host.checkpoint(box.id)
    await box.files.write("f", b"2")
    return box.id


async def have_session(host: SandboxHost, name: str) -> None:
    with host.using(name) as box:
        assert (await box.run_in_shell("W=7")).ok


async def act(host: SandboxHost, name: str, moment: str) -> None:
    if name == "create":
        arm(moment)
        await host.create(SandboxOptions())
        return
    box = await prepare(host)
    if name == "fork":
        arm(moment)
        await host.fork(box)
    elif name == "commit":
        branch = await host.fork(box)
        await branch.files.write("f", b"3")
        arm(moment)
        await host.commit(branch.id)
    elif name == "checkpoint":
        arm(moment)
        await host.checkpoint(box)
    elif name == "rollback":
        with host.using(box) as found:
            kept = found.checkpoints[0].id
        arm(moment)
        await host.rollback(box, kept)
    elif name == "drop":
        with host.using(box) as found:
            arm(moment)
            await found.drop(found.checkpoints[0].id)
    elif name == "kill":
        arm(moment)
        await host.kill(box)
    elif name == "hibernate":
        await have_session(host, box)
        arm(moment)
        await host.hibernate(box)
    elif name in {"wake", "kill hibernated"}:
        await have_session(host, box)
        await host.hibernate(box)
        arm(moment)
        await (host.resume(box) if name == "wake" else host.kill(box))
    else:
        raise AssertionError(name)


async def main() -> None:
    async with open_host(Path(sys.argv[1])) as host:
        await act(host, sys.argv[2], sys.argv[3])
        await anyio.sleep(20)  # what comes of it may come later


anyio.run(main)
