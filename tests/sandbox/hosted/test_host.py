"""`SandboxHost`: who lives, by which name, until when, and what is told of it."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
from tests.machine import may_make_namespaces, where_files_outlive
from tests.sandbox.hosted.hosting import open_host

from headstart.errors import BackendError, ConfigError, HeadstartError, SandboxUnknown, TransactionRefused
from headstart.ids import IdParts
from headstart.sandbox import SandboxOptions
from headstart.sandbox.hosted import SandboxHost
from headstart.sandbox.hosted.messages import Event, HostedEvent
from headstart.sandbox.hosted.summary import HostedSummary
from headstart.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.anyio

SOON_S = 20.0
PLAIN = SandboxOptions()


async def ended(events: AsyncGenerator[Event], sandbox: str) -> Event:
    with anyio.fail_after(SOON_S):
        async for event in events:
            if event.event.value == "ended" and event.sandbox == sandbox:
                return event
    raise AssertionError("nothing more is told")


async def ids(host: SandboxHost) -> list[str]:
    return [each.id for each in await host.list()]


async def test_a_sandbox_is_found_by_its_id_its_name_and_the_beginning_of_its_id(host: SandboxHost) -> None:
    box = await host.create(PLAIN, name="work")
    for said in (box.id, "work", box.id[:8], box.id.removeprefix("box_")[:3]):
        assert (await host.look(said)).id == box.id
    for said in ("", "box_", "b", "wor", box.id.removeprefix("box_")[:2], box.id + "0"):
        with pytest.raises(SandboxUnknown):
            await host.look(said)


async def test_a_beginning_that_several_have_names_them(tmp_path: Path) -> None:
    if not may_make_namespaces():
        pytest.skip("the local backend cannot run here: no namespaces")
    async with open_host(tmp_path, ids=AlikeIds()) as host:
        boxes = [await host.create(PLAIN) for _ in range(2)]
        with pytest.raises(SandboxUnknown, match=f"could be {boxes[0].id}, {boxes[1].id}") as told:
            await host.look("abcd")
        assert told.value.hint == "write more of its id"
        assert (await host.look(boxes[1].id)).id == boxes[1].id


class AlikeIds:
    """Ids that begin alike."""

    def __init__(self) -> None:
        self._next = itertools.count(1)

    def new(self, kind: str) -> str:
        return f"{kind}_abcd{next(self._next):04}"


@where_files_outlive
async def test_an_id_says_its_node_and_is_found_with_it_or_without(tmp_path: Path) -> None:
    if not may_make_namespaces():
        pytest.skip("the local backend cannot run here: no namespaces")
    async with open_host(tmp_path) as host:
        before = (await host.create(PLAIN)).id
    async with open_host(tmp_path, node="gpu-3") as host:
        box = await host.create(PLAIN)
        branch = await host.fork(box.id)
        parts = IdParts.read(box.id)
        assert parts is not None
        assert (str(parts), parts.node, len(parts.unique)) == (box.id, "gpu-3", 24)
        assert branch.id.startswith("box_gpu-3-")
        for said in (box.id, parts.unique[:6], f"gpu-3-{parts.unique[:6]}", f"box_gpu-3-{parts.unique[:6]}"):
            assert (await host.look(said)).id == box.id
        with pytest.raises(SandboxUnknown, match="could be "):
            await host.look("gpu-3")
        assert (await host.look(before[:10])).id == before, "one that was made before the machine had a name"
        for said in ("box_gpu-4-0123456789ab", "box_gpu-4-01"):
            with pytest.raises(SandboxUnknown) as told:
                await host.look(said)
            assert str(told.value) == f"{said} lives on the node gpu-4, and this one is gpu-3"
        with pytest.raises(SandboxUnknown, match="there is no sandbox 'box_gpu-3-00'"):
            await host.look("box_gpu-3-00")
        await host.commit(branch.id)
    async with open_host(tmp_path) as host:
        assert {each.id for each in await host.list()} == {before, box.id}
        with pytest.raises(SandboxUnknown, match="lives on the node gpu-4, and this one has no name"):
            await host.look("box_gpu-4-0123456789ab")


async def test_the_beginning_of_a_checkpoint_s_id_is_enough_if_no_other_has_it(tmp_path: Path) -> None:
    if not may_make_namespaces():
        pytest.skip("the local backend cannot run here: no namespaces")
    async with open_host(tmp_path, ids=AlikeIds()) as host:
        box = await host.create(PLAIN)
        kept: list[str] = []
        for content in (b"1", b"2"):
            await box.files.write("f", content)
            kept.append((await host.checkpoint(box.id)).id)
        with pytest.raises(TransactionRefused, match=f"'abcd' could be {kept[0]}, {kept[1]}"):
            await host.rollback(box.id, "abcd")
        async with host.happenings.watching() as events:
            await host.rollback(box.id, kept[0].removeprefix("chk_"))
            assert (await anext(events)).about == kept[0]
        assert await box.files.read("f") == b"1"
        with pytest.raises(TransactionRefused):
            await host.rollback(box.id, "none")
        await host.drop(box.id, kept[1])
        await host.rollback(box.id, "abcd")


async def test_a_name_goes_before_the_beginning_of_an_id_and_is_free_again_after_its_end(host: SandboxHost) -> None:
    one = await host.create(PLAIN)
    other = await host.create(PLAIN, name=one.id.removeprefix("box_")[:5])
    assert (await host.look(one.id.removeprefix("box_")[:5])).id == other.id
    await host.kill(other.id)
    assert (await host.look(one.id.removeprefix("box_")[:5])).id == one.id


@pytest.mark.parametrize("name", ["", "a b", "-a", "box_a", "x" * 64, "a/b", "a:b", "ä", "a\n"])
async def test_what_can_be_no_name_is_none(name: str, host: SandboxHost) -> None:
    with pytest.raises(ConfigError, match="cannot be a sandbox's name"):
        await host.create(PLAIN, name=name)
    assert await ids(host) == []


async def test_of_two_that_want_a_name_at_once_one_gets_it(host: SandboxHost) -> None:
    made: list[Sandbox] = []
    refused: list[ConfigError] = []

    async def create() -> None:
        try:
            made.append(await host.create(PLAIN, name="wanted"))
        except ConfigError as error:
            refused.append(error)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(create)
    assert (len(made), len(refused)) == (1, 2)
    assert {str(each) for each in refused} == {f"name: {made[0].id} is called 'wanted' already"}
    assert await ids(host) == [made[0].id]


async def test_what_was_nearly_meant_is_told(host: SandboxHost) -> None:
    await host.create(PLAIN, name="training")
    with pytest.raises(SandboxUnknown) as told:
        await host.look("trainign")
    assert told.value.hint == "did you mean training?"


async def test_one_that_nobody_uses_ends_and_one_that_is_used_does_not(host: SandboxHost) -> None:
    async with host.happenings.watching() as events:
        idle = await host.create(PLAIN, ends_after_idle_s=0.3)
        used = await host.create(PLAIN, ends_after_idle_s=0.3)
        later = await host.create(PLAIN, ends_after_idle_s=0.8)
        with host.using(used.id):
            assert (await ended(events, idle.id)).about == "nobody had used it for 0.3 s"
            await ended(events, later.id)
            assert (await host.look(used.id)).idle_s == 0
        assert (await ended(events, used.id)).about == "nobody had used it for 0.3 s"
    with pytest.raises(SandboxUnknown, match="nobody had used it for"):
        await host.look(idle.id)


async def test_branches_end_with_their_sandbox_and_are_told_first(host: SandboxHost) -> None:
    box = await host.create(PLAIN)
    branches = [await host.fork(box.id) for _ in range(2)]
    async with host.happenings.watching() as events:
        await host.kill(box.id)
        told = [await anext(events) for _ in range(3)]
    assert [each.sandbox for each in told] == [branches[0].id, branches[1].id, box.id]
    assert told[0].about == "the sandbox that it was forked from has ended (it was killed)"
    assert await ids(host) == []


async def test_a_branch_whose_init_is_killed_says_why_and_its_sandbox_stays(host: SandboxHost) -> None:
    box = await host.create(PLAIN)
    branch = await host.fork(box.id)
    async with host.happenings.watching() as events:
        await kill_init(branch, events)
    assert await ids(host) == [box.id]
    with pytest.raises(SandboxUnknown):
        await host.look(branch.id)


@where_files_outlive
async def test_one_whose_init_is_killed_says_why_and_is_brought_back_with_its_branches(host: SandboxHost) -> None:
    box = await host.create(PLAIN)
    branch = await host.fork(box.id)
    async with host.happenings.watching() as events:
        await kill_init(box, events)
        with pytest.raises(SandboxUnknown, match=f"{branch.id} is being brought back"):
            await host.kill(branch.id)
        with anyio.fail_after(20):
            while (event := await anext(events)).event is not HostedEvent.BROUGHT_BACK:
                pass
        assert event.sandbox == box.id
    assert {*await ids(host)} == {box.id, branch.id}
    await host.kill(branch.id)
    assert await ids(host) == [box.id]


async def kill_init(victim: Sandbox, events: AsyncGenerator[Event]) -> None:
    os.kill(victim._current().pid, signal.SIGKILL)  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage, reportUnknownArgumentType, reportUnknownMemberType]
    assert (await ended(events, victim.id)).about == "it ended by itself: its first process is gone"


async def test_one_that_cannot_be_started_says_why_and_nothing_of_it_is_left(host: SandboxHost, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("what root's sandboxes cannot be started with is known: devices whose folder is mounted")
    with pytest.raises(BackendError, match=r"could not be built: .*/dev/"):
        await host.create(SandboxOptions(mounts={"/dev": "ro"}))
    assert list((tmp_path / "hosted").iterdir()) == []
    assert [path for path in (tmp_path / "backend").rglob("box_*") if path.is_dir()] == []


async def test_a_kill_twice_at_once_ends_it_once_and_both_hear_of_it(host: SandboxHost) -> None:
    box = await host.create(PLAIN)
    async with host.happenings.watching() as events:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(host.kill, box.id)
        assert await ids(host) == []
        assert (await anext(events)).about == "it was killed"
        other = await host.create(PLAIN)
        assert (await anext(events)).sandbox == other.id


async def test_a_create_that_is_cancelled_at_any_moment_leaves_nothing_or_one_that_lives(host: SandboxHost) -> None:
    await host.kill((await host.create(PLAIN)).id)
    for number in range(40):
        box = None
        with anyio.move_on_after(0.0004 * number):
            box = await host.create(PLAIN, name="wanted")
        lives = await ids(host)
        assert lives == ([] if box is None else [box.id])
        for each in lives:
            await host.kill(each)


async def test_a_branch_can_be_committed_or_killed_the_moment_it_is_there(host: SandboxHost) -> None:
    box = await host.create(PLAIN)
    for end in (host.commit, host.kill) * 3:
        await end((await host.fork(box.id)).id)
    assert await ids(host) == [box.id]
    assert (await box.run("true")).ok


async def test_a_fork_that_is_cancelled_at_any_moment_leaves_its_sandbox_and_no_branch_that_is_dead(
    host: SandboxHost,
) -> None:
    box = await host.create(PLAIN)
    await host.kill((await host.fork(box.id)).id)
    for number in range(40):
        with anyio.move_on_after(0.0005 * number):
            await host.fork(box.id)
        for each in await host.list():
            with host.using(each.id) as lives:
                assert (await lives.run("true")).ok
            if each.branch_of is not None:
                await host.kill(each.id)
    assert await ids(host) == [box.id]
    await box.files.write("f", b"")
    assert (await box.run("ls")).stdout == "f\n"


async def test_what_is_done_to_one_that_is_being_killed_is_refused_and_nothing_hangs(host: SandboxHost) -> None:
    box = await host.create(PLAIN)
    outcomes: list[HeadstartError] = []

    async def use() -> None:
        try:
            with host.using(box.id) as used:
                await used.run("sleep 1000")
        except HeadstartError as error:
            outcomes.append(error)

    with anyio.fail_after(SOON_S):
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(use)
            await anyio.lowlevel.checkpoint()
            tasks.start_soon(host.kill, box.id)
    assert len(outcomes) == 5
    assert all(isinstance(each, (BackendError, TransactionRefused, SandboxUnknown)) for each in outcomes)
    assert await ids(host) == []


async def test_who_does_not_read_events_misses_the_oldest_alone(host: SandboxHost) -> None:
    box = await host.create(PLAIN)
    async with host.happenings.watching() as events:
        for _ in range(600):
            await host.pause(box.id)
            await host.resume(box.id)
        first = await anext(events)
        assert first.event.value in {"paused", "resumed"}
        count = 1
        await host.kill(box.id)
        async for event in events:
            count += 1
            if event.event.value == "ended":
                break
        assert count == 1_001


@pytest.mark.skipif(os.geteuid() != 0, reason="what the first process of an idle sandbox uses shows to root alone")
async def test_they_are_counted_by_what_they_are_at_and_many_are_measured_in_turns(host: SandboxHost) -> None:
    assert await host.memory_bytes() == 0
    boxes = [await host.create(PLAIN) for _ in range(18)]
    first, second, third = [await host.memory_bytes() for _ in range(3)]
    assert 0 < first < second
    assert third > 0
    branch = await host.fork(boxes[0].id)
    await host.pause(boxes[1].id)
    await host.hibernate(boxes[2].id)
    for box in boxes[4:]:
        await host.kill(box.id)
    found = await host.summary()
    assert (found.running, found.paused, found.hibernated, found.broken, found.branches) == (2, 1, 1, 0, 1)
    assert 0 < found.memory_bytes < second
    await host.kill(branch.id)
    for box in boxes[:4]:
        await host.kill(box.id)
    assert await host.summary() == HostedSummary(
        running=0, paused=0, hibernated=0, broken=0, branches=0, memory_bytes=0
    )
