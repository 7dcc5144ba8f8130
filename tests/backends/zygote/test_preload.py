"""A preload tells what importing has done, and refuses to fork what must not be forked."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from running import Running, script_in, zygote

from headstart.backends.zygote import PreloadReport
from headstart.errors import BackendError

pytestmark = pytest.mark.anyio


async def audit(folder: Path, source: str, *more: str, env: dict[str, str] | None = None) -> PreloadReport:
    script_in(folder, source, "odd.py")
    async with zygote(script_in(folder, "import odd"), modules=["odd", *more], audit=True, env=env) as running:
        assert running.report is not None
        return running.report


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import os; x = os.environ['HOME']", "env:HOME"),
        ("import os; x = os.getenv('NOT_SET')", "env:NOT_SET"),
        ("import os; x = 'TOKEN' in os.environ", "env:TOKEN"),
        ("import os; x = os.environb.get(b'TOKEN')", "env:TOKEN"),
        ("from os import environ; x = environ.get('TOKEN')", "env:TOKEN"),
        ("import os; x = dict(os.environ)", "env:*"),
        ("import os; x = os.path.expanduser('~/x')", "env:HOME"),
        ("from pathlib import Path; x = Path.home()", "env:HOME"),
        ("import os; x = os.getcwd()", "cwd"),
        ("from pathlib import Path; x = Path('x').absolute()", "cwd"),
        ("import os; x = os.path.abspath('x')", "cwd"),
        ("import os; x = os.getpid()", "pid"),
        ("import pwd, os; x = pwd.getpwuid(os.getuid())", "user database"),
    ],
)
async def test_reads_at_import_are_recorded_with_their_reader(tmp_path: Path, source: str, what: str) -> None:
    assert (await audit(tmp_path, source)).reads.get(what) == "odd"


async def test_a_module_that_reads_nothing_has_nothing_recorded(tmp_path: Path) -> None:
    report = await audit(tmp_path, "import json, dataclasses")
    assert (report.reads, report.written, report.connected, report.unforkable()) == ({}, {}, {}, None)


async def test_the_environment_is_plain_again_after_the_watch(tmp_path: Path) -> None:
    script_in(tmp_path, "import os; kept = os.environ", "odd.py")
    source = "import odd, os; print(type(odd.kept).__name__, odd.kept is os.environ, os.getcwd.__name__)"
    async with zygote(script_in(tmp_path, source), modules=["odd"], audit=True) as running:
        assert await running.output() == "_Environ True getcwd\n"


async def test_files_left_behind_are_recorded(tmp_path: Path) -> None:
    target = tmp_path / "left"
    report = await audit(tmp_path, f"open({str(target)!r}, 'w').write('x')")
    assert report.written == {str(target): "odd"}


async def test_a_file_that_is_gone_again_is_not(tmp_path: Path) -> None:
    report = await audit(tmp_path, "import tempfile; tempfile.TemporaryFile().close()")
    assert report.written == {}


async def test_folders_made_are_recorded_and_those_that_were_there_are_not(tmp_path: Path) -> None:
    new = tmp_path / "new"
    source = f"import os; os.makedirs({str(new)!r}, exist_ok=True); os.makedirs({str(tmp_path)!r}, exist_ok=True)"
    assert (await audit(tmp_path, source)).written == {str(new): "odd"}


async def test_connections_and_programs_are_recorded(tmp_path: Path) -> None:
    source = "import socket, subprocess\nsubprocess.run(['true'])\ns = socket.socket(); s.connect_ex(('127.0.0.1', 9)); s.close()"
    report = await audit(tmp_path, source)
    assert list(report.connected) == ["socket.connect ('127.0.0.1', 9)"]
    assert report.programs == {"true": "odd"}


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import secrets; x = secrets.token_hex()", "random bytes"),
        ("import uuid; x = uuid.uuid4()", "random bytes"),
        ("from uuid import uuid1; x = uuid1()", "a unique id"),
        ("import os; x = os.urandom(4)", "random bytes"),
        ("import os; x = os.getrandom(4)", "random bytes"),
        ("import random; x = random.SystemRandom().random()", "random bytes"),
        ("x = open('/dev/urandom', 'rb').read(4)", "random bytes"),
        ("import random; x = random.random()", "random numbers"),
        ("from random import randint; x = randint(1, 9)", "random numbers"),
        ("import random; x = random.choice('abc')", "random numbers"),
        ("import random; x = random.Random().gauss(0, 1)", "random numbers"),
        ("import helper; x = helper.token()", "random bytes"),
        (
            "import os, threading; t = threading.Thread(target=os.urandom, args=(4,)); t.start(); t.join()",
            "random bytes",
        ),
    ],
)
async def test_draws_at_import_are_recorded_with_the_module_whose_body_drew(
    tmp_path: Path, source: str, what: str
) -> None:
    script_in(tmp_path, "import secrets\ndef token(): return secrets.token_hex()", "helper.py")
    report = await audit(tmp_path, source)
    assert (report.draws, report.drawing) == ({"odd": what}, {"odd"})


async def test_a_draw_of_numpys_global_generator_is_recorded_too(tmp_path: Path) -> None:
    pytest.importorskip("numpy", reason="numpy is not installed")
    assert (await audit(tmp_path, "import numpy; x = numpy.random.rand()")).draws == {"odd": "random numbers"}


@pytest.mark.parametrize(
    "source",
    [
        "import random; random.seed(); x = random.Random()",
        "import random; x = random.Random(5).random()",
        "import random; x = random.SystemRandom()",
        "import tempfile; x = tempfile.gettempdir()",
        "import multiprocessing.process",
        "import uuid, ssl, hashlib, asyncio, email.generator, http.client, logging",
        "import rich.style",
        "import numpy.random",
        "from mcp.server.mcpserver import MCPServer; x = MCPServer('early')",
    ],
)
async def test_what_a_fork_renews_is_no_draw(tmp_path: Path, source: str) -> None:
    pytest.importorskip(source.split()[1].rstrip(";,"), reason="it is not installed")
    report = await audit(tmp_path, source)
    assert (report.failed, report.draws, report.drawing) == ({}, {}, frozenset())


async def test_all_that_import_a_drawing_module_are_named_with_it(tmp_path: Path) -> None:
    for package in ("ours", "theirs"):
        (tmp_path / package).mkdir()
    for name, source in {
        "ours/__init__.py": "",
        "ours/ids.py": "import uuid; OWN = uuid.uuid4()",
        "ours/first.py": "from ours.ids import OWN",
        "ours/second.py": "from . import ids",
        "ours/third.py": "from .second import ids",
        "ours/fourth.py": "del __package__; from . import third",
        "ours/apart.py": "import json",
        "theirs/__init__.py": "import ours.ids",
        "theirs/part.py": "",
    }.items():
        script_in(tmp_path, source, name)
    names = ["ours.first", "ours.second", "ours.third", "ours.fourth", "ours.apart", "theirs", "theirs.part"]
    report = await audit(tmp_path, "", *names)
    assert report.draws == {"ours.ids": "random bytes"}
    assert report.failed == {}
    assert report.drawing == {"ours.ids", "ours.first", "ours.second", "ours.third", "ours.fourth", "theirs"}


async def test_the_import_statement_and_the_generators_are_plain_again_after_the_watch(tmp_path: Path) -> None:
    source = (
        "import builtins, os, random\n"
        "print(*(f.__module__ for f in (builtins.__import__, os.urandom, os.getrandom)), type(random.random).__name__)"
    )
    async with zygote(script_in(tmp_path, source), modules=["random"], audit=True) as running:
        assert await running.output() == "builtins posix posix builtin_function_or_method\n"


async def test_modules_that_fail_are_listed_and_the_rest_is_imported(tmp_path: Path) -> None:
    script_in(tmp_path, "raise SystemExit('not me')", "quitter.py")
    report = await audit(tmp_path, "", "quitter", "no_such_module")
    assert report.failed == {
        "quitter": "SystemExit: not me",
        "no_such_module": "ModuleNotFoundError: No module named 'no_such_module'",
    }


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "import threading, time; threading.Thread(target=time.sleep, args=(60,), name='pump', daemon=True).start()",
            "pump",
        ),
        ("import _thread, time; _thread.start_new_thread(time.sleep, (60,))", "native"),
        ("import socket; s = socket.socket()", "socket:"),
        ("f = open(__file__)", "odd.py"),
        ("import asyncio; loop = asyncio.new_event_loop()", "eventpoll"),
        ("import subprocess; p = subprocess.Popen(['sleep', '3'])", "child processes"),
    ],
)
async def test_what_a_fork_would_break_is_never_forked(tmp_path: Path, source: str, reason: str) -> None:
    script_in(tmp_path, source, "odd.py")
    with pytest.raises(BackendError, match=reason):
        async with zygote(script_in(tmp_path, "import odd"), modules=["odd"]):
            pytest.fail("it was preloaded")


async def test_a_native_generator_that_cannot_be_reseeded_is_never_forked(tmp_path: Path) -> None:
    script_in(tmp_path, "", "uuid_utils.py")
    with pytest.raises(BackendError, match="uuid_utils keeps random state"):
        async with zygote(script_in(tmp_path, ""), modules=["uuid_utils"]):
            pytest.fail("it was preloaded")


async def test_thread_pools_are_held_while_preloading_and_the_environment_is_restored(tmp_path: Path) -> None:
    script_in(tmp_path, "import os; seen = os.environ.get('OMP_NUM_THREADS')", "odd.py")
    source = "import odd, os; print(odd.seen, os.environ.get('OMP_NUM_THREADS'))"
    async with zygote(script_in(tmp_path, source), modules=["odd"]) as running:
        assert await running.output(env={"OMP_NUM_THREADS": "3"}) == "1 3\n"


async def test_a_pool_gets_its_threads_back_in_the_fork(tmp_path: Path) -> None:
    for name in ("numpy", "threadpoolctl"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    source = "import numpy, threadpoolctl as t; print(max(i['num_threads'] for i in t.threadpool_info()))"
    async with zygote(script_in(tmp_path, source), modules=["numpy"]) as running:
        assert await running.output(env={**os.environ, "OMP_NUM_THREADS": "2"}) == "2\n"


async def test_a_pool_gets_its_threads_back_without_threadpoolctl_too(tmp_path: Path) -> None:
    pytest.importorskip("numpy", reason="numpy is not installed")
    script_in(tmp_path, "raise ImportError('not here')", "threadpoolctl.py")
    source = "import os, numpy; a = numpy.ones((300, 300)); a @ a; print(len(os.listdir('/proc/self/task')))"
    async with zygote(script_in(tmp_path, source), modules=["numpy"]) as running:
        assert await running.output(env={**os.environ, "OMP_NUM_THREADS": "2"}) == "2\n"


async def test_a_list_of_modules_longer_than_a_packet_arrives(tmp_path: Path) -> None:
    many = [f"no_such_module_{number}_{'x' * 60}" for number in range(3_000)]
    report = await audit(tmp_path, "", *many)
    assert len(report.failed) == 3_000


async def test_a_zygote_that_dies_while_importing_is_a_backend_error(tmp_path: Path) -> None:
    script_in(tmp_path, "import os; os._exit(3)", "odd.py")
    with pytest.raises(BackendError, match="ended before it answered"):
        async with zygote(script_in(tmp_path, ""), modules=["odd"]):
            pytest.fail("it was preloaded")


async def test_an_import_that_never_ends_is_given_up(tmp_path: Path) -> None:
    script_in(tmp_path, "import time; time.sleep(600)", "odd.py")
    async with zygote(script_in(tmp_path, "")) as running:
        with pytest.raises(BackendError, match=r"did not answer within 0\.2 s"):
            await running.process.preload(with_modules(running, "odd"), timeout_s=0.2)
        running.keeper.kill()


def with_modules(running: Running, *names: str):

    return replace(running.preload, modules=names)
