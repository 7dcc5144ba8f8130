"""The contract suite notices backends that break their promises: mutants of the process backend."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from headstart.backends.contract import (
    Backend,
    ByteStreams,
    Capabilities,
    Capture,
    Checkpoint,
    Command,
    Completed,
    FileInfo,
    FileKind,
    Files,
    FileStores,
    ForkableProcess,
    Identity,
    Leftovers,
    Prepared,
    Process,
    ProcessImage,
    RunningSandbox,
    Template,
    TerminalProcess,
    TerminalSize,
    Usage,
)
from headstart.backends.local import open_local_backend
from headstart.backends.process import open_process_backend
from headstart.errors import BackendError, BackendUnavailable, NotCapturable
from headstart.ids import SandboxId
from headstart.testing.contract import CHECKS, Check, ContractViolation, NotClaimed, Subject

pytestmark = pytest.mark.anyio

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


class MutantFiles:
    """Delegates everything; mutants override what they get wrong."""

    def __init__(self, sandbox: RunningSandbox) -> None:
        self.sandbox = sandbox
        self.inner = sandbox.files

    async def read(self, path: str, *, limit_bytes: int = 1 << 30) -> bytes:
        return await self.inner.read(path, limit_bytes=limit_bytes)

    async def write(self, path: str, content: bytes, *, mode: int | None = None) -> None:
        await self.inner.write(path, content, mode=mode)

    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        return await self.inner.list(path)

    async def stat(self, path: str) -> FileInfo:
        return await self.inner.stat(path)

    async def make_folder(self, path: str) -> None:
        await self.inner.make_folder(path)

    async def rename(self, path: str, to: str) -> None:
        await self.inner.rename(path, to)

    async def remove(self, path: str) -> None:
        await self.inner.remove(path)


class MutantSandbox:
    """Delegates everything; mutants override what they get wrong."""

    def __init__(
        self, inner: RunningSandbox, *, files: Callable[[RunningSandbox], Files] = lambda sandbox: sandbox.files
    ) -> None:
        self.inner = inner
        self._files = files(inner)

    @property
    def id(self) -> SandboxId:
        return self.inner.id

    @property
    def files(self) -> Files:
        return self._files

    async def run(self, command: Command, *, stdin: bytes = b"", timeout_s: float | None = None) -> Completed:
        return await self.inner.run(command, stdin=stdin, timeout_s=timeout_s)

    def start(self, command: Command, *, descriptors: Sequence[int] = ()) -> AbstractAsyncContextManager[ByteStreams]:
        return self.inner.start(command, descriptors=descriptors)

    def start_forkable(
        self, command: Command, *, descriptors: Sequence[int] = ()
    ) -> AbstractAsyncContextManager[ForkableProcess]:
        return self.inner.start_forkable(command, descriptors=descriptors)

    def revive(
        self, image: ProcessImage, *, descriptors: Sequence[int] = ()
    ) -> AbstractAsyncContextManager[ForkableProcess]:
        return self.inner.revive(image, descriptors=descriptors)

    def start_on(self, command: Command, descriptors: Sequence[int]) -> AbstractAsyncContextManager[Process]:
        return self.inner.start_on(command, descriptors)

    def start_on_terminal(self, command: Command, size: TerminalSize) -> AbstractAsyncContextManager[TerminalProcess]:
        return self.inner.start_on_terminal(command, size)

    def attach(self, *, descriptors: Sequence[int] = ()) -> AbstractAsyncContextManager[ByteStreams]:
        return self.inner.attach(descriptors=descriptors)

    async def raise_priority(self) -> None:
        await self.inner.raise_priority()

    @property
    def paused(self) -> bool:
        return self.inner.paused

    async def pause(self) -> None:
        await self.inner.pause()

    async def resume(self) -> None:
        await self.inner.resume()

    async def usage(self) -> Usage:
        return await self.inner.usage()

    async def cpu_s(self) -> float:
        return await self.inner.cpu_s()

    @property
    def memory_kills(self) -> int:
        return self.inner.memory_kills

    async def checkpoint(
        self, *, files_only: bool = False, beside: Sequence[ForkableProcess | Process] = ()
    ) -> Checkpoint:
        return await self.inner.checkpoint(files_only=files_only, beside=beside)

    async def fork(self, at: Checkpoint, identity: Identity) -> RunningSandbox:
        return await self.inner.fork(at, identity)

    async def save_base(self, folder: Path, *, most_bytes: int) -> None:
        await self.inner.save_base(folder, most_bytes=most_bytes)

    async def forget(self, checkpoint: Checkpoint) -> None:
        await self.inner.forget(checkpoint)

    async def wait_lost(self) -> None:
        await self.inner.wait_lost()

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

    @property
    def stores(self) -> FileStores:
        return self.inner.stores

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


class ReadsTheBeginning(MutantFiles):
    async def read(self, path: str, *, limit_bytes: int = 1 << 30) -> bytes:
        return (await super().read(path, limit_bytes=limit_bytes))[:65_536]


class BeginsElsewhere(MutantFiles):
    async def read(self, path: str, *, limit_bytes: int = 1 << 30) -> bytes:
        return await super().read(f"elsewhere/{path}", limit_bytes=limit_bytes)

    async def write(self, path: str, content: bytes, *, mode: int | None = None) -> None:
        await super().write(f"elsewhere/{path}", content, mode=mode)


class WritesInPlace(MutantFiles):
    async def write(self, path: str, content: bytes, *, mode: int | None = None) -> None:
        await self.sandbox.run(Command(argv=("sh", "-c", f"cd ~; cat > {path}"), env=ENV), stdin=content)


class ReplacesLinks(MutantFiles):
    async def write(self, path: str, content: bytes, *, mode: int | None = None) -> None:
        await super().write("temporary", content, mode=mode)
        await self.rename("temporary", path)


class MakesPrograms(MutantFiles):
    async def write(self, path: str, content: bytes, *, mode: int | None = None) -> None:
        await super().write(path, content, mode=mode)
        await self.sandbox.run(Command(argv=("sh", "-c", f"cd ~; chmod a+x ./{path}"), env=ENV))


class KnowsBetterThanModes(MutantFiles):
    async def write(self, path: str, content: bytes, *, mode: int | None = None) -> None:
        await super().write(path, content)


class FollowsLinks(MutantFiles):
    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        kinds = {FileKind.LINK: FileKind.FILE}
        return [replace(info, kind=kinds.get(info.kind, info.kind)) for info in await super().list(path)]


class ListsInAnyOrder(MutantFiles):
    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        return (await super().list(path))[::-1]


class CountsMilliseconds(MutantFiles):
    async def stat(self, path: str) -> FileInfo:
        info = await super().stat(path)
        return replace(info, modified_s=info.modified_s * 1000)


class RemovesNothing(MutantFiles):
    async def remove(self, path: str) -> None:
        await self.stat(path)


class TellsNoPath(MutantFiles):
    async def read(self, path: str, *, limit_bytes: int = 1 << 30) -> bytes:
        try:
            return await super().read(path, limit_bytes=limit_bytes)
        except OSError as error:
            raise OSError(error.errno, error.strerror) from error


class HasNoLimit(MutantFiles):
    async def read(self, path: str, *, limit_bytes: int = 1 << 30) -> bytes:
        return await super().read(path)


class RefusesAsAFailure(MutantFiles):
    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        try:
            return await super().list(path)
        except OSError as error:
            raise BackendError(str(error)) from error


class OutlivesItsSandbox(MutantFiles):
    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        try:
            return await super().list(path)
        except BackendError:
            return []


class ForksWhatIsNow(MutantSandbox):
    async def fork(self, at: Checkpoint, identity: Identity) -> RunningSandbox:
        return await super().fork(await self.checkpoint(), identity)


class SharesWithItsForks(MutantSandbox):
    async def fork(self, at: Checkpoint, identity: Identity) -> RunningSandbox:
        return Shared(self.inner)


class Shared(MutantSandbox):
    async def aclose(self) -> None:
        """Its origin lives on."""


class TellsNothingOfProcesses(MutantSandbox):
    async def checkpoint(
        self, *, files_only: bool = False, beside: Sequence[ForkableProcess | Process] = ()
    ) -> Checkpoint:
        return await super().checkpoint(files_only=True, beside=beside)


class SaysThatAllChanged(MutantSandbox):
    async def checkpoint(
        self, *, files_only: bool = False, beside: Sequence[ForkableProcess | Process] = ()
    ) -> Checkpoint:
        return replace(await super().checkpoint(files_only=files_only, beside=beside), capture=Capture.SEALED)


class ForgetsNothing(MutantSandbox):
    async def forget(self, checkpoint: Checkpoint) -> None:
        """Keep it."""


class SavesDespiteProcesses(MutantSandbox):
    async def save_base(self, folder: Path, *, most_bytes: int) -> None:
        with suppress(NotCapturable):
            await super().save_base(folder, most_bytes=most_bytes)


class SavesWithoutLimit(MutantSandbox):
    async def save_base(self, folder: Path, *, most_bytes: int) -> None:
        await super().save_base(folder, most_bytes=1 << 40)


class ForksSaveOnlyWhatIsNew(MutantSandbox):
    async def fork(self, at: Checkpoint, identity: Identity) -> RunningSandbox:
        return SavesOnlyWhatIsNew(await super().fork(at, identity))


class SavesOnlyWhatIsNew(MutantSandbox):
    async def save_base(self, folder: Path, *, most_bytes: int) -> None:
        await super().save_base(folder, most_bytes=most_bytes)
        (folder / "0/two").unlink()


class _Watched:
    """Notes what was kept last."""

    def __init__(self, inner: ForkableProcess, kept: list[ProcessImage]) -> None:
        self.inner = inner
        self.streams = inner.streams
        self.pid = inner.pid
        self.kept = kept

    async def keep(self, ask: Callable[[], Awaitable[bool]]) -> ProcessImage | None:
        image = await self.inner.keep(ask)
        if image is not None:
            self.kept.append(image)
        return image


class GoesOnAsTheLatest(MutantSandbox):
    def __init__(self, inner: RunningSandbox, kept: list[ProcessImage] | None = None) -> None:
        super().__init__(inner)
        self.kept = [] if kept is None else kept

    @asynccontextmanager
    async def _watch(self, started: AbstractAsyncContextManager[ForkableProcess]) -> AsyncGenerator[ForkableProcess]:
        async with started as process:
            yield _Watched(process, self.kept)

    def start_forkable(
        self, command: Command, *, descriptors: Sequence[int] = ()
    ) -> AbstractAsyncContextManager[ForkableProcess]:
        return self._watch(super().start_forkable(command, descriptors=descriptors))

    def revive(
        self,
        image: ProcessImage,
        *,
        descriptors: Sequence[int] = (),
    ) -> AbstractAsyncContextManager[ForkableProcess]:
        return self._watch(super().revive(self.kept[-1], descriptors=descriptors))

    async def checkpoint(
        self, *, files_only: bool = False, beside: Sequence[ForkableProcess | Process] = ()
    ) -> Checkpoint:
        inner = [process.inner for process in beside if isinstance(process, _Watched)]
        return await super().checkpoint(files_only=files_only, beside=inner)

    async def fork(self, at: Checkpoint, identity: Identity) -> RunningSandbox:
        return GoesOnAsTheLatest(await super().fork(at, identity), self.kept)


class GoesOnWhereItWas(MutantSandbox):
    """Has it go on in the sandbox that it was kept in."""

    origin: RunningSandbox | None = None

    def start_forkable(
        self, command: Command, *, descriptors: Sequence[int] = ()
    ) -> AbstractAsyncContextManager[ForkableProcess]:
        type(self).origin = self.inner
        return super().start_forkable(command, descriptors=descriptors)

    async def fork(self, at: Checkpoint, identity: Identity) -> RunningSandbox:
        return type(self)(await super().fork(at, identity))

    def revive(
        self, image: ProcessImage, *, descriptors: Sequence[int] = ()
    ) -> AbstractAsyncContextManager[ForkableProcess]:
        return (self.origin or self.inner).revive(image, descriptors=descriptors)


class CountsNoPrograms(MutantSandbox):
    known: tuple[ForkableProcess, ...] = ()

    @asynccontextmanager
    async def _start(self, started: AbstractAsyncContextManager[ForkableProcess]) -> AsyncGenerator[ForkableProcess]:
        async with started as process:
            self.known = (process,)
            yield process

    def start_forkable(
        self, command: Command, *, descriptors: Sequence[int] = ()
    ) -> AbstractAsyncContextManager[ForkableProcess]:
        return self._start(super().start_forkable(command, descriptors=descriptors))

    async def checkpoint(
        self, *, files_only: bool = False, beside: Sequence[ForkableProcess | Process] = ()
    ) -> Checkpoint:
        return await super().checkpoint(files_only=files_only, beside=[*beside, *self.known])


class _KeepsAnything:
    def __init__(self, inner: ForkableProcess) -> None:
        self.inner = inner
        self.streams = inner.streams
        self.pid = inner.pid

    async def keep(self, ask: Callable[[], Awaitable[bool]]) -> ProcessImage | None:
        await ask()
        return await self.inner.keep(ask) or _NoImage()


class _NoImage:
    name = "nothing"
    is_gone = False

    async def settled(self) -> None:
        """It is as much there as it will be."""


class KeepsAnything(CountsNoPrograms):
    @asynccontextmanager
    async def _start(self, started: AbstractAsyncContextManager[ForkableProcess]) -> AsyncGenerator[ForkableProcess]:
        async with started as process:
            yield _KeepsAnything(process)


class LeavesPrograms(CountsNoPrograms):
    @asynccontextmanager
    async def _start(self, started: AbstractAsyncContextManager[ForkableProcess]) -> AsyncGenerator[ForkableProcess]:
        stack = AsyncExitStack()
        yield await stack.enter_async_context(started)
        LEFT.append(stack)


LEFT: list[AsyncExitStack] = []


class SaysOnlyThatItIsPaused(MutantSandbox):
    has_paused = False

    @property
    def paused(self) -> bool:
        return self.has_paused

    async def pause(self) -> None:
        self.has_paused = True

    async def resume(self) -> None:
        self.has_paused = False


class DoesNothingWhenItIsPaused(SaysOnlyThatItIsPaused):
    """Whoever asks for something is let in."""


class HangsWhenItIsPaused(MutantSandbox):
    async def run(self, command: Command, *, stdin: bytes = b"", timeout_s: float | None = None) -> Completed:
        if self.paused:
            await anyio.sleep_forever()
        return await super().run(command, stdin=stdin, timeout_s=timeout_s)


class WakesWhatWasStopped(MutantSandbox):
    async def resume(self) -> None:
        await super().resume()
        await self.run(Command(argv=("sh", "-c", "kill -CONT -1; exit 0"), env=ENV))


class OutlivesItsEnd(MutantSandbox):
    async def aclose(self) -> None:
        """A paused one cannot be killed, says its author."""
        if self.paused:
            await self.resume()
        else:
            await super().aclose()


class StartsOnPipesOfItsOwn(MutantSandbox):
    def start_on(self, command: Command, descriptors: Sequence[int]) -> AbstractAsyncContextManager[Process]:
        return self.inner.start(command, descriptors=descriptors)


class LeavesWhatItStarted(MutantSandbox):
    @asynccontextmanager
    async def start_on(self, command: Command, descriptors: Sequence[int]) -> AsyncGenerator[Process]:
        self._left = self.inner.start_on(command, descriptors)
        yield await self._left.__aenter__()


class ForgetsTheSize(MutantSandbox):
    def start_on_terminal(self, command: Command, size: TerminalSize) -> AbstractAsyncContextManager[TerminalProcess]:
        return self.inner.start_on_terminal(command, replace(size, rows=24))


class LeaksEnvironment(Mutant):
    async def prepare(self, template: Template) -> Prepared:
        command = replace(template.command, env={**os.environ, **template.command.env})
        return await super().prepare(replace(template, command=command))


class IgnoresRoots(Mutant):
    async def prepare(self, template: Template) -> Prepared:
        return await super().prepare(replace(template, root=None))


class IgnoresBases(Mutant):
    async def prepare(self, template: Template) -> Prepared:
        return await super().prepare(replace(template, base=None))


class StartsOneForAll(Mutant):
    started: RunningSandbox | None = None

    async def start(self, prepared: Prepared, identity: Identity, *, background: bool = False) -> RunningSandbox:
        if prepared.template.base is None:
            return await super().start(prepared, identity, background=background)
        self.started = self.started or await super().start(prepared, identity, background=background)
        return self.started


class IgnoresBoth(IgnoresRoots):
    async def prepare(self, template: Template) -> Prepared:
        return await super().prepare(replace(template, base=None))


class LeavesThings(Mutant):
    async def leftovers(self) -> Leftovers:
        return Leftovers(processes=1)


class AllAreOne(Mutant):
    async def start(self, prepared: Prepared, identity: Identity, *, background: bool = False) -> RunningSandbox:
        return await super().start(prepared, Identity(sandbox=identity.sandbox), background=background)


class NamesItsForksAfterItself(MutantSandbox):
    async def fork(self, at: Checkpoint, identity: Identity) -> RunningSandbox:
        return await super().fork(at, replace(identity, machine_id=f"{1:032x}"))


class NeverNamesItsForksAfterItself(MutantSandbox):
    async def fork(self, at: Checkpoint, identity: Identity) -> RunningSandbox:
        return await super().fork(at, replace(identity, boot_id=None))


class ConfusesIdentities(Mutant):
    async def start(self, prepared: Prepared, identity: Identity, *, background: bool = False) -> RunningSandbox:
        return await super().start(prepared, replace(identity, env={}), background=background)


def with_files(files: Callable[[RunningSandbox], Files]) -> Callable[[Backend], Mutant]:
    """Return what makes a backend whose sandboxes have wrong files."""
    return lambda backend: Mutant(backend, lambda inner: MutantSandbox(inner, files=files))


def subject(make: Callable[[Backend], Backend]) -> Subject:
    @asynccontextmanager
    async def opened(state: Path) -> AsyncGenerator[Backend]:
        async with open_process_backend(state) as backend:
            yield make(backend)

    return Subject(open=opened)


def layered(sandbox: Callable[[RunningSandbox], RunningSandbox]) -> Subject:
    return local(lambda backend: Mutant(backend, sandbox))


def local(make: Callable[[Backend], Backend]) -> Subject:
    @asynccontextmanager
    async def opened(state: Path) -> AsyncGenerator[Backend]:
        async with open_local_backend(state) as backend:
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
    ("accepts any files", IgnoresBoth, "files of its own is refused", "it is refused when it is prepared"),
    ("cuts in silence", lambda backend: Mutant(backend, CutsInSilence), "beyond 1 MiB", "cut at 1 MiB"),
    (
        "starts on pipes of its own",
        lambda backend: Mutant(backend, StartsOnPipesOfItsOwn),
        "can be started on given",
        "what it says goes straight to them",
    ),
    (
        "leaves what it started",
        lambda backend: Mutant(backend, LeavesWhatItStarted),
        "can be started on given",
        "killed when it is left",
    ),
    (
        "forgets the terminal's size",
        lambda backend: Mutant(backend, ForgetsTheSize),
        "started on a terminal",
        "the size that was asked for",
    ),
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
    (
        "reads the beginning of files",
        with_files(ReadsTheBeginning),
        "what is written is read",
        "it comes back as it is",
    ),
    (
        "begins paths elsewhere",
        with_files(BeginsElsewhere),
        "what is written is read",
        "a relative path begins at the home",
    ),
    ("writes in place", with_files(WritesInPlace), "old or new, never half", "goes on to see the old content"),
    ("replaces links", with_files(ReplacesLinks), "old or new, never half", "mode and link stay"),
    ("makes programs", with_files(MakesPrograms), "old or new, never half", "and no program"),
    ("knows better than modes", with_files(KnowsBetterThanModes), "old or new, never half", "it has the mode"),
    ("follows links", with_files(FollowsLinks), "what is at a path", "each is what it is"),
    ("lists in any order", with_files(ListsInAnyOrder), "what is at a path", "each is what it is, in order"),
    ("counts milliseconds", with_files(CountsMilliseconds), "what is at a path", "seconds since 1970"),
    ("removes nothing", with_files(RemovesNothing), "folders are made", "what was done is seen"),
    ("tells no path", with_files(TellsNoPath), "an OSError with the path", "and the path is told"),
    ("has no limit", with_files(HasNoLimit), "an OSError with the path", "'big' is refused with EFBIG"),
    ("refuses as a failure", with_files(RefusesAsAFailure), "an OSError with the path", "instead: BackendError"),
    ("has files when it is gone", with_files(OutlivesItsSandbox), "files of a sandbox that is gone", "it worked"),
    ("leaves things", LeavesThings, "nothing is left", "nothing is left; seen"),
]


LAYER_MUTANTS: list[tuple[Callable[[RunningSandbox], RunningSandbox], str, str]] = [
    (ForksWhatIsNow, "keeps files as they were", "whoever goes back finds all as it was"),
    (SharesWithItsForks, "neither sees what the other does", "as it was then"),
    (TellsNothingOfProcesses, "what runs is not captured", "it is refused"),
    (SaysThatAllChanged, "nothing changed is told so", "nothing was written"),
    (ForgetsNothing, "a checkpoint that was forgotten", "it worked"),
]


ROOT_MUTANTS: list[tuple[Callable[[Backend], Backend], str, str]] = [
    (IgnoresRoots, "root shows in place", "what is in the root shows"),
    (IgnoresBases, "begins with; none sees", "it begins with what there was"),
    (IgnoresBases, "goes on with the base", "it goes on with what it has changed"),
    (StartsOneForAll, "begins with; none sees", "neither sees what the other does"),
    (lambda backend: Mutant(backend, ForksSaveOnlyWhatIsNew), "saved in turn", "what was saved is whole"),
    (lambda backend: Mutant(backend, SavesDespiteProcesses), "is not saved", "while something runs"),
    (lambda backend: Mutant(backend, SavesWithoutLimit), "is not saved", "more than is allowed"),
]


PROGRAM_MUTANTS: list[tuple[Callable[[RunningSandbox], RunningSandbox], str, str]] = [
    (GoesOnAsTheLatest, "goes on in a fork as it was then", "it can go on where it was, too"),
    (GoesOnWhereItWas, "like any other", "also where it goes on"),
    (CountsNoPrograms, "does not count as running", "a program that nobody says is kept runs"),
    (KeepsAnything, "with threads is not kept", "who does not fork is not kept"),
    (LeavesPrograms, "whose block is left", "nothing of it is left"),
]


IDENTITY_MUTANTS: list[tuple[Callable[[Backend], Backend], str, str]] = [
    (AllAreOne, "shows the names of its identity", "it shows its own names"),
    (lambda backend: Mutant(backend, NamesItsForksAfterItself), "a fork shows the names", "the names that it is given"),
    (
        lambda backend: Mutant(backend, NeverNamesItsForksAfterItself),
        "a fork shows the names",
        "the names that it is given",
    ),
]


PAUSE_MUTANTS: list[tuple[Callable[[RunningSandbox], RunningSandbox], str, str]] = [
    (SaysOnlyThatItIsPaused, "stands still, daemons too", "output stops"),
    (DoesNothingWhenItIsPaused, "is refused at once", "run is refused; seen: 'it worked'"),
    (HangsWhenItIsPaused, "is refused at once", "run is refused at once"),
    (WakesWhatWasStopped, "what was stopped before", "it stays stopped"),
    (OutlivesItsEnd, "a paused sandbox can be closed", "a daemon dies"),
]


@pytest.mark.parametrize(("make", "part", "promise"), PAUSE_MUTANTS, ids=[m[0].__name__ for m in PAUSE_MUTANTS])
async def test_a_broken_promise_about_pausing_is_noticed(
    make: Callable[[RunningSandbox], RunningSandbox], part: str, promise: str, tmp_path: Path
) -> None:
    try:
        with pytest.raises(ContractViolation, match=promise):
            await named(part)(layered(make), tmp_path)
    except BackendUnavailable as gap:
        pytest.skip(f"the local backend cannot run here: {gap}")


@pytest.mark.parametrize(("make", "part", "promise"), PROGRAM_MUTANTS, ids=[m[0].__name__ for m in PROGRAM_MUTANTS])
async def test_a_broken_promise_about_programs_is_noticed(
    make: Callable[[RunningSandbox], RunningSandbox], part: str, promise: str, tmp_path: Path
) -> None:
    try:
        with pytest.raises(ContractViolation, match=promise):
            await named(part)(layered(make), tmp_path)
    except BackendUnavailable as gap:
        pytest.skip(f"the local backend cannot run here: {gap}")
    finally:
        while LEFT:
            await LEFT.pop().aclose()


@pytest.mark.parametrize(
    ("make", "part", "promise"),
    IDENTITY_MUTANTS,
    ids=["all are one", "forks are their origin", "forks are the machine"],
)
async def test_a_broken_promise_about_identities_is_noticed(
    make: Callable[[Backend], Backend], part: str, promise: str, tmp_path: Path
) -> None:
    try:
        with pytest.raises(ContractViolation, match=promise):
            await named(part)(local(make), tmp_path)
    except BackendUnavailable as gap:
        pytest.skip(f"the local backend cannot run here: {gap}")


@pytest.mark.parametrize(("make", "part", "promise"), LAYER_MUTANTS, ids=[m[0].__name__ for m in LAYER_MUTANTS])
async def test_a_broken_promise_about_layers_is_noticed(
    make: Callable[[RunningSandbox], RunningSandbox], part: str, promise: str, tmp_path: Path
) -> None:
    try:
        with pytest.raises(ContractViolation, match=promise):
            await named(part)(layered(make), tmp_path)
    except BackendUnavailable as gap:
        pytest.skip(f"the local backend cannot run here: {gap}")


@pytest.mark.parametrize(("make", "part", "promise"), ROOT_MUTANTS, ids=[m[2] for m in ROOT_MUTANTS])
async def test_a_broken_promise_about_files_of_a_templates_own_is_noticed(
    make: Callable[[Backend], Backend], part: str, promise: str, tmp_path: Path
) -> None:
    try:
        with pytest.raises(ContractViolation, match=promise):
            await named(part)(local(make), tmp_path)
    except BackendUnavailable as gap:
        pytest.skip(f"the local backend cannot run here: {gap}")


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
    assert len(set(titles)) == len(titles) == 69
