"""Python kernels in checkpoints and forks: what they know goes with the files, and nothing else does."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

import anyio
import pytest
from tests.machine import where_processes_may_be_traced

import headstart
from headstart.errors import BackendUnavailable, Conflict, NotCapturable

pytestmark = [pytest.mark.anyio, where_processes_may_be_traced]


@pytest.fixture
async def box() -> AsyncGenerator[headstart.Sandbox]:
    try:
        async with headstart.Sandbox.create() as box:
            yield box
    except BackendUnavailable as gap:
        pytest.skip(f"sandboxes cannot be isolated here: {gap}")


async def tell(box: headstart.Sandbox, code: str) -> str:
    """Return the value of some code, in the kernel that is there."""
    done = await box.run_code(code)
    assert done.error is None, done.error
    assert (done.lost, done.restarted) == (False, False)
    return done.text or ""


async def test_a_rollback_brings_back_what_the_kernel_knew_with_the_files(box: headstart.Sandbox) -> None:
    await tell(box, "import os, json; os.makedirs('p'); os.chdir('p'); x = [1]; open('f', 'w').write('1')")
    kept = await box.checkpoint()
    assert kept.left_out == ()
    assert await tell(box, "os.getcwd()") == "'/home/sandbox/p'", "it goes on where it was"
    await tell(box, "x.append(2); open('f', 'w').write('2'); del json")
    for _ in range(3):
        await box.rollback(kept)
        assert await tell(box, "(x, open('f').read(), json.dumps(x), os.getcwd())") == (
            "([1], '1', '[1]', '/home/sandbox/p')"
        )
        await tell(box, "x.append(3); open('f', 'w').write('3')")


async def test_branches_go_on_from_what_the_kernel_knew_and_one_becomes_the_sandbox(box: headstart.Sandbox) -> None:
    await tell(box, "x = {'n': 0}")
    async with await box.fork() as one, await box.fork() as other:
        await tell(one, "x['n'] = 1; open('f', 'w').write('one')")
        await tell(other, "x['n'] = 2")
        assert [await tell(each, "x['n']") for each in (box, one, other)] == ["0", "1", "2"]
        with pytest.raises(Conflict):
            await one.commit()
    async with await box.fork() as branch:
        await tell(branch, "x['n'] += 10")
        await branch.commit()
    assert await tell(box, "x['n']") == "10"
    async with await box.fork() as branch:
        await branch.commit()
    assert await tell(box, "x['n']") == "10", "also if it ran nothing"


async def test_generations_of_checkpoints_and_rollbacks_have_no_end(box: headstart.Sandbox) -> None:
    await tell(box, "n = 0")
    for generation in range(40):  # nested namespaces would be at their end at 32
        kept = await box.checkpoint()
        await tell(box, "n = -1")
        await box.rollback(kept)
        await box.drop(kept)
        assert await tell(box, "n += 1; n") == str(generation + 1)


async def test_the_same_state_is_kept_once_and_costs_nothing_again(box: headstart.Sandbox) -> None:
    await tell(box, "x = 1")
    first = await box.checkpoint()
    again = await box.checkpoint()
    assert (again.id, again.version) == (first.id, first.version)
    await tell(box, "x")
    assert (await box.checkpoint()).version != first.version, "a cell may have changed anything"


TASK = """
import asyncio
async def wait(): await asyncio.sleep(1000)
t = asyncio.create_task(wait(), name='sleeper')
await asyncio.sleep(0)
"""

HELD = [
    (
        "import threading; e = threading.Event(); threading.Thread(target=e.wait, name='worker').start()",
        "thread worker",
    ),
    ("import socket; s = socket.socket()", "socket:"),
    ("f = open('log', 'w')", "/home/sandbox/log"),
    ("f = open('/etc/passwd')", "/etc/passwd"),
    ("import os; r, w = os.pipe()", "pipe:"),
    ("import mmap; m = mmap.mmap(-1, 4096)", "shared memory"),
    ("import ctypes; t = ctypes.c_void_p(); ctypes.CDLL(None).timer_create(0, None, ctypes.byref(t))", "POSIX timer 0"),
    (TASK, "asyncio task sleeper"),
    ("import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')", "working folder"),
]


@pytest.mark.parametrize(("code", "named"), HELD, ids=[named for _, named in HELD])
async def test_what_a_fork_would_not_have_is_named_and_the_kernel_goes_on(
    box: headstart.Sandbox, code: str, named: str
) -> None:
    await tell(box, "x = 1")
    done = await box.run_code(code)
    assert done.error is None, done.error
    with pytest.raises(NotCapturable, match=named) as refusal:
        await box.checkpoint()
    assert any(named in each for each in refusal.value.held)
    assert await tell(box, "x") == "1"
    left = await box.checkpoint(files_only=True)
    assert any("python" in each for each in left.left_out)


async def test_an_await_leaves_nothing_that_could_not_be_kept(box: headstart.Sandbox) -> None:
    await tell(box, "import asyncio; await asyncio.sleep(0.001); x = 1")
    kept = await box.checkpoint()
    assert await tell(box, "await asyncio.sleep(0.001); x") == "1"
    await box.rollback(kept)
    assert await tell(box, "await asyncio.sleep(0.001); x") == "1"


async def test_threads_that_python_does_not_know_are_found_at_the_fork(box: headstart.Sandbox) -> None:
    code = "import _thread, time; x = 1; _thread.start_new_thread(time.sleep, (1000,))"
    await tell(box, code)
    with pytest.raises(NotCapturable, match="threads"):
        await box.checkpoint()
    assert await tell(box, "x") == "1"


async def test_what_a_kernel_has_started_counts_as_running(box: headstart.Sandbox) -> None:
    await tell(box, "import subprocess; p = subprocess.Popen(['sleep', '1000']); x = 1")
    with pytest.raises(NotCapturable, match="sleep"):
        await box.checkpoint()
    await tell(box, "p.kill(); p.wait()")
    kept = await box.checkpoint()
    await box.rollback(kept)
    assert await tell(box, "subprocess.run(['echo', 'fine'], capture_output=True).stdout") == "b'fine\\n'"


async def test_hooks_around_forks_run_once_on_each_side(box: headstart.Sandbox) -> None:
    await tell(
        box,
        "import os; seen = []\n"
        "os.register_at_fork(before=lambda: seen.append('b'), after_in_parent=lambda: seen.append('p'),"
        " after_in_child=lambda: seen.append('c'))",
    )
    kept = await box.checkpoint()
    assert await tell(box, "seen") == "['b', 'p']"
    await box.rollback(kept)
    assert await tell(box, "seen") == "['b', 'c']"


async def test_a_sandbox_can_be_forked_again_while_a_branch_has_just_begun(box: headstart.Sandbox) -> None:
    await tell(box, "x = 1")
    for _ in range(5):
        async with await box.fork() as branch:
            await tell(branch, "import subprocess; child = subprocess.Popen(['sleep', '100']); x")
            async with await box.fork() as other:
                assert await tell(other, "x") == "1"


STANDS = """
import subprocess, threading, time
longest, stood_at = 0, 0
def run():
    global longest, stood_at
    last = time.monotonic()
    while True:
        now = time.monotonic()
        if now - last > longest:
            longest, stood_at = now - last, last
        last = now
threading.Thread(target=run, daemon=True).start()
child = subprocess.Popen(["sh", "-c", "while :; do :; done"])
"""


async def test_a_branch_that_is_paused_when_it_has_just_begun_stands_still(box: headstart.Sandbox) -> None:
    await tell(box, "import subprocess, threading, time")
    for _ in range(3):
        async with await box.fork() as branch:
            await tell(branch, STANDS)
            await branch.pause()
            paused_at = time.monotonic()
            assert (await branch.usage()).processes == 2
            await anyio.sleep(0.3)
            await branch.resume()
            assert float(await tell(branch, "stood_at")) <= paused_at


async def test_what_cannot_be_kept_is_named_as_it_is_called_inside(box: headstart.Sandbox) -> None:
    pid = await tell(box, "import subprocess; child = subprocess.Popen(['sleep', '100']); child.pid")
    with pytest.raises(NotCapturable) as refusal:
        await box.checkpoint()
    assert f"sleep ({pid})" in str(refusal.value)
    assert refusal.value.held == (f"sleep ({pid})",)
    kernel = await tell(box, "import os; os.getpid()")
    left = (await box.checkpoint(files_only=True)).left_out
    assert f"sleep ({pid})" in left
    assert any(each.endswith(f"({kernel})") for each in left)


async def test_a_kernel_that_goes_on_can_be_interrupted_paused_and_ended(box: headstart.Sandbox) -> None:
    await tell(box, "x = 1")
    kept = await box.checkpoint()
    await box.rollback(kept)
    done = await box.run_code("while True: x += 1", timeout_s=0.3)
    assert (done.timed_out, done.lost) == (True, False)
    assert done.error is not None
    assert done.error.type == "KeyboardInterrupt"
    assert int(await tell(box, "x")) > 1
    await box.pause()
    await box.resume()
    await tell(box, "x = 5")
    await box.rollback(kept)
    done = await box.run_code("import os; os._exit(3)")
    assert done.lost
    assert (await box.run_code("1")).restarted


async def test_a_kernel_that_was_not_kept_is_told_as_lost_after_a_rollback(box: headstart.Sandbox) -> None:
    before = await box.checkpoint()
    await tell(box, "x = 1")
    files = await box.checkpoint(files_only=True)
    await box.rollback(files)
    assert (await box.run_code("'x' in globals()")).restarted
    await box.rollback(before)
    done = await box.run_code("'x' in globals()")
    assert (done.text, done.restarted) == ("False", False), "there was none then"


async def test_many_branches_of_one_kernel_live_side_by_side(box: headstart.Sandbox) -> None:
    await tell(box, "data = bytearray(b'x' * 20_000_000)")
    branches = [await box.fork() for _ in range(8)]

    async def work(number: int) -> None:
        assert await tell(branches[number], f"data[0] = {number}; (data[0], len(data))") == f"({number}, 20000000)"

    async with anyio.create_task_group() as tasks:
        for number in range(len(branches)):
            tasks.start_soon(work, number)
    assert await tell(box, "data[0]") == "120"
    for branch in branches:
        await branch.discard()


async def test_a_kernel_that_goes_on_draws_the_same_random_numbers_or_its_own(box: headstart.Sandbox) -> None:
    await tell(box, "import random, sys, types; random.seed(7); sys.modules['jax'] = types.ModuleType('jax')")
    kept = await box.checkpoint()
    draw = "[random.random() for _ in range(3)]"
    wanted = await tell(box, draw)
    await box.rollback(kept)
    assert await tell(box, draw) == wanted
    assert await box.rollback(kept, identity="fresh") == ("random numbers of jax in Python",)
    assert await tell(box, draw) != wanted
    await box.rollback(kept)
    async with await box.fork() as same, await box.fork(identity="fresh") as fresh:
        assert await tell(same, draw) == wanted
        drawn = await tell(fresh, draw)
        assert drawn != wanted
        assert fresh.frozen_secrets == ("random numbers of jax in Python",)
    async with await box.fork(identity="fresh") as other:
        assert await tell(other, draw) not in (wanted, drawn)


DRAWN_FROM_ELSEWHERE = """
import ctypes, ssl, tempfile
from multiprocessing import current_process
def drawn():
    key = bytes(current_process().authkey).hex()
    return f"{ssl.RAND_bytes(8).hex()} {next(tempfile._get_candidate_names())} {key} {ctypes.CDLL(None).random()}"
drawn()
"""


async def test_what_libraries_draw_from_is_other_in_each_fresh_branch(box: headstart.Sandbox) -> None:
    assert (await box.run_code(DRAWN_FROM_ELSEWHERE)).error is None
    async with await box.fork(identity="fresh") as one, await box.fork(identity="fresh") as other:
        told = [(await tell(each, "drawn()")).strip("'").split() for each in (one, other, box)]
    assert len({each for kernel in told for each in kernel}) == 12, told
    async with await box.fork() as one, await box.fork() as other:
        told = [(await tell(each, "drawn()")).strip("'").split() for each in (one, other)]
    assert told[0][1:] == told[1][1:], "names, key and numbers stay the same with the same identity"


SET = """
import os, resource, signal
os.umask(0o077)
os.nice(5)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
open('/proc/self/comm', 'w').write('renamed')
for kind, limit in ((resource.RLIMIT_NOFILE, (90, 99)), (resource.RLIMIT_AS, (10**9, 2 * 10**9))):
    resource.setrlimit(kind, limit)
ticks = []
signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
signal.setitimer(signal.ITIMER_REAL, 500, 7)
"""
LOOK = """
left, again = signal.getitimer(signal.ITIMER_REAL)
(os.umask(0o077), os.nice(0), os.sched_getaffinity(0) == {min(os.sched_getaffinity(0))}, open('/proc/self/comm').read(),
 resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_AS), 300 < left <= 500, again)
"""
SETTINGS = r"(63, 5, True, 'renamed\n', (90, 99), (1000000000, 2000000000), True, 7.0)"


async def test_what_a_process_has_besides_its_memory_is_as_it_was_where_a_kernel_goes_on(
    box: headstart.Sandbox,
) -> None:
    assert (await box.run_code(SET)).error is None
    kept = await box.checkpoint()
    assert await tell(box, LOOK) == SETTINGS, "it goes on with them"
    for _ in range(2):
        await tell(box, "os.umask(0o002); os.nice(3); signal.setitimer(signal.ITIMER_REAL, 0)")
        await box.rollback(kept)
        assert await tell(box, LOOK) == SETTINGS
    async with await box.fork() as branch:
        assert await tell(branch, LOOK) == SETTINGS
        await branch.commit()
    async with await box.fork(identity="fresh") as branch:
        assert await tell(branch, LOOK) == SETTINGS, "also of what has gone on from an image itself"
        assert (await branch.run_code("os.nice(-1)")).error is not None, "and no rights come with them"


async def test_a_timer_goes_off_where_a_kernel_goes_on(box: headstart.Sandbox) -> None:
    await tell(box, "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])")
    await tell(box, "signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)")
    kept = await box.checkpoint()
    await tell(box, "signal.setitimer(signal.ITIMER_REAL, 0)")
    await box.rollback(kept)
    assert await tell(box, "signal.sigtimedwait([signal.SIGALRM], 30) is not None") == "True"
