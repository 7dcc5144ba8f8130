"""A zygote that has run the program up to its event loop forks what a cold start would be there."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from running import Running, script_in, zygote
from test_fork import FACTS, cold_output

from headstart.backends.zygote import PreloadReport
from headstart.errors import BackendError

pytestmark = pytest.mark.anyio

LOOPS = {
    "asyncio.run": "import asyncio\nasyncio.run(serve())",
    "anyio.run": "import anyio\nanyio.run(serve)",
    "a runner": "import asyncio\nwith asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:\n    runner.run(serve())",
    "a loop by hand": "import asyncio\nloop = asyncio.new_event_loop()\nloop.run_until_complete(serve())\nloop.close()",
    "uvloop": "import uvloop\nuvloop.run(serve())",
}
TWICE = "import time\nbuilt = time.perf_counter_ns()\nasync def serve():\n    print(built, time.perf_counter_ns())\n"


def _indented(source: str) -> str:
    return (
        "async def serve():\n" + "".join(f"    {line}\n" for line in source.strip().splitlines()) + "import asyncio\n"
    )


async def watched(folder: Path, main: str, *, modules: tuple[str, ...] = ()) -> PreloadReport:
    """Audit a program whose code before its loop is `main`."""
    source = f"{main}\nasync def serve():\n    pass\n{LOOPS['asyncio.run']}"
    async with zygote(script_in(folder, source), modules=["asyncio", *modules], advance=True, audit=True) as running:
        assert running.report is not None
        return running.report


@pytest.mark.parametrize("way", LOOPS)
async def test_what_comes_before_the_loop_is_done_once_and_what_comes_after_in_every_fork(
    tmp_path: Path, way: str
) -> None:
    module = LOOPS[way].split()[1]
    async with zygote(script_in(tmp_path, TWICE + LOOPS[way]), modules=["asyncio", module], advance=True) as running:
        first, second = [(await running.output()).split() for _ in range(2)]
    assert first[0] == second[0]
    assert first[1] != second[1]


async def test_a_fork_sees_at_its_loop_what_it_sees_when_started_cold(tmp_path: Path) -> None:
    script = script_in(tmp_path, _indented(FACTS) + "asyncio.run(serve())")
    env = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "WHOSE": "mine"}
    cold = json.loads(cold_output([sys.executable, script, "--x"], env=env, cwd="/").stdout)
    async with zygote(script, modules=["asyncio", "json"], args=["--x"], env=env, advance=True) as running:
        forked = json.loads(await running.output(env=env, cwd="/"))
    assert {**forked, "fds": []} == {**cold, "fds": []}
    assert len(forked["fds"]) == len(cold["fds"])


@pytest.mark.parametrize("end", ["raise SystemExit(3)", "raise ValueError('broken')", "import os; os._exit(4)", "pass"])
async def test_a_program_ends_as_it_ends_when_started_cold(tmp_path: Path, end: str) -> None:
    source = f"import atexit\natexit.register(print, 'bye')\nasync def serve():\n    {end}\n{LOOPS['asyncio.run']}"
    script = script_in(tmp_path, source)
    cold = cold_output([sys.executable, script])
    async with zygote(script, modules=["asyncio"], advance=True) as running:
        started = await running.fork()
        said, complained, code = await started.read(), await started.read(started.stderr), await started.end()
    assert (said, code) == (cold.stdout, cold.returncode)
    assert complained.splitlines()[-1:] == cold.stderr.splitlines()[-1:]
    assert b"headstart" not in complained


async def test_what_is_printed_before_the_loop_is_printed_by_every_fork(tmp_path: Path) -> None:
    source = "print('hello')\nasync def serve():\n    print('and on')\n" + LOOPS["asyncio.run"]
    async with zygote(script_in(tmp_path, source), modules=["asyncio"], advance=True) as running:
        assert [await running.output() for _ in range(2)] == ["hello\nand on\n"] * 2


async def test_each_fork_reads_its_own_input(tmp_path: Path) -> None:
    source = "import sys\nkept = sys.stdin\nasync def serve():\n    print(kept.readline())\n" + LOOPS["asyncio.run"]
    async with zygote(script_in(tmp_path, source), modules=["asyncio"], advance=True) as running:
        for word in (b"one", b"two"):
            started = await running.fork()
            os.write(started.stdin, word + b"\n")
            assert (await started.read()).strip() == word


async def test_forks_draw_different_random_numbers(tmp_path: Path) -> None:
    source = "import random\nasync def serve():\n    print(random.random())\n" + LOOPS["asyncio.run"]
    async with zygote(script_in(tmp_path, source), modules=["asyncio", "random"], advance=True) as running:
        assert len({await running.output() for _ in range(4)}) == 4


@pytest.mark.parametrize("advance", [False, True])
async def test_a_server_object_seals_with_another_key_in_every_fork(tmp_path: Path, advance: bool) -> None:
    script_in(tmp_path, "from mcp.server.mcpserver import MCPServer\nserver = MCPServer('early')", "early.py")
    main = "import early\nfrom mcp.server.mcpserver import MCPServer\nlater = MCPServer('later')\n"
    serve = (
        "import json\nboundaries = [s._lowlevel_server.middleware[-1] for s in (early.server, later)]\n"
        "async def serve():\n"
        "    print(json.dumps([key.hex() for b in boundaries for key in b._security.codec._ring]))\n"
    )
    source = main + serve + LOOPS["asyncio.run"]
    modules = ["asyncio", "mcp.server.request_state", "mcp.server.mcpserver", "early"]
    async with zygote(script_in(tmp_path, source), modules=modules, advance=advance) as running:
        keys = [json.loads(await running.output()) for _ in range(3)]
    assert [len(each) for each in keys] == [2, 2, 2]
    assert len({key for each in keys for key in each}) == 6


async def test_a_second_loop_is_made_as_usual(tmp_path: Path) -> None:
    source = "async def serve():\n    print('once')\n" + LOOPS["asyncio.run"] + "\nasyncio.run(serve())"
    async with zygote(script_in(tmp_path, source), modules=["asyncio"], advance=True) as running:
        assert await running.output() == "once\nonce\n"


@pytest.mark.parametrize("source", ["print('done')", "raise SystemExit(2)", "1 / 0"])
async def test_a_program_that_ends_before_its_loop_is_told(tmp_path: Path, source: str) -> None:
    with pytest.raises(BackendError, match="ended before it made an event loop"):
        async with zygote(script_in(tmp_path, "import asyncio\n" + source), modules=["asyncio"], advance=True):
            pass


async def test_a_program_that_waits_for_its_client_before_its_loop_never_arrives(tmp_path: Path) -> None:
    source = "import sys\nsys.stdin.read()\nasync def serve():\n    pass\n" + LOOPS["asyncio.run"]
    with pytest.raises(BackendError, match="did not answer within"):
        async with zygote(script_in(tmp_path, source), modules=["asyncio"], advance=True, timeout_s=1.0):
            pass


async def test_a_program_without_asyncio_is_told(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="imports no asyncio"):
        async with zygote(script_in(tmp_path, "print('sync')"), advance=True):
            pass


@pytest.mark.parametrize(
    ("main", "what"),
    [
        ("import uuid; x = uuid.uuid4()", "random bytes"),
        ("import uuid; x = uuid.uuid1()", "a unique id"),
        ("import secrets; x = secrets.token_hex(2)", "random bytes"),
        ("import os; x = os.urandom(4)", "random bytes"),
        ("import random; x = random.random()", "random numbers"),
        ("import random; x = random.Random().random()", "random numbers"),
        ("import os; x = os.getpid()", "pid"),
    ],
)
async def test_what_is_another_at_every_start_is_recorded(tmp_path: Path, main: str, what: str) -> None:
    assert what in (await watched(tmp_path, main, modules=("uuid", "secrets", "random"))).drew


async def test_a_log_line_is_no_reading_of_the_process_id(tmp_path: Path) -> None:
    main = "import logging\nlogging.getLogger('x').warning('starting')"
    report = await watched(tmp_path, main, modules=("logging",))
    assert (report.drew, report.looked_at, report.unforkable()) == ({}, {}, None)


@pytest.mark.parametrize(
    "look", ["open(P).read()", "os.stat(P)", "os.path.exists(P)", "os.listdir(os.path.dirname(P))"]
)
async def test_paths_that_are_looked_at_before_the_loop_are_recorded(tmp_path: Path, look: str) -> None:
    (program := tmp_path / "program").mkdir()
    (data := tmp_path / "data").mkdir()
    (data / "settings").write_text("x")
    report = await watched(program, f"import os\nP = {str(data / 'settings')!r}\n{look}")
    assert list(report.looked_at) in ([str(data / "settings")], [str(data)])


async def test_a_thread_started_before_the_loop_makes_it_unforkable(tmp_path: Path) -> None:
    main = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    assert "threads" in str((await watched(tmp_path, main, modules=("threading",))).unforkable())


async def test_an_alarm_set_before_the_loop_makes_it_unforkable(tmp_path: Path) -> None:
    assert "alarm" in str((await watched(tmp_path, "import signal\nsignal.alarm(1000)")).unforkable())


async def test_a_program_that_moves_before_its_loop_is_there_in_every_fork(tmp_path: Path) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    source = (
        f"import os\nos.chdir({str(elsewhere)!r})\nasync def serve():\n    print(os.getcwd())\n{LOOPS['asyncio.run']}"
    )
    async with zygote(script_in(tmp_path, source), modules=["asyncio"], advance=True) as running:
        assert await running.output(cwd="/") == f"{elsewhere}\n"


async def test_a_file_left_open_before_the_loop_makes_it_unforkable(tmp_path: Path) -> None:
    main = f"kept = open({str(tmp_path / 'log')!r}, 'w')"
    assert "files" in str((await watched(tmp_path, main)).unforkable())


async def test_a_fork_outlives_its_zygote(tmp_path: Path) -> None:
    source = "import sys\nasync def serve():\n    print(sys.stdin.readline())\n" + LOOPS["asyncio.run"]
    running: Running
    async with zygote(script_in(tmp_path, source), modules=["asyncio"], advance=True) as running:
        started = await running.fork()
        running.process.close()
        os.write(started.stdin, b"still here\n")
        assert (await started.read()).strip() == b"still here"
