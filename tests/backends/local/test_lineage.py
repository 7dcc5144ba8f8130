"""Which layers are used, and which can go."""

from __future__ import annotations

import doctest
from collections.abc import Mapping, Sequence

from headstart.backends.contract import Capture, Checkpoint
from headstart.backends.local import lineage
from headstart.backends.local.lineage import FIRST_LAYER, LineageLayers
from headstart.ids import CheckpointId, SandboxId

BOX, FORK = SandboxId("box"), SandboxId("fork")
KEPT = Checkpoint(id=CheckpointId("chk"), capture=Capture.SEALED)


class Deleter:
    """A sandbox of which nothing is asked but to delete."""

    paused = False

    def __init__(self, *, is_lost: bool = False) -> None:
        self.is_lost = is_lost
        self.deleted = list[Sequence[str]]()

    async def merge(self, row: Sequence[str], **details: object) -> Mapping[str, object]:
        raise AssertionError(row, details)

    def drop(self, layers: Sequence[str]) -> None:
        self.deleted.append(layers)

    async def stop(self, why: str | None = None) -> None: ...

    async def aclose(self) -> None: ...


def test_a_layer_goes_with_the_last_of_its_users() -> None:
    layers = LineageLayers()
    assert layers.begin(BOX) == (FIRST_LAYER,)
    sealed_by = layers.nexts[BOX]
    layers.keep(KEPT, (FIRST_LAYER,))
    layers.stand(BOX, (FIRST_LAYER, sealed_by), layers.new_layer())
    assert layers.leave(BOX) == (sealed_by,)
    assert layers.forget(KEPT.id) == (FIRST_LAYER,)
    assert layers.forget(KEPT.id) == ()
    assert layers.leave(BOX) == ()


def test_the_layer_on_top_is_ones_own_until_a_checkpoint_or_a_fork_needs_it() -> None:
    layers = LineageLayers()
    layers.begin(BOX)
    assert layers.is_alone_on_top(BOX)
    layers.keep(KEPT, layers.stands[BOX])
    assert not layers.is_alone_on_top(BOX)
    below = layers.stands[BOX]
    layers.begin(BOX, below)
    assert layers.is_alone_on_top(BOX)
    layers.begin(FORK, layers.stands[BOX])
    assert not layers.is_alone_on_top(BOX)


def test_who_steps_back_stands_on_what_was_below() -> None:
    layers = LineageLayers()
    below = layers.begin(BOX)
    *_, top = layers.begin(BOX, below)
    assert layers.step_back(BOX) == (top,)
    assert layers.stands[BOX] == below


def test_one_of_those_who_live_deletes_and_nobody_does_when_none_is_left() -> None:
    layers, deleter = LineageLayers(), Deleter()
    layers.have_dropped(("1",))
    layers.members[BOX] = deleter
    layers.have_dropped(())
    layers.have_dropped(("2",))
    assert deleter.deleted == [("2",)]


def test_who_has_ended_by_himself_deletes_nothing() -> None:
    layers, lost, alive = LineageLayers(), Deleter(is_lost=True), Deleter()
    layers.members = {BOX: lost, FORK: alive}
    layers.have_dropped(("1",))
    assert (lost.deleted, alive.deleted) == ([], [("1",)])


def sealed(layers: LineageLayers, checkpoint: Checkpoint | None, sandbox: SandboxId = BOX) -> None:
    below = layers.stands[sandbox]
    layers.stand(sandbox, (*below, layers.nexts[sandbox]), layers.new_layer())
    if checkpoint is not None:
        layers.keep(checkpoint, below)


def test_layers_between_which_nobody_stands_are_a_row() -> None:
    layers = LineageLayers()
    layers.begin(BOX)
    assert layers.rows() == []
    sealed(layers, None)
    assert layers.rows() == []  # the topmost one is written to
    sealed(layers, None)
    sealed(layers, KEPT)
    sealed(layers, None)
    sealed(layers, None)
    one, two, three, four, five, _ = layers.stands[BOX]
    assert layers.rows() == [(one, two, three), (four, five)]
    layers.begin(FORK, (one, two))
    assert layers.rows() == [(one, two), (four, five)]
    layers.leave(FORK)
    layers.forget(KEPT.id)
    assert layers.rows() == [(one, two, three, four, five)]


def test_one_layer_takes_the_place_of_a_row_wherever_that_is() -> None:
    layers = LineageLayers()
    layers.begin(BOX)
    sealed(layers, None)
    sealed(layers, KEPT)
    one, two, top = layers.stands[BOX]
    layers.begin(FORK, layers.checkpoints[KEPT.id].layers)
    *_, other = layers.stands[FORK]
    assert layers.below(two) == (one,)
    assert layers.replace((one, two), "merged") == (one, two)
    assert layers.stands == {BOX: ("merged", top), FORK: ("merged", other)}
    assert layers.checkpoints[KEPT.id].layers == ("merged",)
    assert layers.layers == {"merged", top, other}
    assert layers.leave(BOX) == (top,)
    assert layers.leave(FORK) == (other,)
    assert layers.forget(KEPT.id) == ("merged",)


def test_a_row_of_which_somebody_needs_a_part_by_now_is_not_replaced() -> None:
    layers = LineageLayers()
    layers.begin(BOX)
    sealed(layers, None)
    sealed(layers, None)
    one, two, _ = before = layers.stands[BOX]
    layers.begin(FORK, (one,))
    assert layers.replace((one, two), "merged") is None
    assert layers.stands[BOX] == before
    layers.leave(FORK)
    assert layers.leave(BOX) == before
    assert layers.replace((one, two), "merged") is None


def test_what_is_mounted_stays_until_it_is_not() -> None:
    layers = LineageLayers()
    layers.begin(BOX)
    sealed(layers, None)
    sealed(layers, None)
    one, two, top = before = layers.stands[BOX]
    layers.mount(BOX, before)
    assert layers.replace((one, two), "merged") == ()
    assert layers.held == {*before, "merged"}
    layers.mount(BOX, ("merged", top, "next"))
    assert layers.mounted(BOX, was_swapped=False) == ()
    assert layers.held == {*before, "merged"}
    layers.mount(BOX, ("merged", top, "next"))
    layers.stand(BOX, ("merged", top, "next"), "another")
    assert layers.mounted(BOX, was_swapped=True) == (one, two)
    assert layers.unmount(BOX) == ()
    assert set(layers.leave(BOX)) == {"merged", top, "next"}


def test_the_example_is_true() -> None:
    result = doctest.testmod(lineage)
    assert (result.failed, result.attempted > 0) == (0, True)
