"""What the contract's checks are written with: a subject, a trial, a verdict."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

from headstart.backends.contract import (
    Backend,
    Capabilities,
    Command,
    Completed,
    Identity,
    Mount,
    MountMode,
    RunningSandbox,
    Template,
)
from headstart.errors import BackendError, BackendUnavailable
from headstart.ids import SandboxId

__all__ = [
    "DAEMON",
    "HEARTBEAT",
    "Check",
    "ContractViolation",
    "NotClaimed",
    "Subject",
    "Trial",
    "check",
    "expect",
    "expect_beating",
    "expect_silence",
    "limited",
]

BACKEND_PATIENCE_S = 60.0
QUIET_S = 0.4
DIES_WITHIN_S = 10.0

HEARTBEAT = "i=0; while [ $i -lt 600 ]; do i=$((i+1)); echo x >> {beat}; sleep 0.05; done"
"""Half a minute of signs of life in `{beat}`; it ends by itself if nobody ends it."""

DAEMON = "setsid sh -c '" + HEARTBEAT + "' </dev/null >/dev/null 2>&1 &"
"""A shell line that leaves a daemon behind: own session, no parent, a heartbeat in `{beat}`."""


class ContractViolation(AssertionError):
    """The backend broke a promise; the message says which, and what was seen instead."""


class NotClaimed(Exception):
    """The backend does not say that it can do this, so nothing was checked. Skip, loudly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A backend to be examined.

    Attributes:
        open: Given an empty directory for its state, opens a fresh backend.
        mounts: Host paths that `python` needs inside, beyond what the backend shows anyway.
        python: A Python 3.8 or newer, as sandboxes see it.
        path: Where sandboxes find `sh` and the usual tools.
        adapt: Changes every template before it is prepared (to give it a preload, say).
    """

    open: Callable[[Path], AbstractAsyncContextManager[Backend]]
    mounts: tuple[Mount, ...] = ()
    python: str = "/usr/bin/python3"
    path: str = "/usr/local/bin:/usr/bin:/bin"
    adapt: Callable[[Template], Template] = lambda template: template


@dataclass(slots=True, kw_only=True)
class Trial:
    """One opened backend under one check.

    Attributes:
        shared: A host directory that sandboxes started here may write to, at the same path.
    """

    backend: Backend
    subject: Subject
    shared: Path
    _count: int = 0

    @property
    def isolated(self) -> bool:
        return not self.backend.capabilities.isolation.startswith("none")

    def template(self, script: str = "exec cat") -> Template:
        """Return a template whose entry command is `sh -c script`."""
        return Template(
            name="contract",
            command=self.shell(script),
            mounts=(*self.subject.mounts, Mount(source=self.shared, target=self.shared, mode=MountMode.READ_WRITE)),
        )

    def shell(self, script: str) -> Command:
        return Command(argv=("sh", "-c", script), env={"PATH": self.subject.path})

    def python(self, script: str) -> Command:
        return Command(argv=(self.subject.python, "-c", script), env={"PATH": self.subject.path})

    @asynccontextmanager
    async def sandbox(
        self, template: Template | None = None, *, background: bool = False, identity: Identity | None = None
    ) -> AsyncGenerator[RunningSandbox]:
        """Prepare, start, and at the end close one sandbox."""
        prepared = await self.backend.prepare(self.subject.adapt(template or self.template()))
        try:
            sandbox = await self.backend.start(prepared, identity or self.identity(), background=background)
            try:
                yield sandbox
            finally:
                await sandbox.aclose()
        finally:
            await prepared.aclose()

    def another_backend(self) -> AbstractAsyncContextManager[Backend]:
        """Open a second backend of the same kind, with a state directory of its own."""
        self._count += 1
        return self.backend_on(f"state-{self._count}")

    def backend_on(self, state: str) -> AbstractAsyncContextManager[Backend]:
        """Open another backend of the same kind, on the state that the last one on it has left, if there was one."""
        folder = self.shared.parent / state
        folder.mkdir(mode=0o700, exist_ok=True)
        return self.subject.open(folder)

    def identity(self) -> Identity:
        """Return one that was not used before in this trial."""
        self._count += 1
        return Identity(sandbox=SandboxId(f"sbx_contract_{self._count}"))

    async def sh(self, sandbox: RunningSandbox, script: str, *, timeout_s: float = 20.0) -> Completed:
        """Run a shell script in a sandbox."""
        return await sandbox.run(self.shell(script), timeout_s=timeout_s)

    def beat(self) -> Path:
        """Return a fresh path for a daemon's heartbeat."""
        self._count += 1
        return self.shared / f"beat-{self._count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One promise, and how to see that it is kept."""

    title: str
    body: Callable[[Trial], Awaitable[None]]
    claimed: Callable[[Capabilities], bool]

    def __str__(self) -> str:
        return self.title

    async def __call__(self, subject: Subject, workspace: Path) -> None:
        """Open the backend and try.

        Args:
            subject: The backend.
            workspace: An empty host directory.

        Raises:
            ContractViolation: The promise is broken.
            NotClaimed: The backend does not make it.
        """
        state, shared = workspace / "state", workspace / "shared"
        state.mkdir(mode=0o700)
        shared.mkdir()
        shared.chmod(0o777)
        verdict: ContractViolation | NotClaimed | None = None
        with anyio.fail_after(BACKEND_PATIENCE_S):
            async with subject.open(state) as backend:
                if not self.claimed(backend.capabilities):
                    verdict = NotClaimed(f"{backend.name}: {self.title}: not among its capabilities")
                else:
                    verdict = await self._try(Trial(backend=backend, subject=subject, shared=shared))
        if verdict is not None:
            raise verdict

    async def _try(self, trial: Trial) -> ContractViolation | NotClaimed | None:
        """Return the verdict instead of raising it through the backend, whose task groups would wrap it."""
        try:
            await self.body(trial)
        except (ContractViolation, NotClaimed) as verdict:
            return verdict
        except BackendUnavailable:
            raise
        except (BackendError, OSError) as error:
            return ContractViolation(f"{self.title}; instead: {error!r}")
        return None


def _always(_capabilities: Capabilities) -> bool:
    return True


def check(
    title: str, *, claimed: Callable[[Capabilities], bool] = _always
) -> Callable[[Callable[[Trial], Awaitable[None]]], Check]:
    """Make a check of a function that takes a trial."""

    def make(body: Callable[[Trial], Awaitable[None]]) -> Check:
        return Check(title=title, body=body, claimed=claimed)

    return make


def expect(kept: bool, promise: str, seen: object) -> None:  # noqa: FBT001 - reads as a sentence
    """Raise `ContractViolation` unless the promise is kept."""
    if not kept:
        raise ContractViolation(f"{promise}; seen: {seen!r}")


async def expect_silence(beat: Path, promise: str, *, within_s: float = DIES_WITHIN_S) -> None:
    """Require that a daemon's heartbeat stops: no growth for a while, begun within `within_s`."""
    deadline = time.monotonic() + within_s
    size, since = _size(beat), time.monotonic()
    while time.monotonic() - since < QUIET_S:
        await anyio.sleep(0.02)
        if _size(beat) != size:
            size, since = _size(beat), time.monotonic()
            expect(since < deadline, promise, f"it still writes {within_s} s later")


async def expect_beating(beat: Path) -> None:
    """Require that a daemon is alive: the control of every check that it dies."""
    with anyio.fail_after(10):
        while _size(beat) < 3:  # noqa: ASYNC110 - it is another process that writes
            await anyio.sleep(0.02)


def limited(template: Template, **limits: int) -> Template:
    """Return `template` with some of its limits changed."""
    return replace(template, limits=replace(template.limits, **limits))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
