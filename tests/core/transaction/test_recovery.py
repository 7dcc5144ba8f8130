"""What a journal that was cut anywhere leaves."""

from __future__ import annotations

import pytest

from headstart.core.actions import ActionKey, Effect
from headstart.core.transaction import (
    BranchFate,
    BranchState,
    CaptureCheckpoint,
    CheckpointRequested,
    CommitRequested,
    LineageOpened,
    Recovery,
    ReportConflict,
    ReportMismatch,
    RequestId,
    RestoreCanonical,
    RuntimeRestarted,
    StageCommit,
    StateVersion,
)
from headstart.errors import InvalidTransition
from headstart.ids import CheckpointId, SandboxId

from .driving import ME, YOU, Driven, Out, collect, driven, with_branch, with_checkpoint


def commits(d: Driven) -> None:
    d.ran(branch="bra")
    d.commit()
    d.staged()
    d.verified()
    d.swapped()


def test_killed_at_any_stage_of_a_commit_one_state_is_canonical_and_the_other_is_garbage() -> None:
    d = with_branch()
    commits(d)
    swapped = len(d.journal)
    for cut in range(4, swapped):
        left = d.killed(cut=cut)
        assert (left.canonical, left.version, left.garbage_sandboxes) == ("sbx", "v0", ("bra",))
        assert left.branches == (("bra", BranchFate.LOST),)
        assert left.instructions == (RestoreCanonical(sandbox=SandboxId("sbx")), collect("bra"))
    left = d.killed()
    assert (left.canonical, left.version, left.garbage_sandboxes, left.branches) == ("bra", "v1", ("sbx",), ())
    d.collected("sbx")
    left = d.killed()
    assert (left.canonical, left.garbage_sandboxes) == ("bra", ())
    assert left.instructions == (RestoreCanonical(sandbox=SandboxId("bra")),)


def test_killed_at_any_stage_of_a_rollback_one_state_is_canonical_and_the_other_is_garbage() -> None:
    d = with_checkpoint()
    d.ran()
    began = len(d.journal)
    d.rollback()
    d.staged()
    d.verified()
    d.swapped()
    for cut in range(began + 1, len(d.journal)):
        left = d.killed(cut=cut)
        assert (left.canonical, left.version, left.garbage_sandboxes) == ("sbx", "v1", ("new",))
        assert (left.interrupted, left.checkpoints) == (("r3",), ("ckp",))
    left = d.killed()
    assert (left.canonical, left.version, left.garbage_sandboxes) == ("new", "v0", ("sbx",))
    assert left.interrupted == ()


def test_killed_while_a_checkpoint_is_captured_what_was_made_of_it_is_garbage() -> None:
    d = driven()
    d.checkpoint()
    left = d.killed()
    assert (left.checkpoints, left.garbage_checkpoints) == ((), ("ckp",))
    d.captured()
    left = d.killed()
    assert (left.checkpoints, left.garbage_checkpoints) == (("ckp",), ())


def test_killed_during_a_run_the_state_has_the_version_of_what_the_run_may_have_left() -> None:
    d = with_checkpoint()
    d.run()
    left = d.killed()
    assert (left.canonical, left.version, left.interrupted) == ("sbx", "v1", ("r2",))
    assert left.lineage.view().settled


def test_a_crash_that_took_something_of_the_state_gives_it_a_new_version() -> None:
    d = with_checkpoint()
    left = d.killed("after")
    assert left.version == "after"
    out = left.lineage.handle(
        CheckpointRequested(at_s=9.0, lineage=ME, request=RequestId("r9"), checkpoint=CheckpointId("ckp2"))
    )
    assert isinstance(out[0], CaptureCheckpoint)


def test_a_branch_that_was_doomed_keeps_its_fate_in_a_crash() -> None:
    d = driven()
    d.fork()
    d.discard()
    left = d.killed()
    assert (left.branches, left.garbage_sandboxes) == ((("bra", BranchFate.DISCARDED),), ("bra",))


def test_garbage_that_was_told_and_not_collected_is_told_again_after_a_crash() -> None:
    d = with_branch()
    d.discard()
    assert d.killed().instructions == (RestoreCanonical(sandbox=SandboxId("sbx")), collect("bra"))


def test_a_second_crash_reads_through_the_first() -> None:
    d = with_branch()
    commits(d)
    d.tell(RuntimeRestarted(at_s=1.0, lineage=ME))
    d.fork("again")
    left = d.killed()
    assert (left.canonical, left.garbage_sandboxes) == ("bra", ("sbx", "again"))


def test_a_closed_lineage_has_nothing_canonical_after_a_crash() -> None:
    d = driven()
    d.closes()
    left = d.killed()
    assert (left.canonical, left.instructions) == (None, (collect("sbx"),))


def test_events_of_other_lineages_are_passed_over() -> None:
    d = with_branch()
    theirs = LineageOpened(at_s=0.0, lineage=YOU, sandbox=SandboxId("x"), version=StateVersion("x"))
    d.journal.insert(0, theirs)
    assert d.killed().canonical == "sbx"


def test_a_journal_without_a_beginning_is_no_journal() -> None:
    d = driven()
    with pytest.raises(ValueError, match="the journal has no beginning of lin_me: its first event must be"):
        d.killed(cut=0)


def test_the_event_that_ended_the_runtime_is_passed_over() -> None:
    d = driven()
    with pytest.raises(InvalidTransition):
        d.swapped()
    assert d.killed().canonical == "sbx"
    d.journal.append(RuntimeRestarted(at_s=1.0, lineage=ME))
    d.ran()
    assert d.killed().version == "v1"


def test_a_journal_in_which_events_are_missing_is_not_believed() -> None:
    d = with_branch()
    commits(d)
    del d.journal[-3]
    with pytest.raises(InvalidTransition, match="StateVerified is not possible in state 'staging'"):
        d.killed()


def then_commit(left: Recovery, actions: tuple[ActionKey, ...] | None = None) -> Out:
    request = CommitRequested(
        at_s=9.0, lineage=ME, request=RequestId("after"), branch=SandboxId("bra"), actions=actions
    )
    out = left.lineage.handle(request)
    left.lineage.check_invariants()
    return out


def test_a_branch_that_is_there_after_a_crash_goes_on_and_can_be_committed() -> None:
    d = with_branch()
    d.ran(branch="bra")
    left = d.killed("after", there={"bra": "w"})
    assert (left.branches, left.garbage_sandboxes) == ((), ())
    [branch] = left.lineage.view().branches
    assert (branch.state, branch.origin, branch.version) == (BranchState.OPEN, "after", "w")
    assert then_commit(left) == [StageCommit(request=RequestId("after"), branch=SandboxId("bra"))]


def test_killed_at_any_stage_of_a_commit_the_branch_is_there_as_before_or_canonical() -> None:
    d = with_branch()
    commits(d)
    for cut in range(5, len(d.journal)):
        left = d.killed("after", cut=cut, there={"bra": "w"})
        assert (left.canonical, left.version, left.garbage_sandboxes) == ("sbx", "after", ())
        assert isinstance(then_commit(left)[0], StageCommit)
    with pytest.raises(InvalidTransition, match="with bra, which was no branch yet, or is none any more"):
        d.killed(there={"bra": "w"})


@pytest.mark.parametrize("effect", Effect)
def test_a_run_in_the_canonical_sandbox_has_a_branch_conflict_after_a_crash_whether_it_was_seen_to_end_or_not(
    effect: Effect,
) -> None:
    d = with_branch()
    d.run(effect)
    assert isinstance(then_commit(d.killed("after", there={"bra": "w"}))[0], ReportConflict)
    d.ends("r2")
    is_changed = effect is not Effect.READ
    assert isinstance(then_commit(d.killed("after", there={"bra": "w"}))[0], ReportConflict) == is_changed


def test_a_commit_that_names_actions_does_not_match_what_has_gone_through_a_crash() -> None:
    d = with_branch()
    d.ran(branch="bra", action="a")
    left = d.killed("after", there={"bra": "w"})
    assert isinstance(then_commit(left, (ActionKey("a"),))[0], ReportMismatch)


def test_a_fork_that_was_in_the_middle_is_garbage_and_nobody_can_have_found_it() -> None:
    d = driven()
    d.fork()
    assert d.killed().garbage_sandboxes == ("bra",)
    with pytest.raises(InvalidTransition, match="with bra, which was no branch yet"):
        d.killed(there={"bra": "w"})


def test_a_version_that_means_two_states_is_not_believed() -> None:
    d = with_branch()
    for version, of_branch in (("v0", "w"), ("w", "w"), ("w", "v0")):
        with pytest.raises(InvalidTransition, match=r"with a version that means two states|which is not new"):
            d.killed(version, there={"bra": of_branch})
