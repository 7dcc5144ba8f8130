"""A service that is killed at a given moment of what it does to a sandbox.

    killed_child.py STATE ACT MOMENT

MOMENT is `before:RECORD` or `after:RECORD`, of what is written to the sandbox's journal, or
`before:STEP` or `after:STEP` of what making, hibernating and waking a sandbox takes (`STEP 2`: when it comes again). When it comes, this process kills
itself. What it makes first: a file `f` with `1`, a checkpoint, and then `2` in it; where branches are wanted, one
with `3` and one with `4` in it; in the bash session, where one is wanted, `W` with `7`.
"""

from __future__ import annotations

import inspect
import itertools
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

import anyio
import anyio.lowlevel
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
    what, _, nth = what.partition(" ")
    write: Callable[[LineageJournal, object], None] = LineageJournal._write  # pyright: ignore[reportPrivateUsage]

    lines = itertools.count(1)

    def watched(journal: LineageJournal, record: object) -> None:
        is_it = type(record).__name__ == what and next(lines) == int(nth or 1)
        if is_it and when == "before":
            die()
        write(journal, record)
        if is_it:
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
        "remember": (SandboxKeeping, "remember"),
        "forget": (SandboxKeeping, "forget_branch"),
        "leave": (SandboxKeeping, "leave_branch"),
        "keep": (LocalStore, "keep_only"),
        "tidy": (keeping, "remove_branches"),
    }
    if what in steps:
        arm_step(*steps[what], when, int(nth or 1))


def arm_step(owner: Any, name: str, when: str, nth: int) -> None:
    """Have the process killed before or after it calls this for the nth time."""
    step = getattr(owner, name)
    calls = itertools.count(1)

    async def slow(*given: Any, **named: Any) -> Any:
        call = next(calls)
        if (call, when) == (nth, "before"):
            die()
        done = await step(*given, **named)
        if call == nth:
            die()
        return done

    def fast(*given: Any, **named: Any) -> Any:
        call = next(calls)
        if (call, when) == (nth, "before"):
            die()
        done = step(*given, **named)
        if call == nth:
            die()
        return done

    setattr(owner, name, slow if inspect.iscoroutinefunction(step) else fast)


async def prepare(host: SandboxHost) -> str:
    box = await host.create(SandboxOptions(), name="mine")
    await box.files.write("f", b"1")
    await host.checkpoint(box.id)
    await box.files.write("f", b"2")
    return box.id


async def have_branches(host: SandboxHost, box: str) -> list[str]:
    branches = [await host.fork(box) for _ in range(2)]
    for content, branch in zip((b"3", b"4"), branches, strict=True):
        await branch.files.write("f", content)
    return [each.id for each in branches]


async def have_session(host: SandboxHost, name: str) -> None:
    with host.using(name) as box:
        assert (await box.run_in_shell("W=7")).ok


async def write(host: SandboxHost, name: str) -> None:
    with host.using(name) as box:
        await box.files.write("f", b"5")


async def use(host: SandboxHost, branch: str) -> None:
    await host.kill((await host.list())[-1].id)
    with host.using(branch) as box:
        await box.run_code("x = 1")
        await box.run_in_shell("W=7")
    die()


BRANCH_ACTS: dict[str, Callable[[SandboxHost, str, str], Awaitable[object]]] = {
    "fork": lambda host, box, _: host.fork(box),
    "fork with branches": lambda host, box, _: host.fork(box),
    "commit": lambda host, _, branch: host.commit(branch),
    "discard": lambda host, _, branch: host.kill(branch),
    "write": lambda host, box, _: write(host, box),
    "use": lambda host, _, branch: use(host, branch),
    "stop": lambda _host, _box, _branch: anyio.lowlevel.checkpoint(),
}


async def act(host: SandboxHost, name: str, moment: str) -> None:
    if name == "create":
        arm(moment)
        await host.create(SandboxOptions())
        return
    box = await prepare(host)
    if name in BRANCH_ACTS:
        branches = await have_branches(host, box) if name != "fork" else [""]
        arm(moment)
        await BRANCH_ACTS[name](host, box, branches[0])
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
    state, name, moment = Path(sys.argv[1]), *sys.argv[2:]
    if name in {"start", "go on"}:
        async with open_host(state) as host:
            box = await prepare(host)
            await (have_branches(host, box) if name == "start" else have_session(host, box))
        arm(moment)
    async with open_host(state) as host:
        if name == "go on":
            with host.using("mine") as found:
                await found.run_in_shell("W=8")
            die()
        if name != "start":
            await act(host, name, moment)
        if name != "stop":
            await anyio.sleep(20)  # what comes of it may come later


anyio.run(main)
