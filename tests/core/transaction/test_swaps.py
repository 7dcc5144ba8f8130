"""Commit and rollback: staged, verified, swapped."""

from __future__ import annotations

import pytest

from headstart.core.actions import ActionKey, Effect
from headstart.core.transaction import (
    BranchFate,
    ReportConflict,
    ReportMismatch,
    ReportState,
    RequestId,
    Stage,
    StageCommit,
    StageRollback,
    StateVersion,
    SwapIn,
    TransactionRefusal,
    VerifyStaged,
)
from headstart.ids import CheckpointId, SandboxId

from .driving import collect, driven, failure, refusal, with_branch, with_checkpoint

# ---------------------------------------------------------------- commit


def test_a_commit_is_staged_verified_and_swapped_and_the_old_state_is_garbage() -> None:
    d = with_branch()
    d.ran(branch="bra")
    me, bra, sbx = RequestId("r3"), SandboxId("bra"), SandboxId("sbx")
    assert d.commit() == [StageCommit(request=me, branch=bra)]
    assert d.staged() == [VerifyStaged(request=me, sandbox=bra)]
    assert d.verified() == [SwapIn(request=me, sandbox=bra, replaces=sbx)]
    assert (d.lineage.view().sandbox, d.version) == ("sbx", "v0")
    assert d.swapped() == [
        ReportState(request=me, sandbox=bra, version=StateVersion("v1")),
        collect("sbx"),
    ]
    assert (d.lineage.view().sandbox, d.version) == ("bra", "v1")
    assert refusal(d.commit()).message == "bra was committed"


def test_a_commit_whose_origin_was_overtaken_is_a_conflict_that_names_both_versions() -> None:
    d = with_branch()
    d.ran()
    [conflict] = d.commit()
    assert conflict == ReportConflict(
        request=RequestId("r3"),
        branch=SandboxId("bra"),
        origin=StateVersion("v0"),
        canonical=StateVersion("v1"),
    )
    assert isinstance(conflict, ReportConflict)
    assert conflict.message == "bra was forked from v0, and the canonical state is v1 now"
    assert (d.lineage.view().sandbox, d.version) == ("sbx", "v1")
    assert d.lineage.fate_of(SandboxId("bra")) is None, "what is in it is not lost"


def test_a_speculated_branch_that_was_overtaken_is_discarded() -> None:
    d = with_branch()
    d.ran(branch="bra", action="a")
    d.ran()
    conflict, garbage = d.commit(actions="a")
    assert isinstance(conflict, ReportConflict)
    assert garbage == collect("bra")
    assert d.lineage.fate_of(SandboxId("bra")) is BranchFate.CONFLICTED


def test_of_two_branches_of_one_state_the_second_conflicts_if_the_first_changed_something() -> None:
    d = driven()
    for name in ("a", "b"):
        d.fork(name)
        d.forked()
    d.ran(branch="a")
    d.commit("a")
    d.staged()
    d.verified()
    d.swapped()
    assert isinstance(d.commit("b")[0], ReportConflict)


def test_a_branch_can_be_committed_again_after_a_rollback_to_its_origin() -> None:
    d = with_checkpoint()
    d.fork()
    d.forked()
    d.ran()
    d.rollback()
    d.staged()
    d.verified()
    d.swapped()
    assert isinstance(d.commit()[0], StageCommit)


def test_a_branch_that_ran_something_else_than_the_agent_asked_for_is_discarded() -> None:
    d = with_branch()
    d.ran(branch="bra", action="a")
    assert d.commit(actions="b") == [
        ReportMismatch(
            request=RequestId("r3"), branch=SandboxId("bra"), ran=(ActionKey("a"),), asked=(ActionKey("b"),)
        ),
        collect("bra"),
    ]
    assert d.lineage.fate_of(SandboxId("bra")) is BranchFate.MISMATCHED


def test_a_branch_that_ran_what_the_agent_asked_for_is_committed() -> None:
    d = with_branch()
    d.ran(branch="bra", action="a")
    d.ran(Effect.READ, branch="bra", action="b")
    assert isinstance(d.commit(actions="ab")[0], StageCommit)


def test_a_commit_waits_for_the_runs_in_the_branch_and_in_the_canonical_sandbox() -> None:
    d = with_branch()
    d.run(branch="bra")
    assert refusal(d.commit()).message == "the run r2 is in flight in bra; ask again when it has ended"
    d.run(Effect.READ)
    assert refusal(d.commit()).message == "the run r4 is in flight in lin_me; ask again when it has ended"


@pytest.mark.parametrize("stages", [0, 1, 2])
def test_a_commit_that_fails_before_the_swap_is_over_changes_nothing_and_ends_the_branch(stages: int) -> None:
    d = with_branch()
    d.ran(branch="bra")
    d.commit()
    for go_on in (d.staged, d.verified)[:stages]:
        go_on()
    assert d.fails() == [failure("r3", "no room"), collect("bra")]
    assert (d.lineage.view().sandbox, d.version, d.lineage.view().stage) == ("sbx", "v0", Stage.IDLE)
    assert refusal(d.commit()).message == "bra failed"


def test_a_branch_cannot_be_discarded_while_it_is_committed() -> None:
    d = with_branch()
    d.commit()
    d.staged()
    assert refusal(d.discard()).message == "the commit of bra is in flight (verifying); ask again when it has ended"


# ---------------------------------------------------------------- rollback


def test_a_rollback_is_staged_verified_and_swapped_and_the_old_state_is_garbage() -> None:
    d = with_checkpoint()
    d.ran()
    me, new, sbx = RequestId("r3"), SandboxId("new"), SandboxId("sbx")
    assert d.rollback() == [StageRollback(request=me, checkpoint=CheckpointId("ckp"), staged=new)]
    assert d.staged() == [VerifyStaged(request=me, sandbox=new)]
    assert d.verified() == [SwapIn(request=me, sandbox=new, replaces=sbx)]
    assert d.swapped() == [
        ReportState(request=me, sandbox=new, version=StateVersion("v0")),
        collect("sbx"),
    ]
    assert d.lineage.view().checkpoints == (("ckp", "v0"),)


@pytest.mark.parametrize("stages", [0, 1, 2])
def test_a_rollback_that_fails_before_the_swap_is_over_changes_nothing(stages: int) -> None:
    d = with_checkpoint()
    d.ran()
    d.rollback()
    for go_on in (d.staged, d.verified)[:stages]:
        go_on()
    assert d.fails() == [failure("r3", "no room"), collect("new")]
    assert (d.lineage.view().sandbox, d.version) == ("sbx", "v1")
    assert isinstance(d.rollback(staged="newer")[0], StageRollback)


def test_a_rollback_to_a_checkpoint_of_another_lineage_is_refused() -> None:
    d = with_checkpoint()
    told = refusal(d.rollback("theirs"))
    assert told.refusal is TransactionRefusal.UNKNOWN_CHECKPOINT
    assert told.message == "theirs is no checkpoint of lin_me; its checkpoints: ckp"


def test_one_operation_at_a_time_and_the_second_is_refused() -> None:
    d = with_checkpoint()
    d.fork()
    d.forked()
    d.rollback()
    told = [refusal(out) for out in (d.rollback(), d.commit(), d.checkpoint("x"), d.drop(), d.fork("c"))]
    assert {each.refusal for each in told} == {TransactionRefusal.OPERATION_IN_FLIGHT}
    assert {each.message for each in told} == {
        "the rollback to ckp is in flight (staging); ask again when it has ended"
    }
