"""What is found again of a lineage: after a crash of the service, and after one of the machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from headstart.backends.contract import Capture, Checkpoint
from headstart.backends.local import manifest as manifests
from headstart.backends.local.manifest import Manifest
from headstart.backends.local.stored import StoredLayers
from headstart.errors import BackendError
from headstart.ids import CheckpointId, SandboxId

pytestmark = pytest.mark.anyio

BOX, FORK = SandboxId("box"), SandboxId("fork")
FIRST, SECOND = (Checkpoint(id=CheckpointId(name), capture=Capture.SEALED) for name in ("first", "second"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "manifest.json"


def begun(path: Path) -> StoredLayers:
    return found(path, Manifest(boot=manifests.this_boot(), image=False), whole=())


async def written() -> None:
    """Stands for a disk that has it all."""


async def broken() -> None:
    raise BackendError("the disk is broken")


def found(
    path: Path,
    manifest: Manifest | None = None,
    *,
    whole: Sequence[str],
    flush: Callable[[], Awaitable[None]] = written,
) -> StoredLayers:
    read = manifest or manifests.read(path)
    assert read is not None
    return StoredLayers(path, read, store="store", whole=whole, drop=lambda _layers: None, flush=flush)


def reboot(path: Path) -> None:
    read = manifests.read(path)
    assert read is not None
    manifests.write(path, read.model_copy(update={"boot": "another"}))


def lose(path: Path) -> None:
    path.unlink()


def seal(layers: StoredLayers, sandbox: SandboxId, checkpoint: Checkpoint) -> None:
    sealed, new = layers.stands[sandbox], layers.nexts[sandbox]
    layers.stand(sandbox, (*sealed, new), layers.new_layer())
    layers.keep(checkpoint, sealed)


async def two_states(path: Path) -> StoredLayers:
    layers = begun(path)
    layers.begin(BOX)
    layers.begun.add(BOX)
    seal(layers, BOX, FIRST)
    await layers.noted()
    return layers


async def test_what_was_noted_is_found(path: Path) -> None:
    before = await two_states(path)
    after = found(path, whole=before.stands[BOX])
    assert after.stands == before.stands
    assert after.checkpoints == before.checkpoints
    assert after.new_layer() not in {*before.stands[BOX], *before.nexts.values()}


async def test_a_layer_that_a_checkpoint_has_put_on_top_and_nobody_has_noted_is_on_top(path: Path) -> None:
    before = await two_states(path)
    after = found(path, whole=[*before.stands[BOX], before.nexts[BOX]])
    assert after.stands[BOX] == (*before.stands[BOX], before.nexts[BOX])


async def test_a_sandbox_whose_start_was_cut_off_begins_with_what_it_was_to_begin_with(path: Path) -> None:
    before = await two_states(path)
    below = before.checkpoints[FIRST.id].layers
    before.begin(FORK, below)
    before.begin(SandboxId("new"))
    await before.noted()
    after = found(path, whole=before.stands[BOX])
    assert after.stands[FORK] == below
    assert after.stands[SandboxId("new")] == ()
    assert not after.is_alone_on_top(FORK)
    assert not after.is_alone_on_top(SandboxId("new"))


@pytest.mark.parametrize("missing", [0, 1])
async def test_a_layer_that_only_a_hand_can_have_taken_is_damage(missing: int, path: Path) -> None:
    before = await two_states(path)
    there = [layer for layer in before.stands[BOX] if layer != before.stands[BOX][missing]]
    with pytest.raises(BackendError, match=f"layer {before.stands[BOX][missing]} is missing"):
        found(path, whole=there)


async def test_after_a_restart_of_the_machine_a_sandbox_is_in_its_latest_state_that_was_on_the_disk(
    path: Path,
) -> None:
    before = await two_states(path)
    await before.note_flushed(layers=before.layers, checkpoints=[FIRST.id])
    flushed = before.stands[BOX]
    seal(before, BOX, SECOND)
    await before.noted()
    reboot(path)
    after = found(path, whole=flushed)
    assert after.stands[BOX] == flushed
    assert set(after.checkpoints) == {FIRST.id}
    await after.noted()
    again = found(path, whole=flushed)
    assert set(again.checkpoints) == {FIRST.id}


async def test_after_a_restart_of_the_machine_a_checkpoint_that_was_not_flushed_is_not_believed(path: Path) -> None:
    before = await two_states(path)
    reboot(path)
    after = found(path, whole=before.stands[BOX])
    assert after.checkpoints == {}
    assert after.stands == before.stands


async def test_after_a_restart_of_the_machine_what_was_flushed_and_is_missing_is_damage(path: Path) -> None:
    before = await two_states(path)
    await before.note_flushed(layers=before.layers, checkpoints=[FIRST.id])
    reboot(path)
    with pytest.raises(BackendError, match="is missing"):
        found(path, whole=before.stands[BOX][1:])


async def test_what_is_there_after_a_restart_of_the_machine_has_come_from_the_disk(path: Path) -> None:
    before = await two_states(path)
    await before.note_flushed(layers=before.layers, checkpoints=[FIRST.id])
    reboot(path)
    there = before.stands[BOX]
    await found(path, whole=there).noted()
    reboot(path)
    assert set(found(path, whole=there).checkpoints) == {FIRST.id}


async def test_nothing_is_written_when_nothing_has_changed(path: Path) -> None:
    layers = await two_states(path)
    lose(path)
    await layers.noted()
    assert manifests.read(path) is None
    layers.forget(FIRST.id)
    await layers.noted()
    assert manifests.read(path) is not None


async def test_a_manifest_that_cannot_be_written_is_told_with_its_path(path: Path) -> None:
    layers = await two_states(path)
    layers.forget(FIRST.id)
    lose(path)
    path.mkdir()  # noqa: ASYNC240
    with pytest.raises(BackendError, match=str(path)):
        await layers.noted()


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", '{"version": 2, "boot": "x", "image": false}', '{"version":1,"boot":1,"image":true}'],
)
def test_what_is_no_manifest_is_said_to_be_so(text: str, path: Path) -> None:
    path.write_text(text)
    with pytest.raises(BackendError, match="no manifest of a store"):
        manifests.read(path)


def test_layers_in_a_circle_are_refused() -> None:
    manifest = Manifest(boot="x", image=False, below={"0": "1", "1": "0"})
    with pytest.raises(BackendError, match="does not say what layer"):
        manifest.stack("0")


async def test_whether_all_checkpoints_are_on_the_disk_is_known(path: Path) -> None:
    layers = await two_states(path)
    assert not layers.is_flushed
    await layers.note_flushed(layers=layers.layers, checkpoints=list(layers.checkpoints))
    assert layers.is_flushed
    seal(layers, BOX, SECOND)
    assert not layers.is_flushed


async def three_layers(path: Path) -> tuple[StoredLayers, tuple[str, str], str]:
    """Return what has a row of two layers and one on top, all of them on the disk."""
    layers = await two_states(path)
    seal(layers, BOX, SECOND)
    layers.forget(FIRST.id)
    one, two, top = layers.stands[BOX]
    await layers.flush()
    return layers, (one, two), top


async def test_what_stands_for_merged_layers_is_on_the_disk_before_they_may_be_deleted(path: Path) -> None:
    layers, row, top = await three_layers(path)
    assert await layers.exchange(row, "9") == row
    reboot(path)
    after = found(path, whole=("9", top))
    assert after.stands[BOX] == ("9", top)
    assert after.checkpoints[SECOND.id].layers == ("9",)


async def test_layers_are_not_exchanged_where_the_disk_cannot_have_the_new_one(path: Path) -> None:
    _, row, top = await three_layers(path)
    layers = found(path, whole=(*row, top), flush=broken)
    assert await layers.exchange(row, "9") is None
    assert layers.stands[BOX] == (*row, top)


async def test_layers_whose_exchange_was_not_noted_are_kept_for_whoever_comes_next(path: Path) -> None:
    layers, row, top = await three_layers(path)
    lose(path)
    path.mkdir()  # noqa: ASYNC240
    with pytest.raises(BackendError, match=str(path)):
        await layers.exchange(row, "9")
    assert layers.held >= {*row, "9", top}
    assert not {*row} & {*layers.leave(BOX), *layers.forget(SECOND.id)}


async def test_layers_of_a_store_that_was_closed_meanwhile_are_not_exchanged(path: Path) -> None:
    layers, row, _ = await three_layers(path)
    layers.is_closed = True
    assert await layers.exchange(row, "9") is None


async def test_what_was_flushed_stays_so_whoever_flushes_at_the_same_time(path: Path) -> None:
    layers = await two_states(path)
    await layers.note_flushed(layers=layers.layers, checkpoints=[FIRST.id])
    await layers.note_flushed(layers=frozenset(), checkpoints=[])
    assert layers.is_flushed
