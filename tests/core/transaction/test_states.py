"""Runs, checkpoints and branches: what each makes of the state, and what is refused."""

from __future__ import annotations

import pytest

from headstart.core.actions import Effect
from headstart.core.transaction import (
    BranchFate,
    BranchState,
    CaptureCheckpoint,
    CheckpointNotCaptured,
    CheckpointUnchanged,
    ForkBranch,
    ForkFailed,
    ReportBranch,
    ReportCheckpoint,
    ReportDone,
    RequestId,
    StartRun,
    StateVersion,
    TransactionRefusal,
)
from headstart.errors import InvalidTransition
from headstart.ids import CheckpointId, SandboxId

from .driving import ME, collect, driven, failure, refusal, with_branch, with_checkpoint

# ---------------------------------------------------------------- runs and versions


@pytest.mark.parametrize("effect", [Effect.WRITE, Effect.EXTERNAL])
def test_a_run_that_may_change_something_gives_the_state_a_new_version_when_it_begins(effect: Effect) -> None:
    d = driven()
    assert d.run(effect) == [StartRun(request=RequestId("r1"), sandbox=SandboxId("sbx"))]
    assert (d.version, d.lineage.view().settled) == ("v1", False)
    assert d.ends("r1") == []
    assert (d.version, d.lineage.view().settled) == ("v1", True)


def test_a_read_keeps_the_version() -> None:
    d = driven()
    d.run(Effect.READ)
    assert d.lineage.view().settled
    d.ends("r1")
    assert d.version == "v0"


def test_a_read_that_was_seen_to_change_something_takes_its_version_after_all() -> None:
    d = driven()
    d.run(Effect.READ)
    d.ends("r1", changed=True)
    assert d.version == "v1"


def test_a_run_in_a_branch_changes_the_branch_and_not_the_canonical_state() -> None:
    d = with_branch()
    d.ran(branch="bra")
    [branch] = d.lineage.view().branches
    assert (d.version, branch.origin, branch.version) == ("v0", "v0", "v1")


def test_an_external_run_does_not_begin_in_a_branch() -> None:
    d = with_branch()
    told = refusal(d.run(Effect.EXTERNAL, "bra"))
    assert told.refusal is TransactionRefusal.SIDE_EFFECT
    assert told.message == "bra is a branch, and what this run does may be seen outside of it; run it when committed"
    assert not told.refusal.passes


def test_runs_go_side_by_side() -> None:
    d = driven()
    d.run()
    d.run()
    d.run(Effect.READ)
    assert d.version == "v2"
    assert d.lineage.in_flight() == ("r1", "r2", "r3")


def test_a_run_waits_for_an_operation_on_the_state_that_it_would_run_in() -> None:
    d = driven()
    d.checkpoint()
    told = refusal(d.run(Effect.READ))
    assert told.refusal is TransactionRefusal.OPERATION_IN_FLIGHT
    assert told.message == "the checkpoint ckp is in flight (capturing); ask again when it has ended"
    assert told.refusal.passes


def test_while_a_branch_is_forked_the_state_is_read_and_not_changed() -> None:
    d = driven()
    d.fork()
    told = refusal(d.run())
    assert told.message == "the fork of bra is in flight; ask again when it has ended"
    assert isinstance(d.run(Effect.READ)[0], StartRun)


def test_a_branch_runs_nothing_before_it_is_there_and_while_it_is_committed() -> None:
    d = driven()
    d.fork()
    told = refusal(d.run(branch="bra"))
    assert told.refusal is TransactionRefusal.BRANCH_NOT_READY
    assert told.message == "bra is still being forked; ask again when it is there"
    d.forked("r1")
    d.commit()
    told = refusal(d.run(branch="bra"))
    assert told.message == "bra is being committed; what it holds is canonical when that has ended"


def test_the_end_of_a_run_that_died_with_its_branch_comes_late_and_changes_nothing() -> None:
    d = with_branch()
    d.run(branch="bra")
    d.discard()
    assert d.ends("r2") == []


def test_the_end_of_a_run_that_never_began_is_our_bug() -> None:
    d = driven()
    d.sandboxes["r7"] = SandboxId("sbx")
    with pytest.raises(InvalidTransition, match="RunEnded of r7 in sbx, where it does not run is not possible"):
        d.ends("r7")


# ---------------------------------------------------------------- checkpoints


def test_a_checkpoint_is_captured_and_then_reported() -> None:
    d = driven()
    assert d.checkpoint() == [
        CaptureCheckpoint(request=RequestId("r1"), checkpoint=CheckpointId("ckp"), sandbox=SandboxId("sbx"))
    ]
    assert d.captured() == [
        ReportCheckpoint(request=RequestId("r1"), checkpoint=CheckpointId("ckp"), version=StateVersion("v0"))
    ]
    assert d.lineage.view().checkpoints == (("ckp", "v0"),)


def test_when_nothing_changed_the_same_checkpoint_is_returned_for_free() -> None:
    d = with_checkpoint()
    d.ran(Effect.READ)
    assert d.checkpoint("ckp2") == [
        ReportCheckpoint(request=RequestId("r3"), checkpoint=CheckpointId("ckp"), version=StateVersion("v0"))
    ]


def test_when_the_inspector_finds_nothing_changed_the_older_checkpoint_is_returned() -> None:
    d = with_checkpoint()
    d.ran()
    d.checkpoint("ckp2")
    out = d.tell(CheckpointUnchanged(at_s=0.0, lineage=ME, request=d.last(), same_as=CheckpointId("ckp")))
    assert out == [
        ReportCheckpoint(request=RequestId("r3"), checkpoint=CheckpointId("ckp"), version=StateVersion("v0")),
        collect(checkpoints=("ckp2",)),
    ]
    assert d.version == "v1"


def test_the_inspector_cannot_name_a_checkpoint_that_is_none() -> None:
    d = driven()
    d.checkpoint()
    with pytest.raises(InvalidTransition, match="since nowhere, which is no checkpoint"):
        d.tell(CheckpointUnchanged(at_s=0.0, lineage=ME, request=d.last(), same_as=CheckpointId("nowhere")))


def test_a_state_that_cannot_be_captured_says_why_and_leaves_nothing() -> None:
    d = driven()
    d.checkpoint()
    reason = "python3 (pid 7) writes /data/log"
    out = d.tell(CheckpointNotCaptured(at_s=0.0, lineage=ME, request=d.last(), reason=reason))
    assert out == [failure("r1", reason), collect(checkpoints=("ckp",))]
    assert d.lineage.view().checkpoints == ()


def test_a_checkpoint_waits_for_runs_even_if_they_only_read() -> None:
    d = driven()
    d.run(Effect.READ)
    told = refusal(d.checkpoint())
    assert told.refusal is TransactionRefusal.RUN_IN_FLIGHT
    assert told.message == "the run r1 is in flight in lin_me; ask again when it has ended"


def test_a_dropped_checkpoint_is_collected_and_cannot_be_gone_back_to() -> None:
    d = with_checkpoint()
    assert d.drop() == [ReportDone(request=RequestId("r2")), collect(checkpoints=("ckp",))]
    told = refusal(d.rollback())
    assert told.refusal is TransactionRefusal.CHECKPOINT_DROPPED
    assert told.message == "ckp was dropped, so nothing can go back to it"
    assert refusal(d.drop()).refusal is TransactionRefusal.CHECKPOINT_DROPPED


# ---------------------------------------------------------------- branches


def test_a_branch_remembers_the_version_that_it_was_forked_from() -> None:
    d = driven()
    assert d.fork() == [ForkBranch(request=RequestId("r1"), branch=SandboxId("bra"), sandbox=SandboxId("sbx"))]
    assert d.forked() == [ReportBranch(request=RequestId("r1"), branch=SandboxId("bra"), origin=StateVersion("v0"))]


def test_forks_go_side_by_side() -> None:
    d = driven()
    d.fork("a")
    d.fork("b")
    assert isinstance(d.forked("r2")[0], ReportBranch)
    assert isinstance(d.forked("r1")[0], ReportBranch)
    assert [branch.version for branch in d.lineage.view().branches] == ["v0", "v0"]


def test_a_branch_is_not_forked_while_its_origin_is_being_changed() -> None:
    d = driven()
    d.run()
    assert refusal(d.fork()).refusal is TransactionRefusal.RUN_IN_FLIGHT


def test_what_a_failed_fork_left_is_collected() -> None:
    d = driven()
    d.fork()
    out = d.tell(ForkFailed(at_s=0.0, lineage=ME, request=d.last(), reason="no memory"))
    assert out == [failure("r1", "no memory"), collect("bra")]
    assert refusal(d.commit()).message == "bra failed"


def test_discarding_a_branch_collects_it_and_leaves_the_canonical_state_as_it_was() -> None:
    d = with_branch()
    d.run(branch="bra")
    assert d.discard() == [
        ReportDone(request=RequestId("r3")),
        failure("r2", "bra was discarded"),
        collect("bra"),
    ]
    assert (d.lineage.view().sandbox, d.version) == ("sbx", "v0")
    told = refusal(d.discard())
    assert (told.refusal, told.message) == (TransactionRefusal.BRANCH_ENDED, "bra was discarded")


def test_a_branch_that_is_discarded_while_it_is_forked_is_collected_when_the_fork_has_ended() -> None:
    d = driven()
    d.fork()
    assert d.discard() == [ReportDone(request=RequestId("r2")), failure("r1", "bra was discarded")]
    assert refusal(d.discard()).refusal is TransactionRefusal.BRANCH_ENDED
    assert d.forked("r1") == [collect("bra")]


def test_a_fork_that_fails_after_it_was_discarded_is_answered_once() -> None:
    d = driven()
    d.fork()
    d.discard()
    assert d.tell(ForkFailed(at_s=0.0, lineage=ME, request=RequestId("r1"), reason="no")) == [collect("bra")]
    assert d.lineage.fate_of(SandboxId("bra")) is BranchFate.DISCARDED


def test_a_branch_that_exits_is_collected_and_what_ran_in_it_is_told() -> None:
    d = with_branch()
    d.run(branch="bra")
    assert d.exits() == [failure("r2", "bra exited"), collect("bra")]
    assert d.exits() == []


def test_a_branch_that_exits_while_it_is_committed_is_left_to_the_failure_of_the_commit() -> None:
    d = with_branch()
    d.commit()
    assert d.exits() == []
    assert d.fails("the branch is gone") == [failure("r2", "the branch is gone"), collect("bra")]


def test_branches_forked_beside_a_read_that_changed_something_are_discarded() -> None:
    d = driven()
    d.fork("before")
    d.forked()
    d.run(Effect.READ)
    d.fork("there")
    d.forked()
    d.fork("coming")
    out = d.ends("r2", changed=True)
    why = "was discarded: a run beside its fork was declared READ and changed the state"
    assert out == [collect("there"), failure("r4", f"coming {why}")]
    assert {branch.id: branch.state for branch in d.lineage.view().branches} == {
        "before": BranchState.OPEN,
        "coming": BranchState.DOOMED,
    }
    assert d.forked("r4") == [collect("coming")]


def test_a_branch_of_another_lineage_is_none_of_this_one() -> None:
    d = with_branch()
    told = refusal(d.commit("theirs"))
    assert told.refusal is TransactionRefusal.UNKNOWN_BRANCH
    assert told.message == "theirs is no branch of lin_me; its branches: bra"
    assert refusal(d.run(branch="theirs")).refusal is TransactionRefusal.UNKNOWN_BRANCH
    assert refusal(d.discard("theirs")).refusal is TransactionRefusal.UNKNOWN_BRANCH


def test_a_branch_whose_fork_was_in_flight_when_such_a_read_began_is_discarded_too() -> None:
    d = driven()
    d.fork()
    d.run(Effect.READ)
    d.forked("r1")
    assert d.ends("r2", changed=True) == [collect("bra")]


def test_an_operation_waits_for_forks_in_flight() -> None:
    d = with_checkpoint()
    d.ran()
    d.fork("there")
    d.forked()
    d.fork()
    told = [refusal(out) for out in (d.checkpoint("ckp2"), d.rollback(), d.commit("there"))]
    assert {each.refusal for each in told} == {TransactionRefusal.OPERATION_IN_FLIGHT}
    assert {each.message for each in told} == {"the fork of bra is in flight; ask again when it has ended"}


def test_a_branch_that_is_doomed_already_is_not_answered_again_when_its_fork_becomes_doubtful() -> None:
    d = driven()
    d.run(Effect.READ)
    d.fork()
    d.discard()
    assert d.ends("r1", changed=True) == []
    assert d.forked("r2") == [collect("bra")]


def test_only_the_latest_ends_are_remembered() -> None:
    d = with_checkpoint()
    d.ran()
    for number in range(257):
        d.checkpoint(f"ckp{number}")
        d.captured()
        d.drop(f"ckp{number}")
        d.fork(f"bra{number}")
        d.forked()
        d.discard(f"bra{number}")
    assert refusal(d.rollback("ckp0")).refusal is TransactionRefusal.UNKNOWN_CHECKPOINT
    assert refusal(d.rollback("ckp1")).refusal is TransactionRefusal.CHECKPOINT_DROPPED
    assert refusal(d.commit("bra0")).refusal is TransactionRefusal.UNKNOWN_BRANCH
    assert refusal(d.commit("bra1")).refusal is TransactionRefusal.BRANCH_ENDED
