"""Promises about what a sandbox sees, reaches and may use. (Attacks are `tests/escape`.)"""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Final

from headstart.backends.contract import Capabilities, Mount, MountMode, Network, RunningSandbox
from headstart.testing.contract_trial import Check, Trial, check, expect, limited

__all__ = ["ISOLATION_CHECKS"]

MEGABYTE: Final = 1_000_000


def _isolates(capabilities: Capabilities) -> bool:
    return not capabilities.isolation.startswith("none")


def _limits(capabilities: Capabilities) -> bool:
    return capabilities.limits


@check("home and the temporary directory are private, writable and empty at first")
async def private_places(trial: Trial) -> None:
    home = "" if not trial.isolated else f"export HOME={trial.template().private_home}; "
    bare = replace(trial.template(), mounts=trial.subject.mounts)  # the shared folder may be in the host's /tmp
    tmp = Path("/tmp")  # noqa: S108  inside; what the subject itself needs to see may lie there
    needed = [mount.target.parts[2] for mount in trial.subject.adapt(bare).mounts if tmp in mount.target.parents]
    ignored = "".join(f" --ignore={quote(name)}" for name in needed)
    look = f'echo "home:$(ls -A "$HOME")" "tmp:$(ls -A{ignored} "${{TMPDIR:-/tmp}}")"'
    async with trial.sandbox(bare) as first, trial.sandbox(bare) as second:
        done = await trial.sh(first, home + look)
        expect(done.stdout == b"home: tmp:\n", "both are empty at first", done)
        await trial.sh(first, home + 'echo mine > "$HOME/mine"; echo mine > "${TMPDIR:-/tmp}/mine"')
        done = await trial.sh(first, home + look)
        expect(done.stdout == b"home:mine tmp:mine\n", "what a sandbox writes it finds again", done)
        done = await trial.sh(second, home + look)
        expect(done.stdout == b"home: tmp:\n", "and no other one does", done)


@check("mounts are read-only, written through, or kept apart, as declared", claimed=_isolates)
async def mounts(trial: Trial) -> None:
    sources = {mode: trial.shared.parent / mode.value for mode in MountMode}
    for source in sources.values():
        source.mkdir()
        source.chmod(0o777)
        (source / "given").write_text("given")
    template = replace(
        trial.template(),
        mounts=tuple(Mount(source=source, target=Path("/data") / mode.value, mode=mode)
                     for mode, source in sources.items()),
    )  # fmt: skip
    async with trial.sandbox(template) as sandbox:
        for mode, source in sources.items():
            inside = f"/data/{mode.value}"
            done = await trial.sh(sandbox, f"cat {inside}/given; echo new > {inside}/new && cat {inside}/new")
            wrote = done.stdout == b"givennew\n"
            expect(done.stdout.startswith(b"given"), f"{mode}: the files show", done)
            expect(wrote == (mode is not MountMode.READ_ONLY), f"{mode}: writing works as declared", done)
            reached = (source / "new").exists()
            expect(reached == (mode is MountMode.READ_WRITE), f"{mode}: writes reach the host as declared", reached)


@check("without network a sandbox reaches nobody, with it the host's loopback")
async def network(trial: Trial) -> None:
    offered = trial.backend.capabilities.network
    with _listener() as port:
        probe = f"import socket; socket.create_connection(('127.0.0.1', {port}), 3); print('reached')"
        for kind in Network:
            if kind not in offered:
                continue
            async with trial.sandbox(replace(trial.template(), network=kind)) as sandbox:
                done = await sandbox.run(trial.python(probe), timeout_s=20)
                reached = done.stdout == b"reached\n"
                expect(reached == (kind is Network.HOST), f"network {kind.value} is what it says", done)


@check("a sandbox has its own loopback even without network", claimed=lambda able: Network.NONE in able.network)
async def own_loopback(trial: Trial) -> None:
    script = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); "
        "socket.create_connection(s.getsockname(), 3); print('reached')"
    )
    async with trial.sandbox() as sandbox:
        done = await sandbox.run(trial.python(script), timeout_s=20)
        expect(done.stdout == b"reached\n", "servers inside can talk to themselves", done)


@check("the memory limit kills its own sandbox's command, and it is said so", claimed=_limits)
async def memory_limit(trial: Trial) -> None:
    template = limited(trial.template(), memory_bytes=100 * MEGABYTE)
    async with trial.sandbox(template) as small, trial.sandbox() as other:
        done = await small.run(trial.python("b = bytearray(60_000_000); print(len(b))"), timeout_s=30)
        expect(done.status.code == 0, "below the limit is fine", done)
        done = await small.run(trial.python("b = b'x' * 400_000_000; print(len(b))"), timeout_s=30)
        expect(done.status.signal == 9 and done.status.out_of_memory, "killed, out of memory", done)
        expect(await _answers(trial, small), "the sandbox lives on", "it does not")
        expect(await _answers(trial, other), "and so do others", "they do not")


@check("the process limit stops a fork bomb in its own sandbox", claimed=_limits)
async def process_limit(trial: Trial) -> None:
    bomb = (
        "import os, time\n"
        "count = 0\n"
        "try:\n"
        "    while count < 400:\n"
        "        if os.fork() == 0: time.sleep(30); os._exit(0)\n"
        "        count += 1\n"
        "except OSError as error:\n"
        "    print(error.errno, count)\n"
    )
    async with trial.sandbox(limited(trial.template(), pids=50)) as small, trial.sandbox() as other:
        done = await small.run(trial.python(bomb), timeout_s=30)
        code, _, count = done.stdout.decode().partition(" ")
        expect(code == "11" and 0 < int(count) < 50, "EAGAIN before the limit", done)
        expect(await _answers(trial, other), "others go on", "they do not")
    async with trial.sandbox() as later:
        expect(await _answers(trial, later), "and so do later ones", "they do not")


@check("the scratch limit ends in ENOSPC, not in the host's disk", claimed=_limits)
async def scratch_limit(trial: Trial) -> None:
    template = limited(trial.template(), scratch_bytes=20 * MEGABYTE)
    async with trial.sandbox(template) as small, trial.sandbox() as other:
        for place in (trial.template().private_home, "/tmp", "/var/tmp", "/dev/shm"):  # noqa: S108 - the sandbox's own
            fill = f"mkdir -p {place} && head -c {60 * MEGABYTE} /dev/zero > {place}/fill"
            done = await trial.sh(small, f"{fill}; code=$?; rm -f {place}/fill; exit $code")
            expect(done.status.code != 0 and b"No space left" in done.stderr, f"{place} is full", done)
        expect(await _answers(trial, other), "others go on", "they do not")


ISOLATION_CHECKS: Final[tuple[Check, ...]] = (
    private_places,
    mounts,
    network,
    own_loopback,
    memory_limit,
    process_limit,
    scratch_limit,
)


async def _answers(trial: Trial, sandbox: RunningSandbox) -> bool:
    return (await trial.sh(sandbox, "echo yes")).stdout == b"yes\n"


@contextmanager
def _listener() -> Generator[int]:
    """Listen on the host's loopback; the backlog answers, nobody needs to accept."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]
