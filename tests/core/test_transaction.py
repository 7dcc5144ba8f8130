"""A lineage's transactions, one at a time: what each event leads to, what is refused, and how it is told."""

from __future__ import annotations

import doctest
from dataclasses import dataclass, field
from importlib import import_module
from typing import get_args

import pytest

from headstart.core.actions import ActionKey, Effect
from headstart.core.transaction import (
    BranchExited,
    BranchFate,
    BranchForked,
    BranchState,
    CaptureCheckpoint,
    CheckpointCaptured,
    CheckpointDropRequested,
    CheckpointNotCaptured,
    CheckpointRequested,
    CheckpointUnchanged,
    CollectGarbage,
    CommitRequested,
    DiscardRequested,
    ForkBranch,
    ForkFailed,
    ForkRequested,
    GarbageCollected,
    Lineage,
    LineageClosed,
    LineageId,
    LineageOpened,
    Recovery,
    RefuseTransaction,
    ReportBranch,
    ReportCheckpoint,
    ReportConflict,
    ReportDone,
    ReportFailure,
    ReportMismatch,
    ReportState,
    RequestId,
    RestoreCanonical,
    RollbackRequested,
    RunEnded,
    RunRequested,
    RuntimeRestarted,
    Stage,
    StageCommit,
    StageFailed,
    StageRollback,
    StartRun,
    StateStaged,
    StateSwapped,
    StateVerified,
    StateVersion,
    SwapIn,
    TransactionEvent,
    TransactionInstruction,
    TransactionRefusal,
    VerifyStaged,
    recover,
)
from headstart.errors import InvalidTransition
from headstart.ids import CheckpointId, SandboxId
from headstart.runtime.codec import RecordCodec

ME, YOU = LineageId("lin_me"), LineageId("lin_you")
Out = list[TransactionInstruction]


@dataclass
class Driven:
    """A lineage whose names count up: requests r1, r2, …, versions v1, v2, …"""

    lineage: Lineage
    journal: list[TransactionEvent]
    requests: int = 0
    versions: int = 0
    sandboxes: dict[str, SandboxId | None] = field(default_factory=dict[str, SandboxId | None])

    def tell(self, event: TransactionEvent) -> Out:
        self.journal.append(event)
        out = self.lineage.handle(event)
        self.lineage.check_invariants()
        return out

    def ask(self) -> RequestId:
        self.requests += 1
        return RequestId(f"r{self.requests}")

    @property
    def version(self) -> StateVersion:
        return self.lineage.view().version

    def run(self, effect: Effect = Effect.WRITE, branch: str | None = None, action: str | None = None) -> Out:
        self.versions += 1
        request = self.ask()
        where = None if branch is None else SandboxId(branch)
        self.sandboxes[request] = where or self.lineage.view().sandbox
        return self.tell(
            RunRequested(
                at_s=0.0,
                lineage=ME,
                request=request,
                effect=effect,
                version=StateVersion(f"v{self.versions}"),
                branch=where,
                action=None if action is None else ActionKey(action),
            )
        )

    def ends(self, request: str, *, changed: bool = False) -> Out:
        sandbox = self.sandboxes[request]
        assert sandbox is not None
        return self.tell(RunEnded(at_s=0.0, lineage=ME, request=RequestId(request), sandbox=sandbox, changed=changed))

    def ran(self, effect: Effect = Effect.WRITE, branch: str | None = None, action: str | None = None) -> None:
        self.run(effect, branch, action)
        self.ends(f"r{self.requests}")

    def checkpoint(self, checkpoint: str = "ckp") -> Out:
        return self.tell(
            CheckpointRequested(at_s=0.0, lineage=ME, request=self.ask(), checkpoint=CheckpointId(checkpoint))
        )

    def captured(self) -> Out:
        return self.tell(CheckpointCaptured(at_s=0.0, lineage=ME, request=self.last()))

    def last(self) -> RequestId:
        return RequestId(f"r{self.requests}")

    def drop(self, checkpoint: str = "ckp") -> Out:
        return self.tell(
            CheckpointDropRequested(at_s=0.0, lineage=ME, request=self.ask(), checkpoint=CheckpointId(checkpoint))
        )

    def fork(self, branch: str = "bra") -> Out:
        return self.tell(ForkRequested(at_s=0.0, lineage=ME, request=self.ask(), branch=SandboxId(branch)))

    def forked(self, request: str | None = None) -> Out:
        return self.tell(BranchForked(at_s=0.0, lineage=ME, request=RequestId(request or self.last())))

    def discard(self, branch: str = "bra") -> Out:
        return self.tell(DiscardRequested(at_s=0.0, lineage=ME, request=self.ask(), branch=SandboxId(branch)))

    def exits(self, branch: str = "bra") -> Out:
        return self.tell(BranchExited(at_s=0.0, lineage=ME, branch=SandboxId(branch), reason="signal 9"))

    def commit(self, branch: str = "bra", actions: str | None = None) -> Out:
        asked = None if actions is None else tuple(map(ActionKey, actions))
        event = CommitRequested(at_s=0.0, lineage=ME, request=self.ask(), branch=SandboxId(branch), actions=asked)
        return self.tell(event)

    def rollback(self, checkpoint: str = "ckp", staged: str = "new") -> Out:
        return self.tell(
            RollbackRequested(
                at_s=0.0,
                lineage=ME,
                request=self.ask(),
                checkpoint=CheckpointId(checkpoint),
                staged=SandboxId(staged),
            )
        )

    def staged(self) -> Out:
        return self.tell(StateStaged(at_s=0.0, lineage=ME, request=self.last()))

    def verified(self) -> Out:
        return self.tell(StateVerified(at_s=0.0, lineage=ME, request=self.last()))

    def swapped(self) -> Out:
        return self.tell(StateSwapped(at_s=0.0, lineage=ME, request=self.last()))

    def fails(self, reason: str = "no room") -> Out:
        return self.tell(StageFailed(at_s=0.0, lineage=ME, request=self.last(), reason=reason))

    def collected(self, *sandboxes: str) -> Out:
        return self.tell(GarbageCollected(at_s=0.0, lineage=ME, sandboxes=tuple(map(SandboxId, sandboxes))))

    def closes(self) -> Out:
        return self.tell(LineageClosed(at_s=0.0, lineage=ME))

    def killed(self, version: str | None = None, *, cut: int | None = None) -> Recovery:
        new = None if version is None else StateVersion(version)
        return recover(self.journal[:cut], RuntimeRestarted(at_s=9.0, lineage=ME, version=new))


def driven() -> Driven:
    opened = LineageOpened(at_s=0.0, lineage=ME, sandbox=SandboxId("sbx"), version=StateVersion("v0"))
    return Driven(Lineage(opened), [opened])


def with_checkpoint() -> Driven:
    d = driven()
    d.checkpoint()
    d.captured()
    return d


def with_branch() -> Driven:
    d = driven()
    d.fork()
    d.forked()
    return d


def refusal(out: Out) -> RefuseTransaction:
    [found] = out
    assert isinstance(found, RefuseTransaction)
    return found


def collect(*sandboxes: str, checkpoints: tuple[str, ...] = ()) -> CollectGarbage:
    return CollectGarbage(sandboxes=tuple(map(SandboxId, sandboxes)), checkpoints=tuple(map(CheckpointId, checkpoints)))


def failure(request: str, reason: str) -> ReportFailure:
    return ReportFailure(request=RequestId(request), reason=reason)


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
    assert told.message == "the run r1 is in flight in sbx; ask again when it has ended"


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
    assert refusal(d.commit()).message == "the run r4 is in flight in sbx; ask again when it has ended"


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


# ---------------------------------------------------------------- what cannot be


def test_an_event_without_a_row_raises_with_the_story_and_changes_nothing() -> None:
    d = with_checkpoint()
    d.rollback()
    before = d.lineage.view()
    with pytest.raises(InvalidTransition) as raised:
        d.swapped()
    assert d.lineage.view() == before
    assert (raised.value.subject, raised.value.state, raised.value.event) == ("lin_me", "staging", "StateSwapped")
    assert raised.value.story == (
        "0.000 opened: sbx is canonical at v0",
        "0.000 idle → capturing (capture begun: checkpoint ckp)",
        "0.000 capturing → idle (captured: checkpoint ckp)",
        "0.000 idle → staging (stage begun: rollback to ckp)",
    )


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (LineageOpened(at_s=0.0, lineage=ME, sandbox=SandboxId("x"), version=StateVersion("x")), "LineageOpened"),
        (LineageClosed(at_s=0.0, lineage=YOU), "LineageClosed of lin_you"),
        (StateStaged(at_s=0.0, lineage=ME, request=RequestId("r9")), "StateStaged for r9, which is not in flight"),
        (StateSwapped(at_s=0.0, lineage=ME, request=RequestId("r9")), "StateSwapped for r9, which is not in flight"),
        (CheckpointCaptured(at_s=0.0, lineage=ME, request=RequestId("r9")), "without a capture in flight"),
        (BranchForked(at_s=0.0, lineage=ME, request=RequestId("r9")), "BranchForked for r9, which forks nothing"),
        (GarbageCollected(at_s=0.0, lineage=ME, sandboxes=(SandboxId("sbx"),)), "not all of it is garbage"),
        (RuntimeRestarted(at_s=0.0, lineage=ME, version=StateVersion("v0")), "with v0, which is not new"),
    ],
)
def test_events_that_contradict_what_went_before_are_our_bugs(event: TransactionEvent, message: str) -> None:
    d = driven()
    with pytest.raises(InvalidTransition, match=message):
        d.tell(event)


def test_names_that_came_before_cannot_come_again() -> None:
    d = with_checkpoint()
    d.fork()
    d.forked()
    d.ran()
    with pytest.raises(InvalidTransition, match="with bra, which is not new"):
        d.fork()
    with pytest.raises(InvalidTransition, match="with bra, which is not new"):
        d.rollback(staged="bra")
    with pytest.raises(InvalidTransition, match="with ckp, which is not new"):
        d.checkpoint()
    d.versions = 0
    with pytest.raises(InvalidTransition, match="with v1, which is not new"):
        d.run()


def test_a_request_that_is_in_flight_cannot_be_made_again() -> None:
    d = driven()
    d.run()
    d.requests = 0
    with pytest.raises(InvalidTransition, match="RunRequested for r1, which is in flight already"):
        d.run()


def test_a_broken_invariant_is_told_with_the_story() -> None:
    d = with_branch()
    state = d.lineage._state  # pyright: ignore[reportPrivateUsage] nothing else can break it
    state.branches[SandboxId("bra")].state = BranchState.COMMITTING
    with pytest.raises(AssertionError, match=r"no commit is in flight\n  0.000 opened: sbx is canonical at v0"):
        d.lineage.check_invariants()


# ---------------------------------------------------------------- closing


def test_closing_answers_whoever_waits_and_collects_everything_once() -> None:
    d = with_checkpoint()
    d.fork("a")
    d.forked()
    d.discard("a")
    d.fork("b")
    d.forked()
    d.run(branch="b")
    d.rollback()
    assert d.closes() == [
        failure("r6", "lin_me was closed"),
        failure("r5", "lin_me was closed"),
        collect("new", "b", "sbx", checkpoints=("ckp",)),
    ]
    assert d.lineage.view().sandbox is None


def test_a_closed_lineage_refuses_requests_and_takes_late_events() -> None:
    d = driven()
    d.fork()
    d.closes()
    assert d.forked() == []
    assert d.closes() == []
    told = refusal(d.run())
    assert (told.refusal, told.message) == (TransactionRefusal.CLOSED, "lin_me was closed")
    assert d.collected("bra", "sbx") == []
    assert d.lineage.view().garbage_sandboxes == ()
    with pytest.raises(InvalidTransition):
        d.tell(d.journal[0])


# ---------------------------------------------------------------- kill -9


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


# ---------------------------------------------------------------- journal and examples


def test_every_event_and_instruction_can_be_journalled() -> None:
    codec = RecordCodec([*get_args(TransactionEvent), *get_args(TransactionInstruction)])
    d = with_branch()
    d.ran(branch="bra", action="a")
    d.commit(actions="a")
    d.staged()
    d.verified()
    d.swapped()
    d.collected("sbx")
    assert [codec.decode(codec.encode(event)) for event in d.journal] == d.journal


@pytest.mark.parametrize("module", ["lineage", "stages"])
def test_the_examples_in_docstrings_are_true(module: str) -> None:
    result = doctest.testmod(import_module(f"headstart.core.transaction.{module}"))
    assert (result.failed, result.attempted > 0) == (0, True)
