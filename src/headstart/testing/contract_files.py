"""Promises about a sandbox's files: what is read and written, and what is refused."""

from __future__ import annotations

import errno
import time
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from headstart.backends.contract import FileKind
from headstart.errors import BackendError
from headstart.testing.contract_trial import Check, Trial, check, expect

__all__ = ["FILE_CHECKS"]

LARGE: Final = bytes(range(256)) * 40_000
"""About 10 MB, more than any pipe or socket holds."""


@check("what is written is read, by us and by commands, and so is what commands write")
async def there_and_back(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        for content in (b"", b"hello\n", LARGE):
            await sandbox.files.write("some/folder/data", content)
            expect(await sandbox.files.read("some/folder/data") == content, "it comes back as it is", len(content))
        seen = await trial.sh(sandbox, 'cd "$HOME"; wc -c < some/folder/data; printf "\\377" > made')
        expect(seen.stdout.strip() == b"%d" % len(LARGE), "a relative path begins at the home", seen)
        home = (await trial.sh(sandbox, 'printf %s "$HOME"')).stdout.decode()
        expect(await sandbox.files.read(f"{home}/made") == b"\xff", "a full path is the sandbox's", home)


@check("a file that is written is old or new, never half, and keeps its mode; a link's target is written")
async def whole_or_not(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        await trial.sh(sandbox, "cd ~; echo old > script; chmod 751 script; ln -s script link; ln script before")
        await sandbox.files.write("link", b"new")
        seen = await trial.sh(sandbox, "cd ~; stat -c %a script; cat script; readlink link; ls -A | wc -l; cat before")
        *told, before = seen.stdout.splitlines()
        expect(before == b"old", "who has the old file open goes on to see the old content", before)
        expect(
            [*map(bytes.strip, told)] == [b"751", b"newscript", b"3"],
            "mode and link stay, nothing is left beside",
            seen,
        )
        await sandbox.files.write("~new", b"")
        mode = (await sandbox.files.stat("~new")).mode
        expect(mode & 0o111 == 0 and mode & 0o600 == 0o600, "a new file is its owner's, and no program", oct(mode))
        for given in (0o700, 0o4755, 0o640):  # first of a new file, then of one that is there
            await sandbox.files.write("tool", b"", mode=given)
            mode = (await sandbox.files.stat("tool")).mode
            expect(mode == given & 0o777, "it has the mode that is given, and is nobody's to become", oct(mode))


@check("what is at a path is told: kind, size, mode, time; a link is itself; folders are listed by name")
async def what_there_is(trial: Trial) -> None:
    began = time.time()
    async with trial.sandbox() as sandbox:
        await trial.sh(sandbox, "cd ~; mkdir box; cd box; printf 12345 > b; ln -s /nowhere a; mkfifo c; mkdir d")
        kinds = {info.name: info.kind for info in await sandbox.files.list("box")}
        wanted = {"a": FileKind.LINK, "b": FileKind.FILE, "c": FileKind.OTHER, "d": FileKind.FOLDER}
        expect(list(kinds.items()) == list(wanted.items()), "each is what it is, in order", kinds)
        told = await sandbox.files.stat("box/b")
        expect((told.name, told.size_bytes, told.mode & 0o600) == ("b", 5, 0o600), "facts are right", told)
        expect(abs(told.modified_s - began) < 120, "the time is in seconds since 1970", told.modified_s)
        expect((await sandbox.files.stat("box/a")).kind is FileKind.LINK, "a dangling link is there", told)


@check("folders are made, things are renamed and removed")
async def changes(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        await sandbox.files.make_folder("a/b")
        await sandbox.files.make_folder("a/b")
        await sandbox.files.write("a/b/c", b"x")
        await sandbox.files.rename("a/b/c", "a/d")
        await sandbox.files.remove("a/b")
        expect([info.name for info in await sandbox.files.list("a")] == ["d"], "what was done is seen", "else")
        await sandbox.files.remove("a/d")
        expect(await sandbox.files.list("a") == [], "it is gone", "not")


@check("what cannot be done is an OSError with the path, and the sandbox lives on")
async def refusals(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        files = sandbox.files
        await trial.sh(sandbox, "cd ~; mkdir -p full/x; mkfifo pipe; echo 123456 > big")
        cases: tuple[tuple[str, int, Callable[[str], Awaitable[object]]], ...] = (
            ("gone", errno.ENOENT, files.read),
            ("gone", errno.ENOENT, files.list),
            ("gone", errno.ENOENT, files.stat),
            ("gone", errno.ENOENT, files.remove),
            ("full", errno.EISDIR, files.read),
            ("big", errno.ENOTDIR, files.list),
            ("full", errno.ENOTEMPTY, files.remove),
            ("pipe", errno.EINVAL, files.read),
            ("/dev/zero", errno.EINVAL, files.read),
            ("/proc/self/status", errno.EINVAL, files.read),
            ("a\0b", errno.EINVAL, files.read),
            ("big", errno.EFBIG, lambda path: files.read(path, limit_bytes=6)),
            ("full", errno.EISDIR, lambda path: files.write(path, b"")),
            ("big/x", errno.ENOTDIR, lambda path: files.write(path, b"")),
        )
        for path, number, act in cases:
            await _expect_refused(act, path, number)
        expect(await files.read("big", limit_bytes=7) == b"123456\n", "the limit is what is allowed", "less")


async def _expect_refused(act: Callable[[str], Awaitable[object]], path: str, number: int) -> None:
    try:
        with anyio.fail_after(10):
            seen = await act(path)
    except OSError as error:
        expect(error.errno == number, f"{path!r} is refused with {errno.errorcode[number]}", error)
        expect(error.filename == path, "and the path is told", error.filename)
    else:
        expect(kept=False, promise=f"{path!r} is refused with {errno.errorcode[number]}", seen=seen)


@check("files of a sandbox that is gone are a BackendError")
async def after_the_end(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        await sandbox.files.write("x", b"")
        await sandbox.aclose()
        for act in (sandbox.files.read, sandbox.files.list):
            try:
                await act("x")
            except BackendError:
                continue
            expect(kept=False, promise="BackendError", seen="it worked")


FILE_CHECKS: Final[tuple[Check, ...]] = (
    there_and_back,
    whole_or_not,
    what_there_is,
    changes,
    refusals,
    after_the_end,
)
