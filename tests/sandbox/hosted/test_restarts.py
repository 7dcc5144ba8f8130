"""Hosted sandboxes after the service has ended, however: one state is canonical, the old one or the new."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread
import pytest
from tests.machine import may_make_namespaces, where_files_outlive
from tests.sandbox.hosted.hosting import it_can_go_on, killed, on_disk, open_host

from headstart.errors import ConfigError, HeadstartError, SandboxUnknown
from headstart.sandbox.hosted import HostedInfo, SandboxHost
from headstart.sandbox.hosted.messages import SandboxState
from headstart.sandbox.options import SandboxOptions
from headstart.sandbox.sandbox import Sandbox

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not may_make_namespaces(), reason="the local backend cannot run here: no namespaces"),
    where_files_outlive,
]

JOURNAL_ACTS = {
    "checkpoint": ("CheckpointRequested", "KeptAs", "CheckpointCaptured"),
    "rollback": ("RollbackRequested", "Carried", "StateStaged", "StateVerified", "StateSwapped", "GarbageCollected"),
    "drop": ("CheckpointDropRequested", "GarbageCollected"),
    "kill": ("LineageClosed",),
}
MOMENTS = [
    (act, f"{when}:{record}")
    for act, records in JOURNAL_ACTS.items()
    for record in records
    for when in ("before", "after")
]


async def only(host: SandboxHost) -> HostedInfo:
    [info] = [each for each in await host.list() if each.state is not SandboxState.BROKEN]
    return info


@pytest.mark.parametrize(("act", "moment"), MOMENTS, ids=[f"{act}, {moment}" for act, moment in MOMENTS])
async def test_a_service_that_is_killed_at_any_moment_leaves_the_old_state_or_the_new(
    act: str, moment: str, tmp_path: Path
) -> None:
    await anyio.to_thread.run_sync(killed, tmp_path, act, moment)
    async with open_host(tmp_path) as host:
        if (act, moment) == ("kill", "after:LineageClosed"):
            assert await host.list() == ()
            assert on_disk(tmp_path) == (set(), set())
            return
        info = await only(host)
        assert (info.name, info.branch_of) == ("mine", None)
        assert on_disk(tmp_path) == ({info.id}, {info.id})
        is_swapped = moment in {"after:StateSwapped", "before:GarbageCollected", "after:GarbageCollected"}
        with host.using(info.id) as box:
            content = await box.files.read("f")
            assert content == (b"1" if act == "rollback" and is_swapped else b"2")
            kept = [each.id for each in box.checkpoints]
            was_kept = (act, moment) == ("checkpoint", "after:CheckpointCaptured")
            was_dropped = act == "drop" and moment != "before:CheckpointDropRequested"
            assert len(kept) == 1 + was_kept - was_dropped
            await it_can_go_on(host, box, content)
        assert on_disk(tmp_path) == ({info.id}, {info.id})


HIBERNATING = ["before:record", "after:record", "after:suspend", "after:close"]
WAKING = [f"{when}:{what}" for what in ("open", "LineageOpened", "start", "record") for when in ("before", "after")]


@pytest.mark.parametrize(
    ("act", "moment"), [*(("hibernate", each) for each in HIBERNATING), *(("wake", each) for each in WAKING)]
)
async def test_a_service_that_is_killed_while_it_hibernates_a_sandbox_or_wakes_it_loses_nothing(
    act: str, moment: str, tmp_path: Path
) -> None:
    await anyio.to_thread.run_sync(killed, tmp_path, act, moment)
    was_hibernated = (act, moment) not in {("hibernate", "before:record"), ("wake", "after:record")}
    async with open_host(tmp_path) as host:
        info = await only(host)
        assert info.state is (SandboxState.HIBERNATED if was_hibernated else SandboxState.RUNNING)
        assert len(info.checkpoints) == 1
        assert on_disk(tmp_path) == ({info.id}, {info.id})
        async with host.awake("mine") as box:
            session = await box.run_in_shell("echo $W")
            is_lost = (act, moment) == ("hibernate", "before:record")
            assert (session.stdout, session.restarted) == ("\n" if is_lost else "7\n", is_lost)
            assert await box.files.read("f") == b"2"
            await it_can_go_on(host, box, b"2")
        assert on_disk(tmp_path) == ({info.id}, {info.id})


@pytest.mark.parametrize("moment", ["before:remove", "before:delete", "after:delete", "after:remove"])
async def test_a_hibernated_sandbox_that_was_being_killed_is_there_or_gone(moment: str, tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(killed, tmp_path, "kill hibernated", moment)
    async with open_host(tmp_path) as host:
        if moment != "before:remove":
            assert await host.list() == ()
            assert on_disk(tmp_path) == (set(), set())
            return
        async with host.awake("mine") as box:
            assert await box.files.read("f") == b"2"


async def it_is_broken(host: SandboxHost, sandbox: str, why: str) -> None:
    """It is listed as what it is, and whoever uses it is told why that cannot be."""
    info = await host.look(sandbox)
    assert (info.id, info.state) == (sandbox, SandboxState.BROKEN)
    assert why in info.trouble
    assert info in await host.list()
    with pytest.raises(SandboxUnknown, match="could not be brought back") as told, host.using(sandbox):
        pass
    assert why in str(told.value)


@pytest.mark.parametrize("moment", ["after:record", "after:place", "before:begun", "after:LineageOpened"])
async def test_a_sandbox_that_was_being_made_when_the_service_was_killed_is_gone(moment: str, tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(killed, tmp_path, "create", moment)
    async with open_host(tmp_path) as host:
        assert await host.list() == ()
        assert on_disk(tmp_path) == (set(), set())


@pytest.fixture
async def stopped(tmp_path: Path) -> tuple[Path, str]:
    """What a service that was stopped has left of one sandbox."""
    async with open_host(tmp_path) as host:
        box = await host.create(SandboxOptions(env={"WHO": "me"}), name="mine", ends_after_idle_s=1000)
        await box.run("echo 1 > f; mkdir -p d/e; ln -s f l; chmod 751 f")
        await host.checkpoint(box.id)
        with host.using(box.id):
            await box.run_code("x = 1")
            await box.run_in_shell("cd d/e; W=7; f() { echo from f; }")
        name = box.id
    return tmp_path, name


async def test_files_names_options_and_the_bash_session_outlive_a_service_that_is_stopped(
    stopped: tuple[Path, str],
) -> None:
    folder, name = stopped
    async with open_host(folder) as host:
        info = await only(host)
        assert (info.id, info.name, info.ends_after_idle_s) == (name, "mine", 1000)
        with host.using("mine") as box:
            assert (await box.run("cat f l; stat -c %a f; echo $WHO")).stdout == "1\n1\n751\nme\n"
            session = await box.run_in_shell("pwd; echo $W; f")
            assert session.stdout == "/home/sandbox/d/e\n7\nfrom f\n"
            assert not session.restarted
            assert (await box.run_code("'x' in globals()")).restarted, "a kernel is lost, and it is told"
            assert not (await box.run_code("1")).restarted, "once"


async def names(box: Sandbox) -> list[str]:
    return (await box.run("hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id")).stdout.split()


@pytest.mark.parametrize("identity", ["same", "fresh"])
@pytest.mark.parametrize("way", ["commit", "rollback"])
async def test_a_sandbox_is_who_it_was_after_a_restart_but_has_been_started_anew(
    way: str, identity: Literal["same", "fresh"], tmp_path: Path
) -> None:
    async with open_host(tmp_path) as host:
        box = await host.create(SandboxOptions())
        at_first, kept = await names(box), await host.checkpoint(box.id)
        if way == "commit":
            await host.commit((await host.fork(box.id, identity=identity)).id)
        else:
            await host.rollback(box.id, kept.id, identity=identity)
        before = await names(box)
        assert (before == at_first) == (identity == "same")
    for _ in range(2):
        async with open_host(tmp_path) as host:
            with host.using(box.id) as again:
                after = await names(again)
                assert after[:2] == before[:2]
                assert after[2] not in {before[2], at_first[2]}, "as on a machine that was started again"
                assert await names(await host.fork(box.id)) == after
    async with open_host(tmp_path) as host:
        await host.rollback(box.id, kept.id)
        with host.using(box.id) as again:
            assert (await names(again))[:2] == at_first[:2], "what was kept is who it was"


async def test_a_session_that_nobody_has_used_since_outlives_the_next_service_as_well(
    stopped: tuple[Path, str],
) -> None:
    folder, name = stopped
    for _ in range(2):
        async with open_host(folder) as host:
            assert (await only(host)).id == name
    async with open_host(folder) as host:
        with host.using(name) as box:
            assert (await box.run_in_shell("f")).stdout == "from f\n"


async def test_a_session_that_has_gone_on_since_it_was_kept_is_lost_and_told(tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(killed, tmp_path, "go on", "")
    async with open_host(tmp_path) as host:
        with host.using("mine") as box:
            session = await box.run_in_shell("echo $W")
            assert (session.stdout, session.restarted) == ("\n", True)


async def test_a_rollback_past_other_checkpoints_is_remembered_through_many_restarts(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        box = await host.create(SandboxOptions(), name="mine")
        kept: list[str] = []
        for content in ("1", "2", "3"):
            await box.files.write("f", content)
            kept.append((await host.checkpoint(box.id)).id)
        await host.rollback(box.id, kept[0])
    for going_to in (1, 0, 2, 0):
        async with open_host(tmp_path) as host:
            async with host.awake("mine") as box:
                assert [each.id for each in box.checkpoints] == kept
                before = await box.files.read("f")
            await host.rollback("mine", kept[going_to])
            async with host.awake("mine") as box:
                assert await box.files.read("f") == str(going_to + 1).encode()
        assert before in {b"1", b"2", b"3"}


async def test_a_sandbox_whose_first_process_is_killed_goes_on_with_its_files(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        box = await host.create(SandboxOptions())
        await box.files.write("f", b"1")
        async with host.happenings.watching() as events:
            os.kill(box._current().pid, signal.SIGKILL)  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage, reportUnknownMemberType, reportUnknownArgumentType]
            told: list[str] = []
            with anyio.fail_after(20):
                async for event in events:
                    told.append(event.event.name)
                    if event.event.name == "BROUGHT_BACK":
                        break
        assert told == ["ENDED", "BROUGHT_BACK"]
        with host.using(box.id) as again:
            assert await again.files.read("f") == b"1"


async def test_a_sandbox_whose_first_process_keeps_being_killed_is_given_up_and_its_files_stay(
    tmp_path: Path,
) -> None:
    async with open_host(tmp_path) as host:
        box = await host.create(SandboxOptions())
        await box.files.write("f", b"1")
        async with host.happenings.watching() as events:
            for _ in range(4):
                with host.using(box.id) as found:
                    os.kill(found._current().pid, signal.SIGKILL)  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage, reportUnknownMemberType, reportUnknownArgumentType]
                with anyio.fail_after(20):
                    async for event in events:
                        if event.event.name == "BROUGHT_BACK" or "keeps being killed" in event.about:
                            break
        await it_is_broken(host, box.id, "keeps being killed")
    async with open_host(tmp_path) as host:
        with host.using(box.id) as found:
            assert await found.files.read("f") == b"1"


@pytest.mark.parametrize("damaged", ["journal", "record.json"])
async def test_one_that_is_damaged_is_told_and_the_others_go_on(
    damaged: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_host(tmp_path) as host:
        broken, whole = [await host.create(SandboxOptions()) for _ in range(2)]
    file = tmp_path / "hosted" / broken.id / damaged
    file.write_bytes(b'{"e": "Nonsense"}\n' + file.read_bytes())
    async with open_host(tmp_path) as host:
        assert (await only(host)).id == whole.id
        assert f"{file} is damaged" in caplog.text
        if damaged == "journal":
            await it_is_broken(host, broken.id, "is damaged")
            await host.kill(broken.id[:-3])
            assert on_disk(tmp_path) == ({whole.id}, {whole.id})
        assert (tmp_path / "hosted" / broken.id).exists() == (damaged != "journal")


async def test_a_sandbox_whose_mount_is_gone_waits_until_it_is_there_again(tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    async with open_host(tmp_path) as host:
        box = await host.create(SandboxOptions(mounts={str(shown): "ro"}), name="mine")
        await box.files.write("f", b"1")
    shown.rmdir()
    async with open_host(tmp_path) as host:
        await it_is_broken(host, box.id, "is to be mounted, but does not exist")
        with pytest.raises(ConfigError, match="is called 'mine' already"):
            await host.create(SandboxOptions(), name="mine")
    shown.mkdir()
    async with open_host(tmp_path) as host:
        with host.using(box.id) as again:
            assert await again.files.read("f") == b"1"


async def test_a_folder_that_cannot_be_used_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "hosted").write_text("in the way")
    with pytest.raises(ConfigError, match="hosted: is not a folder"):
        async with open_host(tmp_path):
            pass


async def test_a_session_that_is_used_to_the_very_end_outlives_the_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_host(tmp_path) as host:
        box = await host.create(SandboxOptions())
        begun = anyio.Event()

        async def use() -> None:
            with host.using(box.id) as used:
                await used.run_in_shell("V=7")
                begun.set()
                await anyio.sleep_forever()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use)
            await begun.wait()
            tasks.cancel_scope.cancel()
    async with open_host(tmp_path) as host:
        with host.using(box.id) as again:
            assert (await again.run_in_shell("echo $V")).stdout == "7\n"
    assert not caplog.messages


async def test_a_full_disk_refuses_a_checkpoint_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_host(tmp_path) as host:
        box = await host.create(SandboxOptions())
        await box.files.write("f", b"1")
        kept = await host.checkpoint(box.id)
        await box.files.write("f", b"2")

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("headstart.runtime.lineage_journal._ROOM_BYTES", 1 << 40)
        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(HeadstartError, match="cannot be written: No space left on device"):
            await host.checkpoint(box.id)
        monkeypatch.undo()
        assert await box.files.read("f") == b"2"
        await host.rollback(box.id, kept.id)
        assert await box.files.read("f") == b"1"
    async with open_host(tmp_path) as host:
        with host.using(box.id) as again:
            assert await again.files.read("f") == b"1"
            assert [each.id for each in again.checkpoints] == [kept.id]


async def test_a_checkpoint_that_is_wanted_on_the_disk_is_there_when_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fdatasync

    def noted(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", noted)
    async with open_host(tmp_path) as host:
        box = await host.create(SandboxOptions())
        await box.files.write("f", b"1")
        await host.checkpoint(box.id, durable=True)
        assert str(tmp_path / "hosted" / box.id / "journal") in synced
        assert box._lineage._remembered is not None  # pyright: ignore[reportPrivateUsage]


async def test_the_journal_holds_what_has_to_be_known_and_not_every_command(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        box = await host.create(SandboxOptions())
        for _ in range(50):
            await box.run(["true"])
        await host.checkpoint(box.id)
    lines = (tmp_path / "hosted" / box.id / "journal").read_bytes().rstrip(b"\0").splitlines()
    assert [json.loads(line)["e"] for line in lines] == [
        "LineageOpened",
        "RunRequested",
        "RunEnded",
        "CheckpointRequested",
        "KeptAs",
        "CheckpointCaptured",
    ]
