"""Stores of the local backend: what they may take, what is damaged by hand, and what nobody may see."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from headstart.backends.contract import Capture, FileStore, Identity, Limits, Mount, MountMode, Prepared, Template
from headstart.backends.local import LocalBackend, watch
from headstart.backends.spawner.sandbox import SpawnedSandbox
from headstart.errors import BackendError
from headstart.ids import SandboxId

from .driving import ROOT, as_root, backend_in, output, shell, template

pytestmark = pytest.mark.anyio

LIMITS = Limits(scratch_bytes=50_000_000)
BOX, OTHER = (Identity(sandbox=SandboxId(name)) for name in ("box", "other"))
FILL = "cd ~; head -c {count} /dev/zero > {name}; stat -c %s {name}"


@asynccontextmanager
async def store_in(
    folder: Path, given: Template | None = None, *, name: str = "store"
) -> AsyncGenerator[tuple[LocalBackend, FileStore, Prepared]]:
    async with backend_in(folder) as backend:
        if not backend.capabilities.durable:
            pytest.skip("no files can outlive the service here")
        prepared = await backend.prepare(given or template(limits=LIMITS))
        yield backend, await backend.stores.open(name, limits=LIMITS), prepared


def bounded(folder: Path) -> Path:
    """Return the disk image of the store in a state folder; skip where there are none."""
    image = folder / "stores" / "store" / "image"
    if not image.exists():
        pytest.skip("no disk images here: needs root, loop devices and mkfs.ext4")
    return image


def loop_devices(folder: Path) -> list[str]:
    """List the loop devices that have a file below a folder."""
    found: list[str] = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            backing = path.read_text().strip()
        except OSError:
            continue  # it was detached meanwhile
        if backing.startswith(f"{folder}/"):
            found.append(backing)
    return found


def mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


# ---------------------------------------------------------------- limits


async def test_a_program_is_told_that_the_store_is_full_and_the_host_does_not_pay(tmp_path: Path) -> None:
    async with store_in(tmp_path) as (_, store, prepared):
        image = bounded(tmp_path)
        box = await store.start(prepared, BOX)
        done = await box.run(shell(FILL.format(count=80_000_000, name="big")))
        assert b"No space left" in done.stderr
        assert 45_000_000 < int(done.stdout) <= 50_000_000
        with pytest.raises(OSError, match="No space") as refusal:
            await box.files.write("more", b"x" * 5_000_000)
        assert refusal.value.errno == errno.ENOSPC
        await store.flush()
        assert image.stat().st_blocks * 512 < 60_000_000


async def test_a_program_cannot_use_up_the_hosts_inodes(tmp_path: Path) -> None:
    async with store_in(tmp_path) as (_, store, prepared):
        bounded(tmp_path)
        box = await store.start(prepared, BOX)
        done = await box.run(shell("cd ~; for i in $(seq 5000); do true > $i || break; done; ls | wc -l"), timeout_s=60)
        assert b"No space left" in done.stderr
        assert int(done.stdout) < 50_000_000 // 16_384


async def test_the_limit_is_one_for_a_sandbox_its_checkpoints_and_its_forks(tmp_path: Path) -> None:
    async with store_in(tmp_path) as (_, store, prepared):
        bounded(tmp_path)
        box = await store.start(prepared, BOX)
        await box.run(shell(FILL.format(count=30_000_000, name="a")))
        fork = await box.fork(await box.checkpoint(), OTHER)
        done = await fork.run(shell(FILL.format(count=30_000_000, name="b")))
        assert b"No space left" in done.stderr


async def test_a_store_that_is_full_can_be_gone_on_with_and_tidied_up(tmp_path: Path) -> None:
    async with store_in(tmp_path) as (_, store, prepared):
        bounded(tmp_path)
        box = await store.start(prepared, BOX)
        await box.run(
            shell("cd ~; head -c 80000000 /dev/zero > big; for i in $(seq 9000); do true > $i || break; done")
        )
        with pytest.raises(BackendError, match="No space left"):
            await box.checkpoint()
        assert int(await output(box, "cd ~; stat -c %s big")) > 40_000_000
    async with store_in(tmp_path) as (_, store, prepared):
        box = await store.start(prepared, BOX)
        await output(box, "cd ~; rm big; find . -type f -name '[0-9]*' -delete; echo fine > note")
        assert (await box.checkpoint()).capture is Capture.SEALED
        assert await output(box, "cat ~/note") == "fine"


async def test_what_is_deleted_gives_its_space_back_to_the_host(tmp_path: Path) -> None:
    async with store_in(tmp_path) as (backend, store, prepared):
        image = bounded(tmp_path)
        box = await store.start(prepared, BOX)
        await output(box, "head -c 40000000 /dev/urandom > ~/big; sync")
        assert image.stat().st_blocks * 512 > 40_000_000
        await output(box, "rm ~/big; sync")
        await store.flush()
        with anyio.fail_after(10):
            while image.stat().st_blocks * 512 > 10_000_000:  # noqa: ASYNC110  the kernel gives it back in a while
                await anyio.sleep(0.05)
        await store.remove()
        assert await backend.stores.names() == []
        assert list((tmp_path / "stores").iterdir()) == []


def plain(folder: Path) -> None:
    """Skip where stores are in disk images."""
    if (folder / "stores" / "store" / "image").exists():
        pytest.skip("stores are in disk images here")


async def test_who_writes_more_than_a_plain_store_may_hold_is_ended_and_told_why(tmp_path: Path) -> None:
    async with store_in(tmp_path) as (_, store, prepared):
        plain(tmp_path)
        box = await store.start(prepared, BOX)
        await output(box, "echo 1 > ~/kept")
        with pytest.raises(BackendError, match=r"the sandbox was ended: .* may take 47 MB"):
            await box.run(
                shell("cd ~; for i in $(seq 1000); do head -c 1000000 /dev/zero > $i; sleep 0.02; done"), timeout_s=60
            )
        with pytest.raises(BackendError, match="start it again and delete some"):
            await box.files.read("kept")
        box = await store.start(prepared, BOX)
        await output(box, "cd ~; rm [0-9]*; sleep 2.5; cat kept")


async def test_who_makes_more_files_than_a_plain_store_may_hold_is_ended(tmp_path: Path) -> None:
    async with store_in(tmp_path) as (_, store, prepared):
        plain(tmp_path)
        box = await store.start(prepared, BOX)
        script = "cd ~; mkdir d; chmod 0 d; mkdir e; cd e; for i in $(seq 100000); do true > $i; done; sleep 60"
        with pytest.raises(BackendError, match="the sandbox was ended"):
            await box.run(shell(script), timeout_s=60)


async def test_when_the_disk_is_nearly_full_only_who_writes_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store_in(tmp_path) as (backend, store, prepared):
        idle = await (await backend.stores.open("idle", limits=LIMITS)).start(prepared, OTHER)
        box = await store.start(prepared, BOX)
        await box.files.write("kept", b"1")

        def is_nearly_full(_folder: Path) -> bool:
            return True

        monkeypatch.setattr(watch, "is_nearly_full", is_nearly_full)
        writes = (
            "for i in $(seq 100); do head -c 1000000 /dev/urandom > ~/$((i % 30)); sync ~/$((i % 30)); sleep 0.1; done"
        )
        with pytest.raises(BackendError, match="is nearly full: make room on it"):
            await box.run(shell(writes), timeout_s=60)
        assert await output(idle, "echo fine") == "fine"
        monkeypatch.undo()
        assert await (await store.start(prepared, BOX)).files.read("kept") == b"1"


# ---------------------------------------------------------------- what is left, and who sees it


async def test_nothing_of_a_store_stays_mounted_or_attached(tmp_path: Path) -> None:
    async with store_in(tmp_path) as (_, store, prepared):
        box = await store.start(prepared, BOX)
        await box.fork(await box.checkpoint(), OTHER)
        await store.aclose()
        assert loop_devices(tmp_path) == []
    async with store_in(tmp_path) as (_, store, prepared):
        await store.start(prepared, BOX)
    with anyio.fail_after(10):
        while loop_devices(tmp_path):  # noqa: ASYNC110  the kernel detaches it in a while
            await anyio.sleep(0.01)
    assert str(tmp_path) not in mounts()


async def test_no_sandbox_sees_a_store(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    given = template(Mount(source=tmp_path, target=tmp_path), limits=LIMITS)
    async with store_in(state, given) as (_, store, prepared):
        box = await store.start(prepared, BOX)
        await box.files.write("secret", b"x")
        await box.checkpoint()
        seen = await box.run(shell(f"ls -A {state} /.headstart/closed/*"))
        assert seen.stdout in (b"", f"{state}:\n".encode())
        assert b"closed" in seen.stderr


async def test_writes_to_an_overlay_outlive_the_service_and_the_hosts_folder_is_what_it_was(
    tmp_path: Path, mappable_path: Path
) -> None:
    project = mappable_path / "project"
    project.mkdir()
    (project / "kept").write_text("hosts\n")
    (project / "gone").write_text("hosts\n")
    for path in (project, *project.iterdir()):
        os.chown(path, os.geteuid(), os.getegid())
    given = template(Mount(source=project, target=Path("/project"), mode=MountMode.OVERLAY), limits=LIMITS)
    async with store_in(tmp_path / "state", given) as (_, store, prepared):
        box = await store.start(prepared, BOX)
        await output(box, "cd /project; rm gone; echo mine > kept; echo new > new")
    async with store_in(tmp_path / "state", given) as (_, store, prepared):
        box = await store.start(prepared, BOX)
        assert await output(box, "cd /project; cat *") == "mine\nnew"
    assert sorted(path.name for path in project.iterdir()) == ["gone", "kept"]
    assert (project / "kept").read_text() == "hosts\n"


async def test_mounts_in_private_folders_are_put_back_wherever_it_is_started_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "given").write_text("hosts\n")
    state = tmp_path / "state"
    state.mkdir()
    given = template(Mount(source=data, target=Path("/home/sandbox/project/data")), limits=LIMITS)
    for number in range(3):
        async with store_in(state, given) as (_, store, prepared):
            box = await store.start(prepared, BOX)
            assert await output(box, "cat ~/project/data/given; ls ~/project") == "hosts\n" + "\n".join(
                ["data", *(f"note{before}" for before in range(number))]
            )
            await output(box, f"echo > ~/project/note{number}")
            if number:
                await box.checkpoint()
    async with store_in(state, given) as (_, store, prepared):
        box = await store.start(prepared, BOX)
        if not ROOT:
            return  # a folder from below cannot be moved by an ordinary user's sandbox
        await output(box, "mv ~/project ~/elsewhere; ln -s / ~/project")
        await store.stop(BOX.sandbox)
        with pytest.raises(BackendError, match="what leads to the mount there was moved or replaced"):
            await store.start(prepared, BOX)
        assert store.sandboxes == [BOX.sandbox]


async def test_files_are_not_put_into_other_private_folders_than_they_were_in(tmp_path: Path) -> None:
    async with store_in(tmp_path / "state") as (_, store, prepared):
        await (await store.start(prepared, BOX)).files.write("a", b"1")
    project = tmp_path / "project"
    project.mkdir()
    other = template(Mount(source=project, target=Path("/project"), mode=MountMode.OVERLAY), limits=LIMITS)
    async with store_in(tmp_path / "state", other) as (backend, store, prepared):
        with pytest.raises(BackendError, match="/project") as refusal:
            await store.start(prepared, BOX)
        assert refusal.value.hint == "start it from the template that it was made from"
        box = await store.start(await backend.prepare(template(limits=LIMITS)), BOX)
        assert await box.files.read("a") == b"1"


async def test_a_sandbox_that_has_died_is_started_again_on_its_files(tmp_path: Path) -> None:
    async with store_in(tmp_path) as (_, store, prepared):
        dead = await store.start(prepared, BOX)
        await dead.files.write("a", b"1")
        assert isinstance(dead, SpawnedSandbox)
        os.kill(dead.pid, signal.SIGKILL)
        await dead.wait_lost()
        box = await store.start(prepared, BOX)
        await dead.aclose()
        assert await box.files.read("a") == b"1"


@pytest.mark.parametrize("how", ["closed", "flushed", "flushed in turn"])
async def test_checkpoints_are_there_when_the_machine_was_restarted(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headstart.backends.local.stores._FLUSH_S", 0.1)
    manifest = tmp_path / "stores" / "store" / "manifest.json"
    async with store_in(tmp_path) as (_, store, prepared):
        box = await store.start(prepared, BOX)
        kept = await box.checkpoint()
        if how == "flushed":
            await store.flush()
        if how == "closed":
            await store.aclose()
        with anyio.fail_after(10):
            while not json.loads(manifest.read_bytes())["checkpoints"][kept.id]["flushed"]:  # noqa: ASYNC110
                await anyio.sleep(0.02)
    told = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps({**told, "boot": "another"}))
    async with store_in(tmp_path) as (_, store, prepared):
        assert [checkpoint.id for checkpoint in store.checkpoints] == [kept.id]
        await (await store.start(prepared, BOX)).fork(kept, OTHER)


# ---------------------------------------------------------------- damage


def lose_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def tear_manifest(folder: Path) -> None:
    whole = (folder / "manifest.json").read_bytes()
    (folder / "manifest.json").write_bytes(whole[: len(whole) // 2])


def change_manifest(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "below": dict.fromkeys(manifest["below"], "0")}))


def lose_files(folder: Path) -> None:
    for image in folder.glob("image"):
        image.unlink()
    if (folder / "files").exists():
        (folder / "files" / "layers").rename(folder / "elsewhere")


def open_up_layer(folder: Path) -> None:
    for layer in (folder / "files" / "layers").glob("0"):
        layer.chmod(0o777)
        return
    pytest.skip("layers are in disk images here")


def tear_image(folder: Path) -> None:
    image = folder / "image"
    if not image.exists():
        pytest.skip("no disk images here: needs root, loop devices and mkfs.ext4")
    os.truncate(image, 1000)


@pytest.mark.parametrize(
    "damage",
    [lose_manifest, tear_manifest, change_manifest, lose_files, open_up_layer, tear_image],
    ids=lambda each: each.__name__,
)
async def test_a_damaged_store_is_one_clear_error_and_the_others_go_on(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    async with store_in(tmp_path) as (_, store, prepared):
        box = await store.start(prepared, BOX)
        await box.checkpoint()
        await box.files.write("a", b"1")
    async with store_in(tmp_path, name="whole") as (_, store, prepared):
        await (await store.start(prepared, BOX)).files.write("a", b"2")
    folder = tmp_path / "stores" / "store"
    damage(folder)
    async with store_in(tmp_path, name="whole") as (backend, whole, prepared):
        with pytest.raises(BackendError, match=str(folder)) as refusal:
            await backend.stores.open("store", limits=LIMITS)
        assert refusal.value.hint
        assert "\n" not in str(refusal.value)
        assert await (await whole.start(prepared, BOX)).files.read("a") == b"2"
        assert list(await backend.stores.names()) == ["store", "whole"]
        await backend.stores.remove("store")
        assert list(await backend.stores.names()) == ["whole"]
        store = await backend.stores.open("store", limits=LIMITS)
        assert store.sandboxes == []


async def test_a_store_that_another_service_has_open_is_refused(tmp_path: Path) -> None:
    async with store_in(tmp_path) as (_, store, prepared), backend_in(tmp_path) as other:
        box = await store.start(prepared, BOX)
        with pytest.raises(BackendError, match="somebody else has it open"):
            await other.stores.open("store", limits=LIMITS)
        await box.files.write("a", b"1")


async def test_removals_that_were_cut_off_are_finished_by_the_next_service(tmp_path: Path) -> None:
    doomed = tmp_path / "stores" / ".doomed-x-1"
    (doomed / "files" / "layers" / "0").mkdir(parents=True)
    (doomed / "image").write_bytes(b"x")
    async with backend_in(tmp_path) as backend:
        assert await backend.stores.names() == []
        with anyio.fail_after(10):
            while doomed.exists():  # noqa: ASYNC110  a helper deletes it
                await anyio.sleep(0.01)


def test_this_file_leaves_no_loop_device(tmp_path_factory: pytest.TempPathFactory) -> None:
    backing = [path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    assert [path for path in backing if path.startswith(f"{tmp_path_factory.getbasetemp()}/test_")] == []


# ---------------------------------------------------------------- other machines


def elsewhere(helper: str, *arguments: str, only: str) -> tuple[int, str]:
    """Run tests of this file in a process of their own; return how many have passed, none having failed, and what it told."""
    command = [sys.executable, str(Path(__file__).with_name(helper)), *arguments, "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-k", only, __file__], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3]
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    return int(passed[1]) if passed and done.returncode == 0 else 0, done.stdout + done.stderr


@as_root
@pytest.mark.parametrize("where", [["without_loop_devices.py"], ["on_an_overlay.py", "root"]], ids=lambda each: each[0])
async def test_all_of_this_holds(where: list[str]) -> None:
    only = (
        "not all_of_this and not nothing_can and not another_service and not hosts_folder and not lose_ and not tear_"
    )
    passed, told = await anyio.to_thread.run_sync(lambda: elsewhere(*where, only=only))
    assert passed >= 9, told


@as_root
async def test_where_nothing_can_outlive_the_service_it_says_so() -> None:
    passed, told = await anyio.to_thread.run_sync(lambda: elsewhere("on_an_overlay.py", "ordinary", only="impossible"))
    assert passed == 1, told


async def test_stores_that_are_impossible_are_said_to_be_so(tmp_path: Path) -> None:
    async with backend_in(tmp_path) as backend:
        if backend.capabilities.durable:
            pytest.skip("stores are possible here")
        assert any("no files can outlive the service" in line for line in backend.capabilities.weaker)
        with pytest.raises(BackendError, match="put the state on another file system"):
            await backend.stores.open("store", limits=LIMITS)
        assert await backend.stores.names() == []
