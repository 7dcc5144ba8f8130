"""Checkpoints, rollbacks and branches of a sandbox, through the library, over the real backend."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from tests.machine import may_make_namespaces

import headstart
from headstart.backends.contract import Capture
from headstart.errors import BackendError, Conflict, NotCapturable, TransactionRefused

pytestmark = pytest.mark.anyio

_T = TypeVar("_T")


@pytest.fixture
async def boxes(tmp_path: Path) -> AsyncGenerator[headstart.Sandboxes]:
    if not may_make_namespaces():
        pytest.skip("the local backend cannot run here: no namespaces")
    async with headstart.Sandboxes.open(state_dir=tmp_path / "state") as opened:
        yield opened


@pytest.fixture
async def box(boxes: headstart.Sandboxes) -> AsyncGenerator[headstart.Sandbox]:
    async with boxes.create() as created:
        yield created


async def said(box: headstart.Sandbox, command: str) -> str:
    done = await box.run(command)
    assert done.ok, done
    return done.stdout.strip()


async def test_a_rollback_brings_the_files_back_and_keeps_the_sandboxs_name(box: headstart.Sandbox) -> None:
    name, start = box.id, box.state_version
    await said(box, "echo 1 > a; mkdir d; echo 2 > d/f")
    kept = await box.checkpoint()
    assert kept.version == box.state_version != start
    await said(box, "rm -r d; echo 3 > a")
    changed = box.state_version
    await box.rollback(kept)
    assert await said(box, "cat a d/f") == "1\n2"
    assert box.id == name
    assert len({start, kept.version, changed, box.state_version}) == 4, "it ran again since"
    await box.rollback(kept)
    assert box.state_version == kept.version, "untouched, it is the very state"


async def test_a_branch_becomes_the_sandbox_when_it_is_committed(box: headstart.Sandbox) -> None:
    await box.files.write("a", b"1")
    branch = await box.fork()
    assert branch.state_version == box.state_version
    await branch.files.write("a", b"2")
    await branch.run_code("x = 40")
    await branch.run_in_shell("export Y=2; cd /tmp")
    assert await box.files.read("a") == b"1"
    await branch.commit()
    assert await box.files.read("a") == b"2"
    assert (await box.run_code("x + 2")).text == "42", "what ran in it goes on"
    assert (await box.run_in_shell("echo $Y $PWD")).stdout == "2 /tmp\n"
    with pytest.raises(TransactionRefused, match="committed"):
        await branch.run("true")
    await branch.discard()
    assert (await box.run_code("x")).text == "40", "it is the sandbox's now"


async def test_a_branch_that_is_left_is_gone_with_all_that_ran_in_it(box: headstart.Sandbox) -> None:
    async with await box.fork() as branch:
        await said(branch, "echo x > a; setsid sleep 1000 </dev/null >/dev/null 2>&1 &")
    with pytest.raises(TransactionRefused, match="discarded"):
        await branch.run("true")
    assert branch.state_version is None
    assert await said(box, "ls") == ""


async def test_a_stale_branch_conflicts_and_nothing_is_lost(box: headstart.Sandbox) -> None:
    async with await box.fork() as branch:
        origin = branch.state_version
        await branch.files.write("a", b"branch")
        await box.files.write("a", b"box")
        with pytest.raises(Conflict) as conflict:
            await branch.commit()
        assert str(origin) in str(conflict.value)
        assert str(box.state_version) in str(conflict.value)
        assert (await box.files.read("a"), await branch.files.read("a")) == (b"box", b"branch")


async def test_the_bash_session_is_part_of_the_state(box: headstart.Sandbox) -> None:
    await box.run_in_shell("mkdir work; cd work; A=(1 'two words'); f() { echo f; }; alias g=f; set -u")
    kept = await box.checkpoint()
    done = await box.run_in_shell('cd /; A=(); unset -f f; set +u; echo "$PWD"')
    assert (done.stdout, done.restarted) == ("/\n", False)
    await box.rollback(kept)
    done = await box.run_in_shell('f; g; echo "${A[1]} $PWD $-"')
    assert done.stdout.startswith("f\nf\ntwo words /home/sandbox/work ")
    assert "u" in done.stdout.split()[-1]
    assert not done.restarted


async def test_a_branch_has_the_bash_session_too(box: headstart.Sandbox) -> None:
    await box.run_in_shell("A=1; cd /tmp; (exit 3)")
    async with await box.fork() as branch:
        assert (await branch.run_in_shell("echo $? $A $PWD; A=2")).stdout == "3 1 /tmp\n"
    assert (await box.run_in_shell("echo $? $A $PWD")).stdout == "3 1 /tmp\n"


async def test_the_bash_itself_goes_on_after_a_checkpoint_and_a_branch_where_it_was(box: headstart.Sandbox) -> None:
    await box.run_in_shell("mkdir -p a/b; cd a; cd b; bash=$BASHPID; exec 7</etc/passwd")
    kept = await box.checkpoint()
    assert (kept.left_out, kept.capture) == ((), Capture.SEALED)
    told = 'echo $((BASHPID == bash)) "$PWD" "$OLDPWD"; [[ -e /dev/fd/7 ]] && /bin/pwd'
    there = "1 /home/sandbox/a/b /home/sandbox/a\n/home/sandbox/a/b\n"
    assert (await box.run_in_shell(told)).stdout == there
    await box.run_in_shell("echo 1 > file")
    async with await box.fork() as branch:
        assert (await box.run_in_shell(told)).stdout == there
        await box.run_in_shell("echo 2 > file")
        assert (
            await branch.run_in_shell("cat file; [[ -e /dev/fd/7 ]] || echo $OLDPWD")
        ).stdout == "1\n/home/sandbox/a\n"
    await box.rollback(kept)
    assert (await box.run_in_shell('ls; echo "$PWD"')).stdout == "/home/sandbox/a/b\n"


@pytest.mark.parametrize(
    "own",
    [
        "readonly PWD",
        "set -e; readonly PWD OLDPWD",
        "set -eu; unset PWD OLDPWD",
        "PWD=x; set -P",
        "cd() { echo mine; }",
    ],
)
async def test_a_bash_comes_back_to_its_folder_whatever_it_calls_that(own: str, box: headstart.Sandbox) -> None:
    shown = 'echo "${PWD-none} ${OLDPWD-none} $- $BASHPID"; /bin/pwd'
    await box.run_in_shell(f"mkdir a; cd a; {own}")
    before = (await box.run_in_shell(shown)).stdout
    for _ in range(2):
        await box.checkpoint()
        done = await box.run_in_shell(shown)
        assert (done.stdout, done.stderr, done.cwd) == (before, "", "/home/sandbox/a")


@pytest.mark.parametrize("held", ["exec 7>log", "exec 7<.", "exec >log", "mkfifo p; exec 7<>p", "exec 7<log; flock 7"])
async def test_a_bash_that_holds_files_is_named_and_goes_on_with_them(held: str, box: headstart.Sandbox) -> None:
    await box.run_in_shell(f"bash=$BASHPID; touch log; {held}")
    for keep in (box.checkpoint, box.fork):
        with pytest.raises(NotCapturable, match=r"runs bash \(\d+\): /home/sandbox"):
            await keep()
    done = await box.run_in_shell("[[ $BASHPID == $bash ]] && { echo on >&7 || echo on; } 2>/dev/null")
    assert done.exit_code == 0
    assert (await box.checkpoint(files_only=True)).left_out


async def test_what_a_session_only_reads_stays_open_over_a_checkpoint(box: headstart.Sandbox) -> None:
    await box.run_in_shell("printf '1\n2\n' > log; exec 7<log; read -r first <&7")
    await box.checkpoint()
    assert (await box.run_in_shell("read -r second <&7; echo $first $second")).stdout == "1 2\n"


@pytest.mark.parametrize(
    "started", ["(sleep 777 &)", "sleep 777 & disown", "setsid nohup sleep 777 > /dev/null 2>&1 &"]
)
async def test_what_a_session_has_started_and_let_go_of_is_named_and_goes_on(
    started: str, box: headstart.Sandbox
) -> None:
    await box.run_in_shell(f"{started} disown 2>/dev/null; true" if started.endswith("&") else started)
    for keep in (box.checkpoint, box.fork):
        with pytest.raises(NotCapturable, match="runs sleep"):
            await keep()
    assert (await box.run("pgrep -c sleep || grep -lsx sleep /proc/[0-9]*/comm | wc -l")).stdout.strip() == "1"


async def test_limits_the_folder_stack_and_ways_of_editing_are_kept(box: headstart.Sandbox) -> None:
    look = "ulimit -Sn; ulimit -Hn; ulimit -Sc; dirs -l -p; set -o | grep -E '^(vi|emacs) '"
    await box.run_in_shell(
        "ulimit -n 200; ulimit -Sn 100; ulimit -Sc 0; mkdir a; cd a; pushd /tmp; pushd /usr; set -o vi"
    )
    told = (await box.run_in_shell(look)).stdout
    assert told.startswith("100\n200\n0\n/usr\n/tmp\n/home/sandbox/a\n"), told
    kept = await box.checkpoint()
    assert (await box.run_in_shell(look)).stdout == told
    await box.rollback(kept)
    assert (await box.run_in_shell(look)).stdout == told
    async with await box.fork() as branch:
        assert (await branch.run_in_shell(look)).stdout == told


async def test_the_folder_of_a_bash_that_waited_may_be_gone(box: headstart.Sandbox) -> None:
    await box.run_in_shell("mkdir a; cd a; A=1")
    await box.checkpoint()
    await box.files.remove("a")
    done = await box.run_in_shell("echo $A; pwd")
    assert (done.stdout, done.cwd) == ("1\n/\n", "/")
    assert "the working folder /home/sandbox/a is gone" in done.stderr


async def test_a_bash_that_was_killed_while_it_waited_has_lost_nothing(box: headstart.Sandbox) -> None:
    await box.run_in_shell("A=1; cd /tmp; echo $BASHPID > ~/pid")
    await box.checkpoint()
    await box.run("kill -9 $(cat ~/pid); while kill -0 $(cat ~/pid) 2>/dev/null; do :; done")
    done = await box.run_in_shell("echo $A $PWD")
    assert (done.stdout, done.restarted) == ("1 /tmp\n", False)


async def test_a_rollback_to_before_there_was_a_session_has_none(box: headstart.Sandbox) -> None:
    kept = await box.checkpoint()
    await box.run_in_shell("A=1")
    await box.rollback(kept)
    done = await box.run_in_shell("echo ${A:-none}")
    assert (done.stdout, done.restarted) == ("none\n", False)


async def test_a_session_with_jobs_is_named_and_goes_on(box: headstart.Sandbox) -> None:
    await box.run_in_shell("A=1; sleep 1000 & B=2")
    with pytest.raises(NotCapturable, match="sleep"):
        await box.checkpoint()
    assert (await box.run_in_shell("echo $A$B; kill %1; wait")).stdout == "12\n"


async def test_files_alone_are_kept_beside_a_kernel_that_is_lost_by_a_rollback_and_says_so(
    box: headstart.Sandbox,
) -> None:
    await box.run_code("x = 1; open('log', 'w').write('before')")
    kept = await box.checkpoint(files_only=True)
    await box.run_code("x = 2; open('log', 'w').write('after')")
    assert (await box.run_code("x")).text == "2", "it went on"
    await box.rollback(kept)
    assert await box.files.read("log") == b"before"
    cell = await box.run_code("'x' in globals()")
    assert (cell.text, cell.restarted) == ("False", True)


async def test_checkpoints_beside_shell_commands_lose_none_of_them(box: headstart.Sandbox) -> None:
    async def count() -> None:
        for _ in range(12):
            assert (await box.run_in_shell("N=$((N+1))")).ok

    async def keep() -> None:
        for _ in range(12):
            with suppress(TransactionRefused):
                await box.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        tasks.start_soon(keep)
    assert (await box.run_in_shell("echo $N")).stdout == "12\n"


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.003, 0.006, 0.01])
@pytest.mark.parametrize("back", [False, True])
async def test_a_cancelled_command_costs_the_session_nothing(
    after_s: float,
    back: bool,
    box: headstart.Sandbox,
) -> None:
    await box.run_in_shell("A=1")
    kept = await box.checkpoint()
    if back:
        await box.rollback(kept)
    with anyio.move_on_after(after_s):
        await box.run_in_shell("true")
    assert (await box.run_in_shell("echo $A")).stdout == "1\n"


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.002, 0.004, 0.008])
async def test_a_cancelled_rollback_or_commit_has_all_of_its_state_or_nothing(
    after_s: float, box: headstart.Sandbox
) -> None:
    await box.run_in_shell("S=old; echo old > state")
    kept = await box.checkpoint()
    await box.run_in_shell("S=new; echo new > state")
    await _cancelled(box.rollback(kept), after_s)
    done = await _when_possible(lambda: box.run_in_shell("echo $S; cat state"))
    assert done.stdout in {"old\nold\n", "new\nnew\n"}
    branch = await box.fork()
    await branch.run_code("x = 'branch'; open('state', 'w').write(x)")
    await _cancelled(branch.commit(), after_s)
    await _when_possible(lambda: box.run("true"))
    if await box.files.read("state") == b"branch":
        assert (await box.run_code("x")).text == "'branch'"
    await branch.discard()


async def _cancelled(work: Coroutine[Any, Any, object], after_s: float) -> None:
    task = asyncio.ensure_future(work)
    await asyncio.sleep(after_s)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _when_possible(work: Callable[[], Awaitable[_T]]) -> _T:
    with anyio.fail_after(20):
        while True:
            try:
                return await work()
            except TransactionRefused:  # what was cancelled goes on
                await anyio.sleep(0.002)


async def test_a_branch_beside_what_only_runs_is_committed(box: headstart.Sandbox) -> None:
    await said(box, "cd /; setsid sleep 1000 >/dev/null 2>&1 </dev/null &")
    async with await box.fork(files_only=True) as branch:
        await branch.files.write("a", "text")
        await branch.commit()
    assert await box.files.read("a") == b"text"


async def test_a_kernel_that_a_commit_has_replaced_is_told_as_lost(box: headstart.Sandbox) -> None:
    branch = await box.fork()
    await branch.files.write("a", "x")
    async with branch:
        await branch.commit()
    await box.run_code("x = 1")
    await box.kernel.end()
    assert (await box.run_code("'x' in globals()")).text == "False"
    await box.run_code("import os; os.chdir('/')")
    async with await box.fork(files_only=True) as other:
        await other.commit()
    assert (await box.run_code("1")).restarted


async def test_who_keeps_the_same_state_twice_lets_go_of_it_twice(box: headstart.Sandbox) -> None:
    await box.run_in_shell("A=1")
    first, second = await box.checkpoint(), await box.checkpoint()
    await box.drop(first)
    await box.rollback(second)
    assert (await box.run_in_shell("echo $A")).stdout == "1\n"
    await box.drop(second)
    with pytest.raises(TransactionRefused, match="dropped"):
        await box.rollback(first)


async def test_a_branch_beside_what_runs_on_conflicts(box: headstart.Sandbox) -> None:
    await said(box, "echo 0 > c; setsid sh -c 'sleep 0.2; echo daemon > c; sleep 100' >/dev/null 2>&1 </dev/null &")
    async with await box.fork(files_only=True) as branch:
        with anyio.fail_after(20):
            while await box.files.read("c") != b"daemon\n":  # noqa: ASYNC110 it is another process that writes
                await anyio.sleep(0.01)
        with pytest.raises(Conflict):
            await branch.commit()


async def test_files_are_read_while_the_sandbox_is_replaced(box: headstart.Sandbox) -> None:
    await box.files.write("a", b"1")
    kept = await box.checkpoint()
    over = False

    async def read() -> None:
        while not over:
            assert await box.files.read("a") == b"1"

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(read)
        for _ in range(15):
            await box.rollback(kept)
        over = True


async def test_what_runs_beside_makes_another_state_each_time(box: headstart.Sandbox) -> None:
    """A branch of a moment is no branch of what came after, though no command of ours has run."""
    async with (
        box.start("read x; echo 1 > a; echo done; read y") as streams,
        await box.fork(files_only=True) as branch,
    ):
        await streams.stdin.send(b"\n")
        with anyio.fail_after(20):
            assert await streams.stdout.receive() == b"done\n"
        with pytest.raises(NotCapturable):
            await box.checkpoint()
        kept = await box.checkpoint(files_only=True)
        with pytest.raises(Conflict):
            await branch.commit()
    await box.rollback(kept)
    assert await said(box, "cat a") == "1"


async def test_nothing_replaces_a_sandbox_in_which_a_command_runs(box: headstart.Sandbox) -> None:
    kept = await box.checkpoint()
    async with anyio.create_task_group() as tasks:
        begun = anyio.Event()

        async def note(_stream: str, _chunk: bytes) -> None:
            begun.set()

        async def long() -> None:
            await box.run("echo begun; sleep 1000", on_output=note)

        tasks.start_soon(long)
        await begun.wait()
        with pytest.raises(TransactionRefused, match="run"):
            await box.rollback(kept)
        tasks.cancel_scope.cancel()
    await box.rollback(kept)


async def test_checkpoints_of_others_and_dropped_ones_are_refused(boxes: headstart.Sandboxes) -> None:
    async with boxes.create() as one, boxes.create() as other:
        kept = await one.checkpoint()
        with pytest.raises(TransactionRefused, match=f"no checkpoint of {other.id}"):
            await other.rollback(kept)
        await one.drop(kept)
        with pytest.raises(TransactionRefused, match="dropped"):
            await one.rollback(kept)
        async with await one.fork() as branch:
            for refused in (branch.checkpoint, branch.fork):
                with pytest.raises(TransactionRefused, match="branch"):
                    await refused()


async def test_a_sandbox_without_isolation_says_that_it_has_no_layers(tmp_path: Path) -> None:
    async with headstart.Sandboxes.open(backend="process", state_dir=tmp_path) as boxes, boxes.create() as box:
        for refused in (box.checkpoint, box.fork):
            with pytest.raises(BackendError, match="no layers"):
                await refused()
        assert (await box.run("echo alive")).stdout == "alive\n"


async def test_a_sandbox_that_is_gone_is_neither_kept_nor_forked(box: headstart.Sandbox) -> None:
    kept = await box.checkpoint()
    await box.kill()
    for refused in (box.checkpoint, box.fork, lambda: box.rollback(kept), lambda: box.run("true")):
        with pytest.raises(BackendError, match="closed"):
            await refused()


async def test_many_branches_of_one_state_are_each_their_own(box: headstart.Sandbox) -> None:
    await box.files.write("n", b"origin")
    branches = [await box.fork() for _ in range(8)]

    async def work(number: int, branch: headstart.Branch) -> None:
        await branch.run(f"echo {number} > n; echo {number} > only-{number}")

    async with anyio.create_task_group() as tasks:
        for number, branch in enumerate(branches):
            tasks.start_soon(work, number, branch)
    for number, branch in enumerate(branches):
        assert await said(branch, "cat n; ls") == f"{number}\nn\nonly-{number}"
    await branches[3].commit()
    assert await said(box, "cat n") == "3"
    with pytest.raises(Conflict):
        await branches[4].commit()
    for branch in branches:
        await branch.discard()
    assert await said(box, "ls") == "n\nonly-3"


async def test_who_is_cancelled_while_a_command_runs_leaves_the_sandbox_as_free_as_before(
    box: headstart.Sandbox,
) -> None:
    for _ in range(3):
        with anyio.move_on_after(0.1):
            async with box.start("sleep 1000"):
                await anyio.sleep_forever()
        before = box.state_version
        await box.rollback(await box.checkpoint())
        with anyio.move_on_after(0.1):
            async with box.start("sleep 1000"):
                await anyio.sleep_forever()
        assert box.state_version != before, "it may have changed something"


async def test_whatever_has_become_the_sandbox_is_told_of_by_the_sandboxs_name(box: headstart.Sandbox) -> None:
    branch = await box.fork()
    await branch.run("sleep 1000 >/dev/null 2>&1 &")
    await branch.commit()
    with pytest.raises(NotCapturable, match=f"^{box.id} runs sleep"):
        await box.checkpoint()
    async with box.start("sleep 1000"):
        with pytest.raises(NotCapturable, match=f"^{box.id} runs sleep"):
            await box.checkpoint()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(box.run, "touch begun; sleep 1000")
        with anyio.fail_after(20):
            await box.run("until test -e begun; do sleep 0.01; done")
        with pytest.raises(TransactionRefused, match=f"is in flight in {box.id}"):
            await box.checkpoint()
        tasks.cancel_scope.cancel()
    with pytest.raises(BackendError, match="No space left on device") as full:
        await fill_and_go_back(box)
    assert full.value.hint == "what it may write is used up: delete something in it, and try again"
    await box.run("rm filled")
    await box.rollback((await box.checkpoint(files_only=True)).id)


async def fill_and_go_back(box: headstart.Sandbox) -> None:
    """Have no room left, not even for an empty folder."""
    kept = await box.checkpoint(files_only=True)
    await box.run("cat /dev/zero > filled; i=0; while mkdir -p filler/$i; do i=$((i+1)); done 2>/dev/null")
    try:
        await box.rollback(kept)
    finally:
        await box.run("rm -r filler")


FORGETFUL = """
import sys
import anyio
import headstart

async def main():
    async with headstart.Sandboxes.open(state_dir=sys.argv[1]) as boxes, boxes.create() as box:
        await box.run_code("x = 1")
        await box.run_in_shell("NAME=value")
        branch, other = await box.fork(files_only=True), await box.fork(files_only=True)
        await branch.run_code("x = 2")
        await branch.run_in_shell("NAME=other")
        branch = other
        await branch.run_code("x = 3")
        await branch.run_in_shell("NAME=third")
        del branch, other
        await box.run_code("x")

anyio.run(main)
"""


@pytest.mark.skipif(not may_make_namespaces(), reason="the local backend cannot run here: no namespaces")
def test_a_branch_that_nobody_holds_or_discards_ends_with_its_sandbox_without_a_word(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORGETFUL, str(tmp_path / "state")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
