"""Which layers are used, and which can go."""

from __future__ import annotations

import doctest
from collections.abc import Sequence

from headstart.backends.local import lineage
from headstart.backends.local.lineage import FIRST_LAYER, LineageLayers
from headstart.ids import CheckpointId


def test_a_layer_goes_with_the_last_of_its_users() -> None:
    layers = LineageLayers()
    second = layers.new_layer()
    layers.hold((FIRST_LAYER, second))
    layers.keep(CheckpointId("chk"), (FIRST_LAYER,))
    assert layers.let_go((FIRST_LAYER, second)) == (second,)
    assert layers.forget(CheckpointId("chk")) == (FIRST_LAYER,)
    assert layers.forget(CheckpointId("chk")) == ()


def test_one_of_those_who_live_deletes_and_nobody_does_when_none_is_left() -> None:
    layers, deleted = LineageLayers(), list[Sequence[str]]()
    layers.have_dropped(("1",))
    layers.members.append(deleted.append)
    layers.have_dropped(())
    layers.have_dropped(("2",))
    assert deleted == [("2",)]


def test_the_example_is_true() -> None:
    result = doctest.testmod(lineage)
    assert (result.failed, result.attempted > 0) == (0, True)
