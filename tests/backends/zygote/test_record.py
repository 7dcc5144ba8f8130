"""A recorded program runs as it runs by itself, and tells what it has imported when asked."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from running import WAIT_S, script_in

from headstart.backends.zygote import EntryPlan, record_command, take_recording
from headstart.errors import BackendError

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def recorded(plan: EntryPlan) -> AsyncGenerator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """Start a program under the recorder; yields it and the control socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(  # noqa: ASYNC220 - a plain parent
            record_command(plan, control=theirs.fileno()),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    with process, ours:
        try:
            yield process, ours
        finally:
            process.kill()


async def line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    with anyio.fail_after(WAIT_S):
        return await anyio.to_thread.run_sync(process.stdout.readline)


def program(script: str, *args: str) -> EntryPlan:
    return EntryPlan(interpreter=sys.executable, entry=(script,), args=args)


async def test_modules_come_in_import_order_with_their_files(tmp_path: Path) -> None:
    inner = script_in(tmp_path, "", "inner.py")
    outer = script_in(tmp_path, "import inner", "outer.py")
    script = script_in(
        tmp_path, "import outer, os; os.environ['SET'] = '1'; print('up', flush=True); input(); print('on')"
    )
    async with recorded(program(script)) as (process, control):
        assert await line(process) == b"up\n"
        recording = await take_recording(control)
        assert recording.modules.index("outer") < recording.modules.index("inner")
        assert {inner, outer} <= set(recording.files)
        assert not {"__main__", "_headstart_zygote.wire"} & set(recording.modules)
        assert recording.environ_changed == {"SET"}
        assert recording.facts.implementation == "cpython"
        assert recording.facts.version[:2] == sys.version_info[:2]
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert await line(process) == b"on\n"
        assert await anyio.to_thread.run_sync(process.wait, WAIT_S) == 0


async def test_modules_that_import_each_other_come_from_the_side_that_the_program_came_from(tmp_path: Path) -> None:
    script_in(tmp_path, "import second", "first.py")
    script_in(tmp_path, "import first", "second.py")
    script = script_in(tmp_path, "import first; print('up', flush=True); input()")
    async with recorded(program(script)) as (process, control):
        await line(process)
        modules = (await take_recording(control)).modules
    assert modules[-2:] == ("first", "second")


async def test_modules_that_cannot_be_imported_by_name_are_left_out(tmp_path: Path) -> None:
    source = (
        "import sys, types, os; sys.modules['made.up'] = types.ModuleType('made.up'); print('up', flush=True); input()"
    )
    async with recorded(program(script_in(tmp_path, source))) as (process, control):
        await line(process)
        modules = set((await take_recording(control)).modules)
    assert "os" in modules
    assert not modules & {"made.up", "os.path"}


@pytest.mark.parametrize(
    "source", ["import sys; print(sys.argv); sys.exit(5)", "1 / 0", "import os; os.kill(os.getpid(), 15)"]
)
async def test_a_recorded_program_ends_as_it_ends_by_itself(tmp_path: Path, source: str) -> None:
    script = script_in(tmp_path, source)
    cold = await anyio.run_process([sys.executable, script, "--x"], check=False)
    async with recorded(program(script, "--x")) as (process, _):
        out, err = await anyio.to_thread.run_sync(lambda: process.communicate(timeout=WAIT_S))
        assert (out, err, process.returncode) == (cold.stdout, cold.stderr, cold.returncode)


async def test_a_program_that_has_ended_cannot_be_asked(tmp_path: Path) -> None:
    async with recorded(program(script_in(tmp_path, "pass"))) as (process, control):
        await anyio.to_thread.run_sync(process.wait, WAIT_S)
        with pytest.raises(BackendError, match="the recorder"):
            await take_recording(control)


async def test_the_recorder_starts_where_the_launcher_would_have_gone(tmp_path: Path) -> None:
    script = script_in(tmp_path, "import os, sys; print(os.getcwd() == sys.path[0], flush=True)")
    plan = EntryPlan(interpreter=sys.executable, entry=(script,), cwd=str(tmp_path))
    async with recorded(plan) as (process, control):
        with contextlib.closing(control):
            assert await line(process) == b"True\n"
