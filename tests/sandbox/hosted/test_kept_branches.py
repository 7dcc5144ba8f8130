"""Branches of hosted sandboxes after the service has ended, however: they are there, or they are gone, entirely."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.machine import may_make_namespaces, where_files_outlive
from tests.sandbox.hosted.hosting import it_can_go_on, killed, on_disk, open_host

from headstart.errors import BackendError, Conflict, SandboxUnknown
from headstart.runtime.identities import IdentityChoice
from headstart.sandbox.hosted import SandboxHost, keeping
from headstart.sandbox.hosted.messages import HostedEvent, SandboxState
from headstart.sandbox.options import SandboxOptions
from headstart.sandbox.sandbox import Sandbox

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not may_make_namespaces(), reason="the local backend cannot run here: no namespaces"),
    where_files_outlive,
]


JOURNAL_ACTS = {
    "fork": ("ForkRequested", "Carried", "BranchForked", "remember"),
    "fork with branches": ("ForkRequested", "Carried", "BranchForked", "remember"),
    "commit": ("CommitRequested", "StateStaged", "StateVerified", "StateSwapped", "forget", "GarbageCollected"),
    "discard": ("forget", "DiscardRequested", "GarbageCollected"),
    "write": ("RunRequested 3", "RunEnded 3"),  # those before tell that the branches have been written to
    "stop": ("leave", "leave 2", "suspend", "close"),
    "start": ("open", "keep", "LineageOpened", "tidy", "start", "start 2", "start 3", "record", "record 3"),
}
MOMENTS = [
    (act, f"{when}:{step}") for act, steps in JOURNAL_ACTS.items() for step in steps for when in ("before", "after")
]


def is_swapped(act: str, moment: str) -> bool:
    later = {"after:StateSwapped", "before:forget", "after:forget", "before:GarbageCollected", "after:GarbageCollected"}
    return act == "commit" and moment in later


def expected(act: str, moment: str) -> list[bytes]:
    """Return what the branches hold that are there after the kill."""
    match act, moment:
        case "fork", "after:remember":
            return [b"2"]
        case "fork", _:
            return []
        case "fork with branches", "after:remember":
            return [b"2", b"3", b"4"]
        case "discard", "before:forget":
            return [b"3", b"4"]
        case "discard", _:
            return [b"4"]
        case _:
            return [b"4"] if is_swapped(act, moment) else [b"3", b"4"]


def is_all_there(state: Path, box: str, branches: list[str]) -> None:
    """Nothing lies about but what belongs to these."""
    assert on_disk(state) == ({box}, {box})
    records = {path.name for path in (state / "hosted" / box).iterdir()}
    assert records == {"record.json", "journal", *(f"branch-{branch}.json" for branch in branches)}
    [manifest] = [path for path in state.rglob("manifest.json") if path.parent.name == box]
    assert len(json.loads(manifest.read_text())["sandboxes"]) == 1 + len(branches)


async def contents(host: SandboxHost) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for each in await host.list():
        with host.using(each.id) as box:
            found[each.id] = await box.files.read("f")
    return found


@pytest.mark.parametrize(("act", "moment"), MOMENTS, ids=[f"{act}, {moment}" for act, moment in MOMENTS])
async def test_a_service_that_is_killed_at_any_moment_leaves_each_branch_whole_or_nothing_of_it(
    act: str, moment: str, tmp_path: Path
) -> None:
    await anyio.to_thread.run_sync(killed, tmp_path, act, moment)
    async with open_host(tmp_path) as host:
        [box] = [each.id for each in await host.list() if each.branch_of is None]
        assert {each.branch_of for each in await host.list()} <= {None, box}
        found = await contents(host)
        canonical = found.pop(box)
        is_written = act == "write" and moment.endswith("RunEnded 3")
        assert canonical == (b"3" if is_swapped(act, moment) else b"5" if is_written else b"2")
        assert sorted(found.values()) == expected(act, moment)
        is_all_there(tmp_path, box, [*found])
        has_changed = is_swapped(act, moment) or (act == "write" and moment != "before:RunRequested 3")
        for branch, content in [*found.items()]:
            with host.using(box) as origin:
                if has_changed:
                    with pytest.raises(Conflict):
                        await host.commit(branch)
                    assert await origin.files.read("f") == canonical
                    await host.kill(branch)
                else:
                    await host.commit(branch)
                    assert await origin.files.read("f") == content
                    has_changed, canonical = True, content
        with host.using(box) as origin:
            await origin.files.write("f", b"2")
            await it_can_go_on(host, origin, b"2")
    async with open_host(tmp_path) as host:
        assert [each.id for each in await host.list()] == [box]
        is_all_there(tmp_path, box, [])


async def test_a_branch_outlives_a_service_that_is_stopped_and_can_be_committed(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        box = await host.create(SandboxOptions(), name="mine")
        await box.files.write("f", b"1")
        branch = await host.fork(box.id)
        await branch.files.write("f", b"2")
    async with open_host(tmp_path) as host:
        assert {each.id: (each.name, each.branch_of) for each in await host.list()} == {
            box.id: ("mine", None),
            branch.id: (None, box.id),
        }
        with host.using(branch.id) as again, host.using(box.id) as origin:
            assert (await again.files.read("f"), await origin.files.read("f")) == (b"2", b"1")
            await host.commit(branch.id)
            assert await origin.files.read("f") == b"2"
        assert [each.id for each in await host.list()] == [box.id]
        assert on_disk(tmp_path) == ({box.id}, {box.id})
    async with open_host(tmp_path) as host:
        with host.using(box.id) as origin:
            assert await origin.files.read("f") == b"2"
        assert [each.id for each in await host.list()] == [box.id]


async def test_a_branch_of_a_state_that_has_changed_conflicts_after_a_restart_and_stays(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        box = await host.create(SandboxOptions())
        branch = await host.fork(box.id)
        await branch.files.write("f", b"2")
        await box.files.write("f", b"1")
    for _ in range(2):
        async with open_host(tmp_path) as host:
            with pytest.raises(Conflict):
                await host.commit(branch.id)
            with host.using(branch.id) as again:
                assert await again.files.read("f") == b"2"
    async with open_host(tmp_path) as host:
        await host.kill(branch.id)
        assert [each.id for each in await host.list()] == [box.id]


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
async def test_what_ran_in_a_branch_is_lost_and_told_but_for_the_bash_session_of_a_service_that_was_stopped(
    is_killed: bool, tmp_path: Path
) -> None:
    if is_killed:
        await anyio.to_thread.run_sync(killed, tmp_path, "use", "before:suspend")
    else:
        async with open_host(tmp_path) as host:
            box = await host.create(SandboxOptions())
            with host.using((await host.fork(box.id)).id) as branch:
                await branch.run_code("x = 1")
                await branch.run_in_shell("W=7")
    async with open_host(tmp_path) as host:
        [found] = [each.id for each in await host.list() if each.branch_of is not None]
        with host.using(found) as branch:
            assert (await branch.run_code("'x' in globals()")).restarted
            assert not (await branch.run_code("1")).restarted
            session = await branch.run_in_shell("echo $W")
            assert (session.stdout, session.restarted) == ("\n" if is_killed else "7\n", is_killed)


@pytest.mark.parametrize("identity", ["same", "fresh"])
async def test_a_branch_is_who_it_was_after_a_restart(identity: IdentityChoice, tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        box = await host.create(SandboxOptions())
        origin = await who(box)
        branch = await host.fork(box.id, identity=identity)
        before = await who(branch)
        assert (before == origin) == (identity == "same")
    for _ in range(2):
        async with open_host(tmp_path) as host:
            with host.using(branch.id) as again:
                assert await who(again) == before
    async with open_host(tmp_path) as host:
        await host.commit(branch.id)
        with host.using(box.id) as again:
            assert await who(again) == before


async def who(box: Sandbox) -> str:
    return (await box.run("hostname; cat /etc/machine-id")).stdout


async def test_what_ran_on_beside_a_fork_may_have_written_so_the_branch_conflicts_after_a_restart(
    tmp_path: Path,
) -> None:
    async with open_host(tmp_path) as host:
        box = await host.create(SandboxOptions())
        await box.run("(while sleep 0.01; do echo >> f; done) > /dev/null 2>&1 &")
        branch = await host.fork(box.id, files_only=True)
    for _ in range(2):
        async with open_host(tmp_path) as host:
            with pytest.raises(Conflict):
                await host.commit(branch.id)


async def test_branches_go_on_with_a_sandbox_whose_first_process_is_killed(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        box = await host.create(SandboxOptions())
        branch = await host.fork(box.id)
        await branch.files.write("f", b"2")
        async with host.happenings.watching() as events:
            os.kill(box._current().pid, signal.SIGKILL)  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage, reportUnknownMemberType, reportUnknownArgumentType]
            with anyio.fail_after(20):
                async for event in events:
                    if event.event is HostedEvent.BROUGHT_BACK:
                        break
        assert {each.id for each in await host.list()} == {box.id, branch.id}
        await host.commit(branch.id)
        with host.using(box.id) as again:
            assert await again.files.read("f") == b"2"


@pytest.mark.parametrize("killed_first", ["branch", "sandbox", "none"])
async def test_branches_of_a_sandbox_that_cannot_be_brought_back_wait_with_it(
    killed_first: str, tmp_path: Path
) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    async with open_host(tmp_path) as host:
        box = await host.create(SandboxOptions(mounts={str(shown): "ro"}))
        branch = await host.fork(box.id)
        await branch.files.write("f", b"2")
    shown.rmdir()
    async with open_host(tmp_path) as host:
        for each in (box, branch):
            info = await host.look(each.id)
            assert (info.state, "does not exist" in info.trouble) == (SandboxState.BROKEN, True)
            with pytest.raises(SandboxUnknown, match="could not be brought back"), host.using(each.id):
                pass
        if killed_first != "none":
            await host.kill(branch.id if killed_first == "branch" else box.id)
            with pytest.raises(SandboxUnknown, match="killed"):
                await host.look(branch.id)
    shown.mkdir()
    there = {"branch": {box.id}, "sandbox": set[str](), "none": {box.id, branch.id}}[killed_first]
    async with open_host(tmp_path) as host:
        assert {each.id for each in await host.list()} == there
        assert on_disk(tmp_path) == (there & {box.id}, there & {box.id})
        if killed_first == "none":
            with host.using(branch.id) as again:
                assert await again.files.read("f") == b"2"
        elif killed_first == "branch":
            is_all_there(tmp_path, box.id, [])


async def test_a_branch_that_cannot_be_remembered_is_refused_and_nothing_of_it_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_host(tmp_path) as host:
        box = await host.create(SandboxOptions())

        def full(_path: Path, _record: object) -> None:
            raise BackendError("no room")

        monkeypatch.setattr(keeping, "write_record", full)
        with pytest.raises(BackendError, match="no room"):
            await host.fork(box.id)
        monkeypatch.undo()
        assert [each.id for each in await host.list()] == [box.id]
    is_all_there(tmp_path, box.id, [])
