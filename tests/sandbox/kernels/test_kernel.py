"""`run_code`: cells of Python that keep their state, whatever they do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.machine import where_memory_is_limited, where_processes_may_be_traced

import headstart
from headstart.errors import BackendError, ConfigError

pytestmark = pytest.mark.anyio

PYTHONS = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3"), key=lambda path: path.parts[-3])
OLD_ENOUGH = [path for path in PYTHONS if int(path.parts[-3].split(".")[1]) >= 8]


async def run(box: headstart.Sandbox, code: str, **more: Any) -> headstart.CellResult:
    with anyio.fail_after(60):
        return await box.run_code(code, **more)


async def test_cells_share_their_variables_imports_and_functions(box: headstart.Sandbox) -> None:
    assert await run(box, "import math\nx = 1\ndef twice(n):\n    return 2 * n") == headstart.CellResult()
    assert (await run(box, "twice(x) + math.floor(0.5)")).text == "2"
    assert (await run(box, "_ + 1")).text == "3"
    assert (await run(box, "__name__, x.__class__.__module__")).text == "('__main__', 'builtins')"


async def test_the_last_expressions_value_is_told_as_in_a_console(box: headstart.Sandbox) -> None:
    assert (await run(box, "'a\\n'")).text == "'a\\n'"
    assert (await run(box, "None")).text is None
    assert (await run(box, "y = 3")).text is None
    assert (await run(box, "y\ny = 4")).text is None
    assert (await run(box, "'doc'")).text == "'doc'"
    assert (await run(box, "")).text is None
    assert (await run(box, "from __future__ import annotations\n1")).text == "1"
    assert (await run(box, "def f(a: nonesuch): pass\nf.__annotations__")).text == "{'a': 'nonesuch'}"


async def test_what_a_cell_and_its_children_say_comes_with_its_result(box: headstart.Sandbox) -> None:
    code = (
        "import os, sys\nprint('printed', end='')\nos.write(1, b'|raw|')\nsys.stdout.buffer.write(b'buffered')\n"
        "os.system('echo child; echo error >&2')\nsys.stderr.write('told')\nprint('last', end='')"
    )
    done = await run(box, code)
    assert sorted(done.stdout) == sorted("printed|raw|bufferedchild\nlast")
    assert done.stderr == "error\ntold"
    assert (await run(box, "2")).stdout == ""


async def test_an_exception_is_data_with_a_traceback_of_the_users_code_alone(box: headstart.Sandbox) -> None:
    await run(box, "def f(n):\n    return 1 / n")
    done = await run(box, "print('before')\nf(0)")
    assert done.error is not None
    assert (done.error.type, done.error.message, done.stdout) == ("ZeroDivisionError", "division by zero", "before\n")
    assert not done.ok
    lines = done.error.traceback.splitlines()
    assert [line.strip() for line in lines if line.startswith("  File")] == [
        'File "<cell 2>", line 2, in <module>',
        'File "<cell 1>", line 2, in f',
    ]
    assert "    return 1 / n" in lines
    done = await run(box, "import json\njson.loads('{')")
    assert done.error is not None
    assert done.error.type == "json.decoder.JSONDecodeError"


async def test_what_cannot_be_code_is_data_as_well(box: headstart.Sandbox) -> None:
    for code, kinds in (
        ("a b", {"SyntaxError"}),
        ("x = '\0'", {"SyntaxError", "ValueError"}),
        ("x = '\ud800'", {"UnicodeEncodeError"}),
        ("  x = 1", {"IndentationError"}),
        ("x = 1\n return x", {"IndentationError"}),
        ("return 1", {"SyntaxError"}),
        ("(" * 5000 + ")" * 5000, {"SyntaxError", "MemoryError", "RecursionError"}),
        ("-" * 100_000 + "1", {"RecursionError", "MemoryError", "KernelLost"}),
        ("def f(): f()\nf()", {"RecursionError"}),
        ("class E(Exception):\n    def __str__(self): raise SystemExit(1)\nraise E", {"E"}),
        ("class R:\n    def __repr__(self): raise LookupError\nR()", {"LookupError"}),
    ):
        done = await run(box, code)
        assert done.error is not None
        assert done.error.type in kinds
        assert len(done.error.traceback) < 100_000
    assert (await run(box, "1")).text == "1"
    with pytest.raises(ConfigError, match="bytes is no text"):
        await box.run_code(b"1")  # pyright: ignore[reportArgumentType]


async def test_large_code_and_large_values_pass_and_what_is_too_long_is_cut(box: headstart.Sandbox) -> None:
    assert (await run(box, f"x = '{'a' * 10_000_000}'\nlen(x)")).text == "10000000"
    done = await run(box, "x")
    assert (len(done.text or ""), done.truncated) == (1 << 20, True)
    done = await run(box, "raise ValueError(x)")
    assert done.error is not None
    assert len(done.error.message) + len(done.error.traceback) < 200_000


async def test_leaving_python_ends_the_cell_and_not_the_kernel(box: headstart.Sandbox) -> None:
    for code, message in (
        ("import sys\nx = 1\nsys.exit(3)", "3"),
        ("quit()", "None"),
        ("raise SystemExit('no')", "no"),
    ):
        done = await run(box, code)
        assert done.error is not None
        assert (done.error.type, done.error.message, done.lost) == ("SystemExit", message, False)
    assert (await run(box, "x")).text == "1"


async def test_a_cell_may_break_the_modules_that_it_shares_with_its_kernel(box: headstart.Sandbox) -> None:
    assert (await run(box, "import json, os\njson.dumps = json.loads = os.read = os.write = None\nx = 1")).ok
    assert (await run(box, "import sys\nsys.stdout = None\nsys.modules.clear()\nx")).text == "1"
    assert (await run(box, "del __builtins__\nglobals().clear()")).ok
    assert (await run(box, "print(1)\n1")).stdout == "1\n"
    done = await run(box, "1 / 0")
    assert done.error is not None
    assert done.error.type == "ZeroDivisionError"


async def test_input_is_empty(box: headstart.Sandbox) -> None:
    for _ in range(2):
        done = await run(box, "input()")
        assert done.error is not None
        assert done.error.type == "EOFError"
        await run(box, "import sys\nsys.stdin.close()")
    assert (await run(box, "import subprocess\nsubprocess.run(['cat'], capture_output=True).stdout")).text == "b''"


async def test_await_is_possible_and_its_loop_stays(box: headstart.Sandbox) -> None:
    await run(box, "import asyncio\nqueue = asyncio.Queue()")
    assert (
        await run(
            box,
            "async def get():\n    return await queue.get()\ntask = asyncio.get_running_loop().create_task(get())\nawait asyncio.sleep(0)",
        )
    ).ok
    assert (await run(box, "await queue.put(7)\nawait task")).text == "7"
    done = await run(box, "await asyncio.sleep(1000)", timeout_s=0.3)
    assert done.error is not None
    assert (done.error.type, done.timed_out, done.lost) == ("KeyboardInterrupt", True, False)
    assert (await run(box, "asyncio.run(asyncio.sleep(0, 'own'))")).text == "'own'"
    done = await run(box, "await asyncio.sleep(0)\nraise LookupError('mine')")
    assert done.error is not None
    assert "asyncio" not in done.error.traceback


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(1000)",
        "import os; os.system('sleep 1000')",
        "import subprocess; subprocess.run(['sleep', '1000'])",
    ],
    ids=["a loop", "a sleep", "a shell", "a child"],
)
async def test_a_cell_that_takes_too_long_is_interrupted_and_keeps_its_state(box: headstart.Sandbox, code: str) -> None:
    done = await run(box, f"x = 1\nprint('so far')\n{code}\nx = 2", timeout_s=0.3)
    assert (done.timed_out, done.lost, done.stdout) == (True, False, "so far\n")
    if "system" not in code:  # that tells the status, and goes on
        assert done.error is not None
        assert done.error.type == "KeyboardInterrupt"
        assert (await run(box, "x")).text == "1"


async def test_a_late_interrupt_never_hits_the_next_cell(box: headstart.Sandbox) -> None:
    await run(box, "import time")
    for number in range(40):
        await run(box, "time.sleep(0.02)", timeout_s=0.0195 + number / 40_000)
        assert (await run(box, "for i in range(20_000): pass")).error is None


async def test_a_cell_that_does_not_react_loses_its_kernel_and_that_is_told(box: headstart.Sandbox) -> None:
    await run(box, "x = 1")
    done = await run(
        box,
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('deaf')\nwhile True: pass",
        timeout_s=0.3,
    )
    assert done.error is not None
    assert (done.error.type, done.lost, done.timed_out, done.stdout) == ("KernelLost", True, True, "deaf\n")
    assert "had not reacted to an interrupt after 2 s" in done.error.message
    done = await run(box, "x")
    assert done.error is not None
    assert (done.error.type, done.restarted, done.lost) == ("NameError", True, False)
    assert not (await run(box, "x = 2")).restarted


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import os\nprint('said')\nos._exit(3)", "ended by itself, with status 3"),
        ("import os\nprint('said')\nos.kill(os.getpid(), 9)", "killed by signal 9"),
        ("import os\nprint('said')\nos.closerange(0, 10000)", "ended by itself, with status 70"),
        ("import os\nprint('said')\nos.execvp('true', ['true'])", "ended by itself, with status 0"),
        ("import os\nprint('said')\nos.execvp('sleep', ['sleep', '1000'])", "became another program, and was killed"),
        ("import ctypes\nprint('said')\nctypes.string_at(0)", "killed by signal 11"),
    ],
    ids=["exit", "kill", "close all", "exec", "long exec", "crash"],
)
async def test_a_cell_that_ends_its_kernel_is_told_so_at_once(box: headstart.Sandbox, code: str, told: str) -> None:
    assert (await run(box, "x = 1")).ok
    done = await run(box, code)
    assert done.error is not None
    assert (done.error.type, done.lost, done.stdout) == ("KernelLost", True, "said\n")
    assert told in done.error.message
    assert (await run(box, "'x' in globals()")) == headstart.CellResult(text="False", restarted=True)


async def test_a_kernel_that_ended_between_two_cells_is_replaced(box: headstart.Sandbox) -> None:
    done = await run(
        box,
        "import os, threading\nx = 1\nopen('pid', 'w').write(str(os.getpid()))\nthreading.Timer(0.1, os._exit, (0,)).start()",
    )
    assert done.ok
    await box.run("while kill -0 $(cat pid) 2> /dev/null; do sleep 0.01; done", timeout_s=20)
    done = await run(box, "'x' in globals()")
    assert (done.text, done.restarted) == ("False", True)


async def test_a_cell_may_close_the_usual_descriptors_and_the_next_has_them_again(box: headstart.Sandbox) -> None:
    assert not (await run(box, "import os\nx = 1\nos.closerange(0, 10)")).lost
    done = await run(box, "import sys\nprint('again')\nprint('too', file=sys.stderr)\nsys.stdout.close()\nx")
    assert (done.text, done.stdout, done.stderr) == ("1", "again\n", "too\n")
    assert (await run(box, "print('and again')")).stdout == "and again\n"


async def test_a_fork_of_a_cell_ends_with_it_and_there_stays_one_kernel(box: headstart.Sandbox) -> None:
    code = "import os\npid = os.fork()\nif pid: print(os.waitpid(pid, 0)[1] >> 8)\nelse: {}"
    assert (await run(box, code.format("print('child')"))).stdout == "child\n0\n"
    done = await run(box, code.format("raise SystemExit(5)"))
    assert (done.stdout, done.stderr) == ("5\n", "")
    done = await run(box, code.format("1 / 0"))
    assert done.stdout == "1\n"
    assert "ZeroDivisionError" in done.stderr
    done = await run(box, "pid = os.fork()\nif not pid:\n    import time\n    time.sleep(1000)\npid > 0")
    assert done.text == "True"
    assert (await run(box, "os.kill(pid, 9)\nos.waitpid(pid, 0)[1]")).text == "9"
    code = "import multiprocessing\nwith multiprocessing.get_context('fork').Pool(2) as pool: print(sum(pool.map(abs, [-1, 2])))"
    assert (await run(box, code)).stdout == "3\n"


async def test_threads_go_on_and_what_they_say_meanwhile_comes_with_the_next_cell(box: headstart.Sandbox) -> None:
    code = (
        "import os, threading\ngo = threading.Event()\n"
        "def talk():\n    go.wait()\n    for _ in range(3000): os.write(1, b'x' * 1000)\n    open('done', 'w').close()\n"
        "threading.Thread(target=talk, daemon=True).start()"
    )
    assert (await run(box, code)).stdout == ""
    await run(box, "threading.Timer(0.1, go.set).start()")
    await box.run("while [ ! -e done ]; do sleep 0.01; done", timeout_s=20)  # nobody reads, and it is not held up
    done = await run(box, "print('!')")
    assert (set(done.stdout), len(done.stdout), done.truncated) == ({"x"}, 1 << 20, True)
    assert (await run(box, "print('!')")).stdout == "!\n"


async def test_output_is_told_as_it_comes_and_all_of_it_before_the_result(box: headstart.Sandbox) -> None:
    taken = {"stdout": 0, "stderr": 0}
    first = anyio.Event()

    async def take(name: str, chunk: bytes) -> None:
        taken[name] += len(chunk)
        first.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(
            _run_told, box, "import os, time\nprint('first')\nwhile not os.path.exists('go'): time.sleep(0.01)", take
        )
        with anyio.fail_after(20):
            await first.wait()
            await box.files.write("go", b"")
    code = "for _ in range(3000): os.write(1, b'x' * 100_000)\nos.system('head -c 70000 /dev/zero >&2')\nprint('end')"
    done = await run(box, code, on_output=take)
    assert taken == {"stdout": 6 + 300_000_004, "stderr": 70_000}
    assert (done.stdout, done.stderr, done.truncated, done.ok) == ("", "", False, True)


async def test_output_beyond_a_mebibyte_is_cut_and_that_is_told(box: headstart.Sandbox) -> None:
    done = await run(box, "print('x' * 5_000_000)\n1")
    assert (len(done.stdout), done.truncated, done.text) == (1 << 20, True, "1")


async def test_who_takes_output_slowly_holds_the_cell_up_and_loses_nothing(box: headstart.Sandbox) -> None:
    taken: list[int] = []

    async def slowly(name: str, chunk: bytes) -> None:
        taken.append(len(chunk))
        if len(taken) == 1:
            await box.run("sleep 0.2")

    await run(box, "print('x' * 400_000, end='')", on_output=slowly)
    assert sum(taken) == 400_000


async def test_cells_that_are_asked_for_at_once_take_their_turns(box: headstart.Sandbox) -> None:
    await run(box, "seen = []")
    results: list[headstart.CellResult] = []

    async def one(number: int) -> None:
        code = f"seen.append(({number}, 'in'))\nprint({number})\nseen.append(({number}, 'out'))\n{number}"
        results.append(await run(box, code))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(one, number)
    assert sorted((int(done.text or ""), int(done.stdout)) for done in results) == [(n, n) for n in range(20)]
    assert (await run(box, "all(a[0] == b[0] for a, b in zip(seen[::2], seen[1::2]))")).text == "True"


async def test_there_can_be_several_kernels_each_with_its_own_state(box: headstart.Sandbox) -> None:
    await box.files.make_folder("work")
    async with box.open_kernel(env={"WHO": "me"}, cwd="/usr") as other:
        assert (await run(box, "x = 1")).ok
        assert (
            await other.run("import os\n('x' in globals(), os.getcwd(), os.environ['WHO'])")
        ).text == "(False, '/usr', 'me')"
        await other.run("open(os.path.expanduser('~/pid'), 'w').write(str(os.getpid()))")
    with pytest.raises(BackendError, match="the kernel was closed"):
        await other.run("1")
    assert not (await box.run("kill -0 $(cat pid)")).ok
    assert (await run(box, "x")).text == "1"


async def test_a_kernel_needs_its_python_and_its_sandbox(box: headstart.Sandbox) -> None:
    async with box.open_kernel(python="nonesuch") as kernel:
        with pytest.raises(BackendError, match="cannot run 'nonesuch'"):
            await kernel.run("1")
    async with box.open_kernel(python="false") as kernel:
        with pytest.raises(BackendError, match="'false' was started and did not get ready: it ended by itself"):
            await kernel.run("1")
    await box.files.write("broken", b"#!/bin/sh\necho no such module >&2\nexit 1\n")
    await box.run("chmod +x broken")
    async with box.open_kernel(python="./broken") as kernel:
        with pytest.raises(BackendError, match="ended by itself, with status 1") as told:
            await kernel.run("1")
        assert told.value.detail == "no such module\n"
    assert (await run(box, "1")).ok
    await box.kill()
    with pytest.raises(BackendError):
        await box.run_code("1")


async def test_more_memory_than_a_machine_can_have_is_an_error_of_the_cell(bare_box: headstart.Sandbox) -> None:
    done = await run(bare_box, "x = bytearray(10**15)")
    assert done.error is not None
    assert (done.error.type, done.lost) == ("MemoryError", False)


@where_memory_is_limited
@where_processes_may_be_traced
async def test_a_kernel_that_was_killed_for_memory_is_told_so_and_apart_from_other_kills(tmp_path: Path) -> None:
    async with (
        headstart.Sandboxes.open(state_dir=tmp_path / "state") as boxes,
        boxes.create(headstart.SandboxOptions(memory_mb=100)) as box,
    ):
        for is_restored in (False, True):
            await run(box, "import os; n = 1")
            if is_restored:
                kept = await box.checkpoint()
                await box.rollback(kept)
            done = await run(box, "x = b'a' * n * 900_000_000")
            assert done.error is not None
            assert done.lost
            assert "killed because the sandbox had used up its memory" in done.error.message, is_restored
            killed = await run(box, "import os; os.kill(os.getpid(), 9)")
            assert killed.error is not None
            assert "killed by signal 9" in killed.error.message


@where_memory_is_limited
async def test_a_bash_session_tells_that_memory_was_used_up(tmp_path: Path) -> None:
    async with (
        headstart.Sandboxes.open(state_dir=tmp_path / "state") as boxes,
        boxes.create(headstart.SandboxOptions(memory_mb=100)) as box,
    ):
        below = await box.run_in_shell("tail /dev/zero")
        assert (below.exit_code, below.out_of_memory, below.lost) == (137, True, None)
        killed = await box.run_in_shell("bash -c 'kill -9 $$'")
        assert (killed.exit_code, killed.out_of_memory) == (137, False)
        itself = await box.run_in_shell("exec tail /dev/zero")
        assert (itself.exit_code, itself.out_of_memory) == (137, True)
        assert "killed because the sandbox had used up its memory" in (itself.lost or "")
        await box.run_code("import os")
        killed = await box.run_code("os.kill(os.getpid(), 9)")
        assert "killed by signal 9" in (killed.error.message if killed.error else "")


@pytest.mark.parametrize("answer", ["b'%d nonsense\\0'", "b'%d {\"text\": 3}\\0'", "b'%d []\\0'", "b'\\0%d {}\\0'"])
async def test_an_answer_that_user_code_made_up_costs_it_the_kernel_and_nobody_else(
    box: headstart.Sandbox, answer: str
) -> None:
    code = (
        "import os, stat\n"
        f"answer = {answer} % (2,)\n"
        "for fd in map(int, os.listdir('/proc/self/fd')):\n"
        "    try:\n"
        "        if fd > 99 and stat.S_ISFIFO(os.fstat(fd).st_mode): os.write(fd, answer)\n"
        "    except OSError: pass"
    )
    await run(box, "1")
    done = await run(box, code)
    assert done.error is not None
    assert (done.error.type, done.lost) == ("KernelLost", True)
    assert "what means nothing" in done.error.message
    assert (await run(box, "1")) == headstart.CellResult(text="1", restarted=True)


@pytest.mark.parametrize("python", OLD_ENOUGH, ids=lambda path: path.parts[-3])
async def test_every_python_since_3_8_can_be_the_kernel(bare_box: headstart.Sandbox, python: Path) -> None:
    async with bare_box.open_kernel(python=str(python)) as kernel:
        with anyio.fail_after(60):
            assert (await kernel.run("import sys\nx = 1\nprint('é')")).stdout == "é\n"
            assert (await kernel.run("'%d.%d.%d' % sys.version_info[:3]")).text == repr(python.parts[-3])
            assert (await kernel.run("import asyncio\nawait asyncio.sleep(0, x)")).text == "1"
            done = await kernel.run("while True: pass", timeout_s=0.2)
            assert (done.timed_out, done.lost, done.error and done.error.type) == (True, False, "KeyboardInterrupt")
            done = await kernel.run("1 / 0")
            assert done.error is not None
            assert done.error.traceback.startswith('Traceback (most recent call last):\n  File "<cell 5>", line 1')


async def test_nothing_of_a_kernel_is_left_open(box: headstart.Sandbox, open_descriptors: Callable[[], int]) -> None:
    await run(box, "1")
    before = open_descriptors()
    for _ in range(5):
        async with box.open_kernel() as kernel:
            await kernel.run("1")
        await run(box, "import os\nos._exit(0)")
        await run(box, "1")
    assert open_descriptors() == before


async def _run_told(box: headstart.Sandbox, code: str, on_output: headstart.OnOutput) -> None:
    assert (await box.run_code(code, on_output=on_output)).ok
