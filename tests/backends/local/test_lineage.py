"""Which layers are used, and which can go."""

from __future__ import annotations

import doctest
from collections.abc import Sequence

from headstart.backends.contract import Capture, Checkpoint
from headstart.backends.local import lineage
from headstart.backends.local.lineage import FIRST_LAYER, LineageLayers
from headstart.ids import CheckpointId, SandboxId

BOX, FORK = SandboxId("box"), SandboxId("fork")
KEPT = Checkpoint(id=CheckpointId("chk"), capture=Capture.SEALED)


class Deleter:
    """A sandbox of which nothing is asked but to delete."""

    is_lost = False

    def __init__(self) -> None:
        self.deleted = list[Sequence[str]]()

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


def test_the_example_is_true() -> None:
    result = doctest.testmod(lineage)
    assert (result.failed, result.attempted > 0) == (0, True)
