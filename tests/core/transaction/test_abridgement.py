"""A journal that is told anew says the same, wherever the canonical state stands among those that are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstart.core.transaction import (
    BranchState,
    BranchView,
    Lineage,
    LineageId,
    LineageOpened,
    RuntimeRestarted,
    StateVersion,
    recover,
    replayed,
    retold,
)
from headstart.ids import CheckpointId, SandboxId

ME, BOX = LineageId("me"), SandboxId("box")


@pytest.mark.parametrize("kept", ["", "a", "ab", "ba", "abc", "cba"])
@pytest.mark.parametrize("now", ["a", "b", "c", "z"])
def test_a_journal_that_is_told_anew_says_what_is_canonical_and_what_is_kept(kept: str, now: str) -> None:
    checkpoints = tuple((CheckpointId(f"c{number}"), StateVersion(each)) for number, each in enumerate(kept))
    opened = LineageOpened(at_s=0.0, lineage=ME, sandbox=BOX, version=StateVersion(now))
    view = replace(Lineage(opened).view(), checkpoints=checkpoints)
    told = recover(retold(view, BOX, at_s=1.0), RuntimeRestarted(at_s=1.0, lineage=ME))
    told.lineage.check_invariants()
    assert (told.canonical, told.version) == (BOX, now)
    assert told.lineage.view().checkpoints == checkpoints
    assert not told.garbage_sandboxes
    assert not told.garbage_checkpoints


@pytest.mark.parametrize("origins", ["a", "z", "y", "zz", "yx", "azyb"])
@pytest.mark.parametrize("kept", ["", "ab"])
@pytest.mark.parametrize("now", ["a", "z"])
def test_a_journal_that_is_told_anew_has_each_branch_with_its_origin_and_its_version(
    origins: str, kept: str, now: str
) -> None:
    checkpoints = tuple((CheckpointId(f"c{number}"), StateVersion(each)) for number, each in enumerate(kept))
    branches = tuple(
        BranchView(
            id=SandboxId(f"b{number}"),
            state=BranchState.OPEN,
            origin=StateVersion(each),
            version=StateVersion(f"w{number}"),
        )
        for number, each in enumerate(origins)
    )
    opened = LineageOpened(at_s=0.0, lineage=ME, sandbox=BOX, version=StateVersion(now))
    view = replace(Lineage(opened).view(), checkpoints=checkpoints, branches=branches)
    told = replayed(retold(view, BOX, at_s=1.0), ME)
    told.check_invariants()
    again = told.view()
    assert (again.sandbox, again.version, again.checkpoints) == (BOX, now, checkpoints)
    assert {*again.branches} == {*branches}
    assert (again.garbage_sandboxes, again.garbage_checkpoints) == ((), ())
