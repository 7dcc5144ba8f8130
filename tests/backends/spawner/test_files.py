"""Files that are written into a sandbox are there whole, or it is as if nobody had tried."""

from __future__ import annotations

import errno
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from tests.backends.local.driving import output, sandbox_in, template

from headstart.backends.contract import Command, Files, Identity, Limits, RunningSandbox, Template
from headstart.backends.process import open_process_backend
from headstart.ids import SandboxId

pytestmark = pytest.mark.anyio

OLD, NEW = b"old", b"new" * 2_000_000


@asynccontextmanager
async def process_sandbox(folder: Path) -> AsyncGenerator[RunningSandbox]:
    async with open_process_backend(folder) as backend:
        prepared = await backend.prepare(Template(name="cat", command=Command(argv=("cat",))))
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("sbx_1")))
        try:
            yield sandbox
        finally:
            await sandbox.aclose()


async def sizes(files: Files) -> dict[str, int]:
    return {info.name: info.size_bytes for info in await files.list("box")}


async def test_a_full_folder_is_told_with_the_path_and_keeps_the_old_content(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path, template(limits=Limits(scratch_bytes=5_000_000))) as sandbox:
        with anyio.fail_after(30):
            await sandbox.files.write("box/x", OLD)
            for path in ("box/x", "box/another"):
                with pytest.raises(OSError, match="No space left") as refused:
                    await sandbox.files.write(path, NEW)
                assert (refused.value.errno, refused.value.filename) == (errno.ENOSPC, path)
            assert await sizes(sandbox.files) == {"x": 3}
            assert await sandbox.files.read("box/x") == OLD
            await sandbox.files.write("box/x", NEW[:4_000_000])  # what failed takes no room


async def test_a_folder_that_was_filled_with_long_names_is_refused_and_others_are_listed(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        fill = (
            "name=$(printf '%0230d' 0); for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do mkdir $name; cd $name; done;"
            " i=0; while [ $i -lt 3000 ]; do : > $name$i; i=$((i + 1)); done; pwd"
        )
        deep = (await output(sandbox, fill)).strip()
        with pytest.raises(OSError, match="more in it than can be listed") as told:
            await sandbox.files.list(deep)
        assert (told.value.errno, told.value.filename) == (errno.EFBIG, deep)
        assert [info.name for info in await sandbox.files.list(".")] == ["0" * 230]


async def test_a_folder_that_may_not_be_written_is_told_with_the_path(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        with anyio.fail_after(30):
            for path in ("/usr/x", "/usr/new/x"):
                with pytest.raises(OSError, match=path) as refused:
                    await sandbox.files.write(path, NEW)
                assert refused.value.errno in {errno.EROFS, errno.EACCES}
            assert await output(sandbox, "ls -d /usr/*x /usr/.x* 2>/dev/null; true") == ""


async def test_a_write_that_is_cancelled_half_way_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headstart.backends.spawner.files._CHUNK_BYTES", 1)  # six million steps
    async with process_sandbox(tmp_path) as sandbox:
        await sandbox.files.write("box/x", OLD)
        with anyio.fail_after(30), anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(sandbox.files.write, "box/x", NEW)
                while sum((await sizes(sandbox.files)).values()) < 10:
                    pass
                assert len(await sizes(sandbox.files)) == 2
                scope.cancel()
        assert scope.cancelled_caught
        assert await sizes(sandbox.files) == {"x": 3}
        assert await output(sandbox, "cat ~/box/x") == "old"


async def test_a_write_that_is_cancelled_at_any_step_is_done_whole_or_not_at_all(tmp_path: Path) -> None:
    written = 0
    async with process_sandbox(tmp_path) as sandbox:
        for step in range(60):
            await sandbox.files.write("box/x", OLD)
            with anyio.fail_after(30), anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(sandbox.files.write, "box/x", NEW)
                    for _ in range(step):
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()
            content = await sandbox.files.read("box/x")
            assert content in (OLD, NEW)
            assert await sizes(sandbox.files) == {"x": len(content)}
            written += content == NEW
    assert written < 60
