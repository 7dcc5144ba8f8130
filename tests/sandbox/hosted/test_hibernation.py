"""Hibernated sandboxes: nothing of them runs, nothing of them is lost, and who uses one wakes it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
from tests.machine import may_make_namespaces, where_files_outlive
from tests.sandbox.hosted.hosting import on_disk, open_host

from headstart.errors import BackendError, ConfigError, SandboxUnknown, TransactionRefused
from headstart.ids import SessionId
from headstart.sandbox import HostedSandbox, HostedSandboxes, SandboxOptions
from headstart.sandbox.hosted import OfSession, SandboxHost
from headstart.sandbox.hosted.messages import Event, HostedEvent, SandboxState
from headstart.sandbox.sandbox import Sandbox
from headstart.sandbox.sandboxes import Sandboxes

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not may_make_namespaces(), reason="the local backend cannot run here: no namespaces"),
    where_files_outlive,
]

SOON_S = 20.0
PLAIN = SandboxOptions()
CYCLES = 100


async def state_of(host: SandboxHost, sandbox: str) -> SandboxState:
    return (await host.look(sandbox)).state


async def told(events: AsyncGenerator[Event], count: int) -> list[tuple[HostedEvent, str]]:
    with anyio.fail_after(SOON_S):
        return [(each.event, each.about) for each in [await anext(events) for _ in range(count)]]


def left_of(pid: int, sandbox: str, folder: Path) -> list[str]:
    """Return what is left of a sandbox that ran: its process, control groups, loop devices on what is in a folder."""
    devices = [path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    return [
        *(str(path) for path in [Path(f"/proc/{pid}")] if path.exists()),
        *(str(path) for path in Path("/sys/fs/cgroup").rglob(f"*{sandbox}*")),
        *(text for text in devices if str(folder) in text),
    ]


async def test_a_hundred_times_hibernated_and_woken_nothing_is_lost(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        box = await host.create(PLAIN, name="mine")
        async with host.awake("mine") as used:
            await used.run("mkdir -p d; ln -s ../f d/l; chmod 751 d")
            await used.run_in_shell("cd d; N=0; step() { N=$((N + 1)); echo $N >> ~/f; }")
        kept = (await host.checkpoint("mine")).id
        for number in range(1, CYCLES + 1):
            await host.hibernate("mine")
            async with host.awake("mine") as used:
                done = await used.run_in_shell("step; echo $N; pwd")
                assert (done.stdout, done.restarted) == (f"{number}\n/home/sandbox/d\n", False)
        async with host.awake("mine") as used:
            expected = "".join(f"{number}\n" for number in range(1, CYCLES + 1))
            assert (await used.run("cat d/l; stat -c %a d")).stdout == f"{expected}751\n"
        assert [each.id for each in (await host.look("mine")).checkpoints] == [kept]
        await host.rollback("mine", kept)
        async with host.awake("mine") as used:
            assert (await used.run("cat d/l")).stdout == ""
        assert used.id == box.id
    journal = tmp_path / "hosted" / box.id / "journal"
    assert len(journal.read_bytes().rstrip(b"\0")) < 10_000, "it does not grow with each time"


async def test_nothing_of_a_hibernated_sandbox_is_there_but_its_files(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        box = await host.create(PLAIN)
        await box.run("sleep 1000 & echo $! > f")
        pid: int = box._current().pid  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage, reportUnknownMemberType, reportUnknownVariableType]
        await host.hibernate(box.id)
        assert left_of(int(pid), box.id, tmp_path) == []  # pyright: ignore[reportUnknownArgumentType]
        info = await host.look(box.id)
        assert (info.state, info.usage.memory_bytes, info.usage.processes) == (SandboxState.HIBERNATED, 0, 0)
        assert [each.id for each in await host.list()] == [box.id]


async def test_who_uses_it_wakes_it_and_who_looks_at_it_does_not(
    host: SandboxHost, service: HostedSandboxes, box: HostedSandbox
) -> None:
    await box.files.write("f", b"1")
    kept = await box.checkpoint()
    await box.hibernate()
    await box.hibernate()
    await box.keep_alive()
    await box.pause()
    assert (await (await service.get(box.id)).info()).state is SandboxState.HIBERNATED
    [listed] = await service.list()
    assert (listed.state, listed.checkpoints, listed.idle_s) == (
        SandboxState.HIBERNATED,
        (await box.info()).checkpoints,
        0,
    )
    assert [each.id for each in listed.checkpoints] == [kept.id]
    uses = (
        lambda: box.run("true"),
        lambda: box.run_code("1"),
        lambda: box.run_in_shell("true"),
        lambda: box.files.read("f"),
        lambda: box.files.write("f", b"1"),
        box.files.list,
        box.checkpoint,
        lambda: box.rollback(kept),
        box.resume,
        box.fork,
    )
    for use in uses:
        await use()
        assert await state_of(host, box.id) is SandboxState.RUNNING
        for each in await service.list():
            if each.branch_of is not None:
                await host.kill(each.id)
        await box.hibernate()


async def test_a_kernel_is_lost_and_told_once_also_if_it_was_hibernated_again_meanwhile(host: SandboxHost) -> None:
    box = await host.create(PLAIN)
    async with host.awake(box.id) as used:
        await used.run_code("x = 1")
        await used.run_in_shell("sleep 1000 &")
    for _ in range(2):
        await host.hibernate(box.id)
        async with host.awake(box.id) as used:
            await used.run("true")
    async with host.awake(box.id) as used:
        assert (await used.run_code("'x' in globals()")).restarted
        assert not (await used.run_code("1")).restarted
        assert (await used.run_in_shell("true")).restarted, "a session that has jobs cannot be kept"
        assert not (await used.run_in_shell("true")).restarted


async def test_a_paused_one_can_be_hibernated_with_its_bash_session(host: SandboxHost) -> None:
    box = await host.create(PLAIN)
    async with host.awake(box.id) as used:
        await used.run_in_shell("W=7")
    await host.pause(box.id)
    await host.hibernate(box.id)
    async with host.awake(box.id) as used:
        assert (await used.run_in_shell("echo $W")).stdout == "7\n"


async def test_it_stays_hibernated_over_restarts_with_its_name_and_checkpoints(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        box = await host.create(PLAIN, name="mine", hibernates_after_idle_s=1000)
        await box.files.write("f", b"1")
        async with host.awake("mine") as used:
            await used.run_in_shell("W=7")
        kept = await host.checkpoint("mine")
        await host.hibernate("mine")
        before = await host.look("mine")
    for _ in range(2):
        async with open_host(tmp_path) as host:
            assert await host.look(box.id[:10]) == before
            assert before.checkpoints[0].id == kept.id
            with pytest.raises(ConfigError, match="is called 'mine' already"):
                await host.create(PLAIN, name="mine")
    async with open_host(tmp_path) as host, host.awake("mine") as used:
        assert await used.files.read("f") == b"1"
        assert (await used.run_in_shell("echo $W")).stdout == "7\n"
        info = await host.look("mine")
        assert (info.state, info.hibernates_after_idle_s) == (SandboxState.RUNNING, 1000)
    async with open_host(tmp_path) as host:
        assert await state_of(host, "mine") is SandboxState.RUNNING, "it was woken"


async def test_what_happens_is_told(host: SandboxHost) -> None:
    box = await host.create(PLAIN)
    async with host.happenings.watching() as events:
        await host.hibernate(box.id)
        await host.resume(box.id)
        await host.hibernate(box.id)
        await host.kill(box.id)
        assert await told(events, 5) == [
            (HostedEvent.HIBERNATED, "it was hibernated"),
            (HostedEvent.WOKEN, ""),
            (HostedEvent.RESUMED, ""),
            (HostedEvent.HIBERNATED, "it was hibernated"),
            (HostedEvent.ENDED, "it was killed"),
        ]
    with pytest.raises(SandboxUnknown, match="has ended: it was killed"):
        await host.look(box.id)
    assert await host.list() == ()


async def test_one_that_nobody_uses_is_hibernated_if_that_is_wanted_but_not_while_it_has_branches(
    host: SandboxHost,
) -> None:
    async with host.happenings.watching() as events:
        idle = await host.create(PLAIN, hibernates_after_idle_s=0.3)
        assert await told(events, 2) == [
            (HostedEvent.CREATED, ""),
            (HostedEvent.HIBERNATED, "nobody had used it for 0.3 s"),
        ]
        other = await host.create(PLAIN, hibernates_after_idle_s=0.9)
        branch = await host.fork(idle.id)
        assert [event for event, _ in await told(events, 4)] == [
            HostedEvent.CREATED,
            HostedEvent.WOKEN,
            HostedEvent.FORKED,
            HostedEvent.HIBERNATED,
        ]
        assert await state_of(host, other.id) is SandboxState.HIBERNATED
        assert await state_of(host, idle.id) is SandboxState.RUNNING
        await host.kill(branch.id)
        assert [event for event, _ in await told(events, 2)] == [HostedEvent.ENDED, HostedEvent.HIBERNATED]


async def test_what_would_be_lost_is_told_and_nothing_is_done(host: SandboxHost) -> None:
    box = await host.create(PLAIN)
    async with host.awake(box.id):
        with pytest.raises(TransactionRefused, match="is at something that somebody waits for"):
            await host.hibernate(box.id)
    branch = await host.fork(box.id)
    with pytest.raises(TransactionRefused, match=f"has branches that would be lost: {branch.id}"):
        await host.hibernate(box.id)
    with pytest.raises(TransactionRefused, match="is a branch, and cannot be hibernated"):
        await host.hibernate(branch.id)
    tied = await host.create(PLAIN, session=OfSession(id=SessionId("one"), away_s=60))
    with pytest.raises(TransactionRefused, match="cannot be hibernated: it ends with its session"):
        await host.hibernate(tied.id)
    with pytest.raises(ConfigError, match="hibernates_after_idle_s: it cannot end and be hibernated"):
        await host.create(PLAIN, ends_after_idle_s=10, hibernates_after_idle_s=5)
    with pytest.raises(ConfigError, match="hibernates_after_idle_s: -1 is no time"):
        await host.create(PLAIN, hibernates_after_idle_s=-1)
    assert {each.state for each in await host.list()} == {SandboxState.RUNNING}


async def test_one_that_lives_in_this_process_alone_refuses(tmp_path: Path) -> None:
    async with Sandboxes.open(state_dir=tmp_path) as boxes, boxes.create() as box:
        with pytest.raises(TransactionRefused, match="lives in this process alone"):
            await box.hibernate()
        assert (await box.run("true")).ok


async def test_of_many_that_use_it_at_once_all_find_it_and_it_is_woken_once(host: SandboxHost) -> None:
    box = await host.create(PLAIN)
    await host.hibernate(box.id)
    found: list[Sandbox] = []

    async def use() -> None:
        async with host.awake(box.id) as used:
            assert (await used.run("true")).ok
            found.append(used)

    async with host.happenings.watching() as events:
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(use)
        assert len(set(map(id, found))) == 1
        assert await told(events, 1) == [(HostedEvent.WOKEN, "")]


async def test_who_uses_it_or_kills_it_while_it_is_being_hibernated_or_woken_has_what_he_asked_for(
    host: SandboxHost,
) -> None:
    for number in range(24):
        box = await host.create(PLAIN)
        outcomes: list[str] = []

        async def use(name: str, outcomes: list[str]) -> None:
            try:
                async with host.awake(name) as used:
                    await used.run("true")
                outcomes.append("used")
            except (SandboxUnknown, BackendError, TransactionRefused):
                outcomes.append("refused")

        async def hibernate(name: str, outcomes: list[str]) -> None:
            try:
                await host.hibernate(name)
                outcomes.append("hibernated")
            except (SandboxUnknown, TransactionRefused):
                outcomes.append("refused")

        with anyio.fail_after(SOON_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hibernate, box.id, outcomes)
                tasks.start_soon(use, box.id, outcomes)
                await anyio.sleep(0.002 * number)  # so that the kill comes at each moment of it
                await host.kill(box.id)
        assert len(outcomes) == 2
        assert await host.list() == (), f"killed in round {number}"


async def test_a_wake_that_nobody_waits_for_any_more_is_seen_through(host: SandboxHost) -> None:
    box = await host.create(PLAIN)
    await box.files.write("f", b"1")
    for number in range(12):
        await host.hibernate(box.id)
        with anyio.move_on_after(0.001 * number):
            await host.resume(box.id)
        async with host.awake(box.id) as used:
            assert await used.files.read("f") == b"1"
        assert [each.id for each in await host.list()] == [box.id]


async def test_one_that_cannot_be_woken_says_why_stays_and_is_woken_when_it_can_be(
    host: SandboxHost, tmp_path: Path
) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    box = await host.create(SandboxOptions(mounts={str(shown): "ro"}))
    await box.files.write("f", b"1")
    await host.hibernate(box.id)
    shown.rmdir()
    for _ in range(2):
        with pytest.raises(BackendError, match=r"cannot be woken: .*is to be mounted, but does not exist"):
            await host.resume(box.id)
        assert await state_of(host, box.id) is SandboxState.HIBERNATED
    shown.mkdir()
    async with host.awake(box.id) as used:
        assert await used.files.read("f") == b"1"
    await host.hibernate(box.id)
    shown.rmdir()
    await host.kill(box.id)
    assert on_disk(tmp_path) == (set(), set())


async def test_waking_is_told_where_only_what_runs_is_wanted(host: SandboxHost) -> None:
    box = await host.create(PLAIN)
    await host.hibernate(box.id)
    with pytest.raises(SandboxUnknown, match="is hibernated") as refused, host.using(box.id):
        pass
    assert refused.value.hint == f"headstart sandbox resume {box.id} wakes it"
