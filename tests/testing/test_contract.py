"""The contract suite notices backends that break their promises: mutants of the process backend."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headstart.backends.contract import (
    Backend,
    ByteStreams,
    Capabilities,
    Command,
    Completed,
    Identity,
    Leftovers,
    Prepared,
    RunningSandbox,
    Template,
    Usage,
)
from headstart.backends.process import open_process_backend
from headstart.errors import BackendError
from headstart.ids import SandboxId
from headstart.testing.contract import CHECKS, Check, ContractViolation, NotClaimed, Subject

pytestmark = pytest.mark.anyio


class MutantSandbox:
    """Delegates everything; mutants override what they get wrong."""

    def __init__(self, inner: RunningSandbox) -> None:
        self.inner = inner

    @property
    def id(self) -> SandboxId:
        return self.inner.id

    async def run(self, command: Command, *, stdin: bytes = b"", timeout_s: float | None = None) -> Completed:
        return await self.inner.run(command, stdin=stdin, timeout_s=timeout_s)

    def attach(self, *, descriptors: Sequence[int] = ()) -> AbstractAsyncContextManager[ByteStreams]:
        return self.inner.attach(descriptors=descriptors)

    async def raise_priority(self) -> None:
        await self.inner.raise_priority()

    async def usage(self) -> Usage:
        return await self.inner.usage()

    async def aclose(self) -> None:
        await self.inner.aclose()


class Mutant:
    """A backend whose sandboxes are mutants."""

    def __init__(self, inner: Backend, sandbox: Callable[[RunningSandbox], RunningSandbox] = MutantSandbox) -> None:
        self.inner = inner
        self.sandbox = sandbox

    @property
    def name(self) -> str:
        return "mutant"

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    async def prepare(self, template: Template) -> Prepared:
        return await self.inner.prepare(template)

    async def start(self, prepared: Prepared, identity: Identity, *, background: bool = False) -> RunningSandbox:
        return self.sandbox(await self.inner.start(prepared, identity, background=background))

    async def leftovers(self) -> Leftovers:
        return await self.inner.leftovers()


class RaisesOnFailure(MutantSandbox):
    async def run(self, command: Command, *, stdin: bytes = b"", timeout_s: float | None = None) -> Completed:
        done = await super().run(command, stdin=stdin, timeout_s=timeout_s)
        if done.status.code != 0:
            raise BackendError("the command failed")
        return done


class CutsInSilence(MutantSandbox):
    async def run(self, command: Command, *, stdin: bytes = b"", timeout_s: float | None = None) -> Completed:
        return replace(await super().run(command, stdin=stdin, timeout_s=timeout_s), truncated=False)


class DropsStdin(MutantSandbox):
    async def run(self, command: Command, *, stdin: bytes = b"", timeout_s: float | None = None) -> Completed:
        return await super().run(command, stdin=stdin[:100], timeout_s=timeout_s)


class NeverCloses(MutantSandbox):
    async def aclose(self) -> None:
        pass


class CountsNothing(MutantSandbox):
    async def usage(self) -> Usage:
        return Usage(memory_bytes=0, cpu_s=0.0, processes=0)


class LeaksEnvironment(Mutant):
    async def prepare(self, template: Template) -> Prepared:
        command = replace(template.command, env={**os.environ, **template.command.env})
        return await super().prepare(replace(template, command=command))


class LeavesThings(Mutant):
    async def leftovers(self) -> Leftovers:
        return Leftovers(processes=1)


class ConfusesIdentities(Mutant):
    async def start(self, prepared: Prepared, identity: Identity, *, background: bool = False) -> RunningSandbox:
        return await super().start(prepared, replace(identity, env={}), background=background)


def subject(make: Callable[[Backend], Backend]) -> Subject:
    @asynccontextmanager
    async def opened(state: Path) -> AsyncGenerator[Backend]:
        async with open_process_backend(state) as backend:
            yield make(backend)

    return Subject(open=opened)


def named(part: str) -> Check:
    [found] = [check for check in CHECKS if part in check.title]
    return found


MUTANTS: list[tuple[str, Callable[[Backend], Any], str, str]] = [
    (
        "raises on failure",
        lambda backend: Mutant(backend, RaisesOnFailure),
        "a failing command is data",
        "instead: BackendError",
    ),
    ("cuts in silence", lambda backend: Mutant(backend, CutsInSilence), "beyond 1 MiB", "cut at 1 MiB"),
    ("drops stdin", lambda backend: Mutant(backend, DropsStdin), "stdin ends", "every byte of stdin arrives"),
    (
        "never closes",
        lambda backend: Mutant(backend, NeverCloses),
        "closing kills daemons",
        "a daemon dies with its sandbox",
    ),
    (
        "counts nothing",
        lambda backend: Mutant(backend, CountsNothing),
        "usage is sane",
        "an idle shell holds some memory",
    ),
    ("leaks the environment", LeaksEnvironment, "the environment is", "nothing else does"),
    ("loses the identity's environment", ConfusesIdentities, "the environment is", "what was given arrives"),
    ("leaves things", LeavesThings, "nothing is left", "nothing is left; seen"),
]


@pytest.mark.parametrize(("make", "part", "promise"), [m[1:] for m in MUTANTS], ids=[m[0] for m in MUTANTS])
async def test_a_broken_promise_is_noticed(
    make: Callable[[Backend], Any], part: str, promise: str, tmp_path: Path
) -> None:
    with pytest.raises(ContractViolation, match=promise):
        await named(part)(subject(make), tmp_path)


async def test_an_honest_wrapper_passes(tmp_path: Path) -> None:
    await named("a failing command is data")(subject(Mutant), tmp_path)


async def test_what_is_not_claimed_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(NotClaimed, match="memory limit"):
        await named("the memory limit")(subject(Mutant), tmp_path)


def test_every_check_has_a_title_of_its_own() -> None:
    titles = [check.title for check in CHECKS]
    assert len(set(titles)) == len(titles) == 27
