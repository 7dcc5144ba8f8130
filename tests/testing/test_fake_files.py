"""The files of a fake sandbox do, and refuse, what those of a real one do."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from headstart.backends.contract import Command, FileInfo, FileKind, Files, Identity, RunningSandbox, Template
from headstart.backends.process import open_process_backend
from headstart.clock import ManualClock
from headstart.errors import BackendError
from headstart.ids import SandboxId
from headstart.testing.fake_backend import FakeBackend
from headstart.testing.fake_files import FakeFiles

pytestmark = pytest.mark.anyio

Act = Callable[[Files], Awaitable[object]]


async def outcome(files: Files, act: Act) -> object:
    """What an act returns, as far as that is the same everywhere, or how it is refused."""
    try:
        with anyio.fail_after(10):
            told = await act(files)
    except OSError as error:
        return type(error), errno.errorcode[error.errno or 0], error.filename
    match told:
        case FileInfo():
            return told.name, told.kind
        case list():
            return [(info.name, info.kind) for info in told]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        case _:
            return told


STORY: list[tuple[str, Act]] = [
    ("an empty home", lambda files: files.list()),
    ("a new file", lambda files: files.write("a/b/file", b"12345")),
    ("what was written", lambda files: files.read("a/b/file")),
    ("just enough room", lambda files: files.read("a/b/file", limit_bytes=5)),
    ("too little room", lambda files: files.read("a/b/file", limit_bytes=4)),
    ("dots", lambda files: files.read("./a//b/../b/file")),
    ("dots through what is not there", lambda files: files.read("gone/../a/b/file")),
    ("dots through a file", lambda files: files.read("a/b/file/../file")),
    ("dots to be made", lambda files: files.write("made/../x", b"")),
    ("a listing", lambda files: files.list()),
    ("a listing of a file", lambda files: files.list("a/b/file")),
    ("a listing of nothing", lambda files: files.list("gone")),
    ("facts of a file", lambda files: files.stat("a/b/file")),
    ("facts of a folder", lambda files: files.stat("a/b/")),
    ("facts of a file with a slash", lambda files: files.stat("a/b/file/")),
    ("a new file with a slash", lambda files: files.write("a/slash/", b"")),
    ("facts of the root", lambda files: files.stat("/")),
    ("facts of nothing", lambda files: files.stat("gone")),
    ("nothing to read", lambda files: files.read("gone")),
    ("a folder to read", lambda files: files.read("a")),
    ("a NUL", lambda files: files.read("a\0b")),
    ("a NUL to write", lambda files: files.write("a\0b", b"")),
    ("a long name", lambda files: files.write("n" * 256, b"")),
    ("a long path", lambda files: files.read("n/" * 200_000)),
    ("the longest name", lambda files: files.read("n" * 255)),
    ("a folder to write", lambda files: files.write("a", b"")),
    ("below a file", lambda files: files.write("a/b/file/x", b"")),
    ("a folder that is there", lambda files: files.make_folder("a/b")),
    ("a folder in place of a file", lambda files: files.make_folder("a/b/file")),
    ("a folder below a file", lambda files: files.make_folder("a/b/file/x")),
    ("folders", lambda files: files.make_folder("deep/er/est")),
    ("a move of nothing", lambda files: files.rename("gone", "a/c")),
    ("a move to nowhere", lambda files: files.rename("a/b/file", "gone/c")),
    ("a move onto a folder", lambda files: files.rename("a/b/file", "deep/er/est")),
    ("a folder onto a file", lambda files: files.rename("deep", "a/b/file")),
    ("a folder onto a full one", lambda files: files.rename("deep", "a")),
    ("a folder into itself", lambda files: files.rename("deep", "deep/er/x")),
    ("a move to itself", lambda files: files.rename("a/b/file", "a/b/file")),
    ("a folder onto an empty one", lambda files: files.rename("a/b", "deep/er/est")),
    ("what moved with it", lambda files: files.read("deep/er/est/file")),
    ("what is left", lambda files: files.list("a")),
    ("a move onto a file", lambda files: files.rename("deep/er/est/file", "x")),
    ("what replaced it", lambda files: files.read("x")),
    ("a full folder's removal", lambda files: files.remove("deep")),
    ("a removal of nothing", lambda files: files.remove("gone")),
    ("a removal", lambda files: files.remove("x")),
    ("an empty folder's removal", lambda files: files.remove("deep/er/est")),
    ("what is there at the end", lambda files: files.list()),
]


async def test_the_fake_says_what_a_real_sandbox_says(tmp_path: Path) -> None:
    fake = FakeFiles()
    async with open_process_backend(tmp_path) as backend:
        prepared = await backend.prepare(Template(name="cat", command=Command(argv=("cat",))))
        sandbox: RunningSandbox = await backend.start(prepared, Identity(sandbox=SandboxId("sbx_1")))
        for title, act in STORY:
            assert (title, await outcome(fake, act)) == (title, await outcome(sandbox.files, act))
        await sandbox.aclose()


async def test_facts_tell_size_mode_and_when_it_was_changed() -> None:
    clock = ManualClock(wall_s=1000)
    files = FakeFiles("/root", clock=clock)
    clock.advance(5)
    await files.write("box/file", b"12345")
    assert await files.stat("box/file") == FileInfo(
        name="file", path="/root/box/file", kind=FileKind.FILE, size_bytes=5, mode=0o644, modified_s=1005
    )
    assert [info.path for info in await files.list()] == ["/root/box"]
    assert [info.name for info in await files.list("/")] == ["root", "tmp"]


async def test_nobody_can_change_what_was_written_from_outside() -> None:
    files, content = FakeFiles(), bytearray(b"old")
    await files.write("x", content)  # pyright: ignore[reportArgumentType]
    content[:] = b"new"
    assert await files.read("x") == b"old"


async def sandbox_of(backend: FakeBackend, name: str) -> RunningSandbox:
    prepared = await backend.prepare(Template(name="cat", command=Command(argv=("cat",)), private_home="/home/me"))
    return await backend.start(prepared, Identity(sandbox=SandboxId(name)))


async def test_every_sandbox_has_files_of_its_own() -> None:
    async with FakeBackend() as backend:
        mine, yours = [await sandbox_of(backend, name) for name in ("sbx_1", "sbx_2")]
        await mine.files.write("x", b"mine")
        assert await mine.files.read("/home/me/x") == b"mine"
        with pytest.raises(FileNotFoundError):
            await yours.files.read("x")


OPERATIONS: list[Act] = [
    lambda files: files.read("x"),
    lambda files: files.write("x", b""),
    lambda files: files.list(),
    lambda files: files.stat("x"),
    lambda files: files.make_folder("y"),
    lambda files: files.rename("x", "y"),
    lambda files: files.remove("x"),
]


@pytest.mark.parametrize("end", ["closed", "lost"])
async def test_files_of_a_fake_that_is_gone_are_a_backend_error(end: str) -> None:
    async with FakeBackend() as backend:
        sandbox = await sandbox_of(backend, "sbx_1")
        await sandbox.files.write("x", b"")
        if end == "closed":
            await sandbox.aclose()
        else:
            backend.lose(sandbox.id)
        for act in OPERATIONS:
            with pytest.raises(BackendError, match="sbx_1 is gone"):
                await act(sandbox.files)
