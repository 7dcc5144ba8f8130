"""What this machine can do: the facts behind `headstart doctor`.

Nothing is concluded from version numbers where it can be tried: namespaces are entered,
file systems mounted, the filter installed, each in a process that ends with its trial
(`local/guest/probe.py`). Programs are asked for their version. Every answer comes within
a few seconds, whatever hangs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import anyio

from headstart.backends.local import metadata_block
from headstart.backends.local.seccomp import SeccompProfile, build_filter
from headstart.errors import BackendUnavailable

__all__ = ["Probe", "ProbeStatus", "probe_all"]

PROGRAM_S: Final = 2.0
TRIALS_S: Final = 5.0
_LAUNCH: Final = Path(__file__).parent / "spawner" / "guest" / "launch.py"
_TRIALS: Final = "headstart.backends.local.guest.probe"


class ProbeStatus(Enum):
    """How well something works here."""

    OK = "ok"
    WEAK = "weak"
    """In part, or for some users."""
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One fact.

    Attributes:
        found: What was seen, in a few words.
        cure: What to do about it; None where there is nothing to do.
    """

    name: str
    status: ProbeStatus
    found: str
    cure: str | None = None


async def probe_all() -> tuple[Probe, ...]:
    """Try everything at once and return the facts in a fixed order.

    If cancelled, whatever was started is killed.
    """
    parts: tuple[Callable[[], Awaitable[tuple[Probe, ...]]], ...] = (
        _kernel,
        _kernel_features,
        _metadata,
        _python,
        *(program.probe for program in _PROGRAMS),
    )
    found: dict[int, tuple[Probe, ...]] = {}

    async def run(index: int) -> None:
        found[index] = await parts[index]()

    async with anyio.create_task_group() as tasks:
        for index in range(len(parts)):
            tasks.start_soon(run, index)
    return tuple(probe for index in range(len(parts)) for probe in found[index])


async def _kernel() -> tuple[Probe, ...]:
    release, machine = platform.release(), platform.machine()
    major, minor = (int(part) for part in release.split(".")[:2])
    recent = (major, minor) >= (5, 19)
    return (
        Probe(
            name="kernel",
            status=ProbeStatus.OK if recent else ProbeStatus.WEAK,
            found=f"Linux {release}, {machine}, {os.cpu_count()} CPUs, {'root' if os.geteuid() == 0 else 'no root'}",
            cure=None if recent else "use Linux 5.19 or newer for overlays over id-mapped folders",
        ),
    )


async def _kernel_features() -> tuple[Probe, ...]:
    """Run the trials in one stdlib-only process that forks one child for each."""
    try:
        program = build_filter(SeccompProfile.SANDBOX, platform.machine()).hex()
    except BackendUnavailable:
        program = ""
    answer = await _output_of((sys.executable, "-I", "-S", str(_LAUNCH), _TRIALS, program), within_s=TRIALS_S)
    if isinstance(answer, _Silence):
        return (
            Probe(
                name="kernel features", status=ProbeStatus.MISSING, found=answer.why, cure="run headstart doctor again"
            ),
        )
    return tuple(
        Probe(name=name, status=ProbeStatus(told["status"]), found=told["found"], cure=told["cure"])
        for name, told in json.loads(answer).items()
    )


async def _metadata() -> tuple[Probe, ...]:
    reason = await anyio.to_thread.run_sync(metadata_block.why_unavailable)
    if reason is None:
        told = Probe(name="bpf cgroup hooks", status=ProbeStatus.OK, found="cloud metadata addresses can be blocked")
    else:
        told = Probe(name="bpf cgroup hooks", status=ProbeStatus.MISSING, found=reason, cure=metadata_block.CURE)
    return (told,)


async def _python() -> tuple[Probe, ...]:
    version = f"{platform.python_version()} at {sys.executable}"
    if importlib.util.find_spec("ensurepip") is not None:
        return (Probe(name="Python", status=ProbeStatus.OK, found=version),)
    cure = f"apt-get install python{sys.version_info.major}.{sys.version_info.minor}-venv"
    return (Probe(name="Python", status=ProbeStatus.WEAK, found=f"{version}, without ensurepip", cure=cure),)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """A program that servers or later backends need, and how it tells that it works.

    Attributes:
        works: What to say if it does; else it is the first line that it prints.
    """

    name: str
    argv: tuple[str, ...]
    cure: str
    works: str = ""

    async def probe(self) -> tuple[Probe, ...]:
        path = shutil.which(self.argv[0])
        if path is None:
            return (self._missing("not installed"),)
        answer = await _output_of((path, *self.argv[1:]), within_s=PROGRAM_S)
        if isinstance(answer, _Silence):
            return (self._missing(answer.why),)
        first = answer.strip().splitlines()[0] if answer.strip() else "it says nothing"
        return (Probe(name=self.name, status=ProbeStatus.OK, found=f"{self.works or first} ({path})"),)

    def _missing(self, why: str) -> Probe:
        return Probe(name=self.name, status=ProbeStatus.MISSING, found=why, cure=self.cure)


_PROGRAMS: Final = (
    _Program(
        name="node", argv=("node", "--version"), cure="apt-get install nodejs, for servers that are node programs"
    ),
    _Program(name="npx", argv=("npx", "--version"), cure="apt-get install npm, for servers that start with npx"),
    _Program(name="uvx", argv=("uvx", "--version"), cure="pip install uv, for servers that start with uvx"),
    _Program(
        name="docker",
        argv=("docker", "version", "--format", "{{.Server.Version}}"),
        cure="not needed yet; apt-get install docker.io, and start dockerd",
    ),
    _Program(name="runsc", argv=("runsc", "--version"), cure="not needed yet; apt-get install runsc (gVisor)"),
    _Program(
        name="criu",
        argv=("criu", "check"),
        cure="not needed: it cannot restore into a sandbox, so no checkpoint uses it",
        works="it passes its own check; no checkpoint uses it",
    ),
)


# ---------------------------------------------------------------- asking programs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Silence:
    """A program that gave no useful answer."""

    why: str


async def _output_of(argv: tuple[str, ...], *, within_s: float) -> str | _Silence:
    """Return what a program prints; in time, or its whole process group is killed."""
    process = await anyio.open_process(argv, stdin=-3, stdout=-1, stderr=-2, start_new_session=True)
    said = bytearray()
    try:
        with anyio.fail_after(within_s):
            assert process.stdout is not None  # noqa: S101 - a pipe was asked for
            async for chunk in process.stdout:
                said += chunk[: 65_536 - len(said)]
            code = await process.wait()
    except TimeoutError:
        return _Silence(why=f"no answer within {within_s:g} s")
    finally:
        with anyio.CancelScope(shield=True):
            _kill_group(process.pid)
            await process.aclose()
    text = said.decode(errors="replace")
    return text if code == 0 else _Silence(why=_last_line(text) or f"it ended with {code}")


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):  # all of it has ended
        os.killpg(pid, signal.SIGKILL)


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")[:200]
