"""A fork is what a freshly started process would be."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from running import script_in, zygote

from headstart.backends.zygote.guest import facts
from headstart.errors import BackendError

pytestmark = pytest.mark.anyio

FACTS = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd(), "name": __name__, "file": __file__,
    "path0": sys.path[0], "path": sys.path, "main": sys.modules["__main__"].__dict__ is globals(),
    "spec": __spec__ and [__spec__.name, __spec__.origin], "stdin": [sys.stdin.name, sys.stdin.encoding, sys.stdin.errors, sys.stdin.line_buffering],
    "stdout": [sys.stdout.name, sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering, sys.stdout.write_through],
    "stderr": [sys.stderr.name, sys.stderr.encoding, sys.stderr.errors, sys.stderr.line_buffering, sys.stderr.write_through],
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")), "orig_argv": sys.orig_argv[1:],
    "modules": sorted(name for name in sys.modules if "headstart" in name), "raw": getattr(sys.stdout.buffer, "raw", sys.stdout.buffer).name,
}))
"""


def cold_output(command: list[str], *, given: bytes = b"", **kwargs: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, check=False, input=given, capture_output=True, timeout=60, **kwargs)  # type: ignore[call-overload]


@pytest.mark.parametrize("options", [(), ("-u",), ("-X", "utf8", "-E")])
async def test_a_script_sees_what_it_sees_when_started_cold(tmp_path: Path, options: tuple[str, ...]) -> None:
    script = script_in(tmp_path, FACTS)
    env = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "WHOSE": "mine"}
    cold = json.loads(cold_output([sys.executable, *options, script, "--x"], env=env, cwd="/").stdout)
    async with zygote(script, modules=["json"], args=["--x"], options=options, env=env) as running:
        forked = json.loads(await running.output(env=env, cwd="/"))
    assert forked == cold


async def test_a_module_sees_what_it_sees_when_started_cold(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(FACTS)
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    cold = json.loads(cold_output([sys.executable, "-m", "package", "a"], cwd=tmp_path, env=env).stdout)
    async with zygote(
        "", entry=("-m", "package"), args=["a"], modules=["json", "package"], cwd=tmp_path, env=env
    ) as running:
        forked = json.loads(await running.output(cwd=str(tmp_path), env=env))
    assert forked == cold


async def test_the_same_holds_in_other_versions_of_python(tmp_path: Path) -> None:
    versions = [
        path for path in ("python3.8", "python3.9", "python3.13") if (found := shutil.which(path)) and runs(found)
    ]
    if not versions:
        pytest.skip("no other python (3.8, 3.9 or 3.13) is installed here")
    script = script_in(tmp_path, FACTS.replace("sys.orig_argv[1:]", 'getattr(sys, "orig_argv", [0])[1:]'))
    for version in versions:
        interpreter = shutil.which(version) or ""
        env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        cold = json.loads(cold_output([interpreter, script], cwd="/", env=env).stdout)
        async with zygote(script, modules=["json"], interpreter=interpreter, env=env) as running:
            assert json.loads(await running.output(cwd="/", env=env)) == cold


def runs(interpreter: str) -> bool:
    return cold_output([interpreter, "-c", ""]).returncode == 0


@pytest.mark.parametrize(
    "source",
    [
        "pass",
        "import sys; sys.exit(7)",
        "import sys; sys.exit('a message')",
        "import sys; sys.exit(None)",
        "raise SystemExit(300)",
        "def f():\n    raise ValueError('in f')\nf()",
        "raise KeyboardInterrupt",
        "import os; os.kill(os.getpid(), 15); import time; time.sleep(60)",
        "import os; os.kill(os.getpid(), 2); import time; time.sleep(60)",
        "import os; os._exit(9)",
        "import atexit; atexit.register(print, 'at exit'); print('first')",
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start(); print('main')",
        "import sys; sys.excepthook = lambda *a: print('hooked', a[0].__name__, a[2].tb_frame.f_code.co_name); 1 / 0",
        "import sys; sys.stdout.write('no newline'); sys.stderr.write('err')",
        "import os; os.close(1); print('x')",
        "print(input())",
        "syntax error here",
        "import nothing_like_this",
    ],
)
async def test_a_program_ends_as_it_ends_when_started_cold(tmp_path: Path, source: str) -> None:
    script = script_in(tmp_path, source)
    cold = cold_output([sys.executable, script], given=b"a line\n")
    async with zygote(script, modules=["threading", "json"]) as running:
        started = await running.fork()
        with contextlib.suppress(BrokenPipeError):  # some of them have ended by now
            os.write(started.stdin, b"a line\n")
        started.close_stdin()
        ended = (await started.read(), await started.read(started.stderr), await started.end())
    assert ended == (cold.stdout, cold.stderr, cold.returncode)


async def test_handlers_registered_by_imports_run_at_the_end_of_every_fork(tmp_path: Path) -> None:
    script_in(tmp_path, "import atexit; atexit.register(print, 'bye', flush=True)", "polite.py")
    script = script_in(tmp_path, "import polite; print('hello')")
    async with zygote(script, modules=["polite"]) as running:
        assert [await running.output() for _ in range(2)] == ["hello\nbye\n"] * 2


async def test_what_importing_prints_is_printed_by_every_fork(tmp_path: Path) -> None:
    script_in(tmp_path, "print('loud')", "loud.py")
    script = script_in(tmp_path, "import loud; print('hello')")
    async with zygote(script, modules=["loud"]) as running:
        assert [await running.output() for _ in range(2)] == ["loud\nhello\n"] * 2


async def test_what_importing_sets_in_the_environment_is_set_in_every_fork(tmp_path: Path) -> None:
    script_in(tmp_path, "import os; os.environ['SET'] = 'yes'; os.environ.pop('GONE', None)", "setter.py")
    script = script_in(tmp_path, "import os; print(os.environ.get('SET'), os.environ.get('GONE'), os.environ['MINE'])")
    async with zygote(script, modules=["setter"], env={**os.environ, "GONE": "1"}) as running:
        assert await running.output(env={"MINE": "a", "GONE": "1"}) == "yes None a\n"
        assert await running.output(env={"MINE": "b", "GONE": "1"}) == "yes None b\n"


async def test_native_code_sees_the_new_environment_too(tmp_path: Path) -> None:
    script = script_in(
        tmp_path,
        "import ctypes; g = ctypes.CDLL(None).getenv; g.restype = ctypes.c_char_p; print(g(b'MINE'), g(b'OLD'))",
    )
    async with zygote(script, env={**os.environ, "OLD": "1"}) as running:
        assert await running.output(env={"MINE": "a"}) == "b'a' None\n"


async def test_streams_that_modules_have_kept_lead_to_the_forks_own(tmp_path: Path) -> None:
    script_in(tmp_path, "import logging, sys; logging.basicConfig(stream=sys.stdout); out = sys.stdout", "keeper.py")
    script = script_in(tmp_path, "import keeper, logging, sys; logging.warning('w'); print(keeper.out is sys.stdout)")
    async with zygote(script, modules=["keeper"]) as running:
        assert await running.output() == "WARNING:root:w\nTrue\n"


RANDOM = """
import random, uuid, tempfile, secrets, ssl, sys, os, multiprocessing.process, seeded
print(random.random(), seeded.lazy.random(), uuid.uuid4(), uuid.uuid1(), next(tempfile._get_candidate_names()),
      secrets.token_hex(4), ssl.RAND_bytes(4).hex(), bytes(multiprocessing.process.current_process().authkey).hex())
print(seeded.fixed.random(), hash("x"))
"""


async def test_forks_share_no_random_state_but_seeds_that_were_given(tmp_path: Path) -> None:
    script_in(tmp_path, "import random; lazy = random.Random(); fixed = random.Random(5)", "seeded.py")
    script = script_in(tmp_path, RANDOM)
    modules = ["random", "uuid", "tempfile", "secrets", "ssl", "multiprocessing.process", "seeded"]
    async with zygote(script, modules=modules) as running:
        first, second = [(await running.output()).splitlines() for _ in range(2)]
    assert [a == b for a, b in zip(first[0].split(), second[0].split(), strict=True)] == [False] * 8
    assert first[1] == second[1]


async def test_link_ids_of_rich_begin_elsewhere_in_every_fork(tmp_path: Path) -> None:
    pytest.importorskip("rich", reason="rich is not installed")
    source = "from rich.style import Style; print(Style(link='x').link_id)"
    async with zygote(script_in(tmp_path, source), modules=["rich.style"]) as running:
        assert len({await running.output() for _ in range(3)}) == 3


async def test_sympys_dummies_count_from_elsewhere_in_every_fork_and_meet_none_of_an_import(tmp_path: Path) -> None:
    (tmp_path / "sympy" / "core").mkdir(parents=True)
    for name in ("sympy/__init__.py", "sympy/core/__init__.py"):
        script_in(tmp_path, "", name)
    script_in(tmp_path, "class Dummy:\n    _count = 5\n    _base_dummy_index = 2_000_000", "sympy/core/symbol.py")
    source = "from sympy.core.symbol import Dummy; print(Dummy._base_dummy_index + Dummy._count)"
    async with zygote(script_in(tmp_path, source), modules=["sympy.core.symbol"]) as running:
        following = {int(await running.output()) for _ in range(3)}
    assert len(following) == 3
    assert min(following) >= 2_000_005


async def test_numpys_global_state_is_reseeded(tmp_path: Path) -> None:
    pytest.importorskip("numpy", reason="numpy is not installed")
    script = script_in(tmp_path, "import numpy; print(numpy.random.random())")
    async with zygote(script, modules=["numpy", "numpy.random"]) as running:
        assert len({await running.output() for _ in range(3)}) == 3


async def test_signals_reach_the_programs_own_handlers(tmp_path: Path) -> None:
    source = "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(3))\nprint('ready', flush=True)\ntime.sleep(60)"
    async with zygote(script_in(tmp_path, source)) as running:
        started = await running.fork()
        assert await started.read_line() == b"ready\n"
        started.signal(signal.SIGTERM)
        assert await started.end() == 3


async def test_a_fork_may_have_children_of_its_own(tmp_path: Path) -> None:
    source = "import subprocess, sys; print(subprocess.run([sys.executable, '-c', 'exit(4)']).returncode)"
    async with zygote(script_in(tmp_path, source), modules=["subprocess"]) as running:
        assert await running.output() == "4\n"


async def test_a_fork_outlives_its_zygote(tmp_path: Path) -> None:
    script = script_in(tmp_path, "for line in iter(input, 'end'): print(line, flush=True)")
    async with zygote(script) as running:
        started = await running.fork()
        os.kill(facts.child_processes(running.keeper.pid)[0], signal.SIGKILL)
        with pytest.raises(BackendError, match="the zygote of a test"):
            await running.fork()
        os.write(started.stdin, b"still here\n")
        assert await started.read_line() == b"still here\n"
        os.write(started.stdin, b"end\n")
        assert await started.end() == 0


async def test_the_keeper_ends_after_the_last_fork(tmp_path: Path) -> None:
    async with zygote(script_in(tmp_path, "input()")) as running:
        started = await running.fork()
        running.process.close()
        with pytest.raises(subprocess.TimeoutExpired):
            running.keeper.wait(0.2)
        os.write(started.stdin, b"\n")
        assert await started.end() == 0
        started.close()
        running.started.clear()
        assert await anyio.to_thread.run_sync(running.keeper.wait, 20) == 0


async def test_fifty_forks_at_once_all_serve(tmp_path: Path) -> None:
    script = script_in(tmp_path, "print(input())")
    answers: dict[int, bytes] = {}
    async with zygote(script, modules=["json"]) as running:

        async def serve(number: int) -> None:
            started = await running.fork()
            os.write(started.stdin, b"%d\n" % number)
            answers[number] = await started.read()

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for number in range(50):
                    group.start_soon(serve, number)
    assert answers == {number: b"%d\n" % number for number in range(50)}


async def test_forks_share_the_memory_of_what_was_imported(tmp_path: Path) -> None:
    script_in(tmp_path, "ballast = bytearray(b'x') * 100_000_000", "heavy.py")
    source = "import heavy\nfor l in open('/proc/self/smaps_rollup'):\n  if l[:8] == 'Private_': print(l.split()[1])\ninput()"
    async with zygote(script_in(tmp_path, source), modules=["heavy"]) as running:
        started = await running.fork()
        private_kb = int(await started.read_line()) + int(await started.read_line())
    assert private_kb < 30_000


async def test_a_confinement_that_fails_is_told_in_its_own_words(tmp_path: Path) -> None:
    async with zygote(script_in(tmp_path, "print('must not run')")) as running:
        with pytest.raises(BackendError, match="no room for this one"):
            await running.fork(plan={"refuse": "no room for this one"})
        assert await running.output() == "must not run\n"


async def test_a_fork_that_cannot_be_made_is_told_and_the_zygote_goes_on(tmp_path: Path) -> None:
    async with zygote(script_in(tmp_path, "print('after all')"), ahead={"unforkable": "no more"}) as running:
        with pytest.raises(BackendError, match="fork: no more"):
            await running.fork(plan={"unforkable": "no more"})
        assert await running.output() == "after all\n"


async def test_a_confinement_that_fails_ahead_is_told_to_whoever_wants_that_fork(tmp_path: Path) -> None:
    plan = {"refuse": "no room for this one"}
    async with zygote(script_in(tmp_path, "print('must not run')"), ahead=plan) as running:
        for _ in range(2):
            with pytest.raises(BackendError, match="no room for this one"):
                await running.fork(plan=plan)


async def test_forks_made_ahead_differ_in_what_is_random(tmp_path: Path) -> None:
    script_in(tmp_path, "import random, ssl; own = random.Random()", "early.py")
    source = "import early; print(early.own.random(), early.random.random(), early.ssl.RAND_bytes(8))"
    async with zygote(script_in(tmp_path, source), modules=["early"], ahead={}) as running:
        told = [(await running.output()).split(" ", 2) for _ in range(3)]
    assert all(len(set(column)) == 3 for column in zip(*told, strict=True))


async def test_no_fork_has_the_process_id_of_its_zygote(tmp_path: Path) -> None:
    """In PID namespaces both could be small; libraries take an equal PID for "no fork has happened"."""
    script_in(tmp_path, "import os; pid = os.getpid()", "early.py")
    async with zygote(script_in(tmp_path, "import early; print(early.pid)"), modules=["early"]) as running:
        assert int(await running.output()) >= 32
