"""A lineage against a model of file contents: whatever happens and wherever it is killed, one state is canonical.

The machine plays the runtime: it journals, carries out, and is killed, also between an act and its
journalling. Beside it stands a model that knows nothing of versions: what files hold and who saw it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headstart.core.actions import ActionKey, Effect
from headstart.core.transaction import (
    Abridgement,
    BranchExited,
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
    LineageView,
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
    VerifyStaged,
    recover,
    replayed,
    retold,
)
from headstart.ids import CheckpointId, SandboxId

ME = LineageId("me")
Files = dict[str, int]
Act = CaptureCheckpoint | ForkBranch | StageRollback | StageCommit | VerifyStaged | SwapIn
Done = CheckpointCaptured | BranchForked | StateStaged | StateVerified | StateSwapped
Failed = CheckpointNotCaptured | ForkFailed | StageFailed
ANSWERS = (
    RefuseTransaction
    | ReportFailure
    | ReportConflict
    | ReportMismatch
    | ReportCheckpoint
    | ReportBranch
    | ReportState
    | ReportDone
)


@dataclass
class Running:
    """A run, as whoever started it sees it."""

    sandbox: SandboxId
    effect: Effect
    changed: bool = False


@dataclass
class Forked:
    """A branch: which state it was forked from, which one its runs made of that, and what they were."""

    origin: int
    state: int
    ran: list[ActionKey | None] = field(default_factory=list[ActionKey | None])


def forked(view: LineageView) -> list[SandboxId]:
    """Return the branches that are there, whole."""
    return [each.id for each in view.branches if each.state in {BranchState.OPEN, BranchState.COMMITTING}]


class TransactionMachine(RuleBasedStateMachine):
    """Drives one lineage as a runtime would that can be killed at any moment."""

    @initialize()
    def open_lineage(self) -> None:
        self.now_s = 0.0
        self.names = 0
        self.journal: list[TransactionEvent] = []
        self.moments: list[LineageView] = []
        self.disk: dict[SandboxId, Files] = {SandboxId("sbx"): {}}
        self.sealed: dict[CheckpointId, Files] = {}
        self.pointer = SandboxId("sbx")
        self.doing: list[Act] = []
        self.to_collect: list[CollectGarbage] = []
        self.told_garbage: list[str] = []
        self.runs: dict[RequestId, Running] = {}
        self.unanswered: dict[RequestId, TransactionEvent] = {}
        self.closed = False
        # the model: contents, and a number for each state that differs from all before
        self.truth: Files = {}
        self.state = 0
        self.kept: dict[CheckpointId, tuple[int, Files]] = {}
        self.branches: dict[SandboxId, Forked] = {}
        self.meaning: dict[StateVersion, Files] = {}
        opened = LineageOpened(at_s=0.0, lineage=ME, sandbox=self.pointer, version=StateVersion("v"))
        self.lineage = Lineage(opened)
        self.journal.append(opened)
        self.moments = [self.lineage.view()]
        self.abridged: list[TransactionEvent] = [opened]
        self.abridgement = Abridgement(self.lineage.view())
        self.lengths = [1]

    # ------------------------------------------------------------ the runtime

    def name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}{self.names}"

    def ask(self) -> RequestId:
        return RequestId(self.name("r"))

    def version(self) -> StateVersion:
        return StateVersion(self.name("v"))

    def tell(self, event: TransactionEvent) -> list[TransactionInstruction]:
        self.journal.append(event)
        before = self.lineage.view()
        out = self.lineage.handle(event)
        after = self.lineage.view()
        self.moments.append(after)
        self.abridged += self.abridgement.written(event, before=before, after=after, instructions=out)
        self.lengths.append(len(self.abridged))
        self.lineage.check_invariants()
        if isinstance(event, RunRequested) and event.branch:
            assert self.lineage.view().version == before.version, "branch isolation"
        for each in out:
            self.take(each)
        return out

    def request(self, event: TransactionEvent, request: RequestId) -> list[TransactionInstruction]:
        self.unanswered[request] = event
        return self.tell(event)

    def take(self, each: TransactionInstruction) -> None:
        match each:
            case StartRun():
                asked = self.unanswered.pop(each.request)
                assert isinstance(asked, RunRequested)
                self.started(each, asked)
            case CollectGarbage():
                self.told_garbage += [*each.sandboxes, *each.checkpoints]
                assert len(set(self.told_garbage)) == len(self.told_garbage), "garbage is told of once"
                self.to_collect.append(each)
            case RestoreCanonical():
                self.pointer = each.sandbox
            case (
                RefuseTransaction()
                | ReportFailure()
                | ReportConflict()
                | ReportMismatch()
                | ReportCheckpoint()
                | ReportBranch()
                | ReportState()
                | ReportDone()
            ):
                self.answered(each)
            case ForkBranch():
                self.branches[each.branch] = Forked(self.state, self.state)
                self.doing.append(each)
            case _:
                self.doing.append(each)

    def started(self, start: StartRun, asked: RunRequested) -> None:
        self.runs[start.request] = Running(start.sandbox, asked.effect)
        if asked.branch:
            assert start.sandbox == asked.branch
            assert asked.effect is not Effect.EXTERNAL, "side-effect control"
            assert asked.action is not None
            self.branches[asked.branch].ran.append(asked.action)
            if asked.effect is not Effect.READ:
                self.branches[asked.branch].state = self.names
        else:
            assert start.sandbox == self.pointer
            if asked.effect is not Effect.READ:
                self.state = self.names

    def answered(self, answer: ANSWERS) -> None:
        if answer.request in self.runs:
            assert isinstance(answer, ReportFailure)
            assert self.runs.pop(answer.request).sandbox not in self.lineage_sandboxes()
            return
        asked = self.unanswered.pop(answer.request)
        match answer, asked:
            case ReportBranch(), ForkRequested():
                assert answer.branch == asked.branch
            case ReportCheckpoint(), CheckpointRequested():
                self.kept.setdefault(answer.checkpoint, (self.state, dict(self.truth)))
                assert self.kept[answer.checkpoint][1] == self.truth, "what is kept is what was there"
            case ReportState(), CommitRequested():
                assert self.branches[asked.branch].origin == self.state, "state identity"
                self.truth = dict(self.disk[asked.branch])
                self.state = self.branches[asked.branch].state
            case ReportState(), RollbackRequested():
                self.state, truth = self.kept[asked.checkpoint]
                self.truth = dict(truth)
            case ReportConflict(), CommitRequested():
                assert self.branches[asked.branch].origin != self.state, "a conflict that is none"
            case ReportMismatch(), CommitRequested():
                assert [*(asked.actions or ())] != self.branches[asked.branch].ran, "action identity"
            case ReportDone(), CheckpointDropRequested():
                del self.kept[asked.checkpoint]
            case _:
                assert isinstance(answer, RefuseTransaction | ReportFailure | ReportDone)

    def lineage_sandboxes(self) -> set[SandboxId | None]:
        view = self.lineage.view()
        return {view.sandbox, *(each.id for each in view.branches)}

    def pick_branch(self, data: st.DataObject) -> SandboxId:
        """Draw a branch; often one that has not ended, if there is one."""
        live = sorted(each.id for each in self.lineage.view().branches)
        return data.draw(st.sampled_from([*live, *live, *live, *sorted(self.branches)]))

    def pick_act(self, data: st.DataObject) -> Act | None:
        if not self.doing:
            return None
        return self.doing.pop(data.draw(st.integers(0, len(self.doing) - 1)))

    def carry_out(self, act: Act) -> None:
        match act:
            case CaptureCheckpoint():
                self.sealed[act.checkpoint] = dict(self.disk[act.sandbox])
            case ForkBranch():
                self.disk[act.branch] = dict(self.disk[act.sandbox])
            case StageRollback():
                self.disk[act.staged] = dict(self.sealed[act.checkpoint])
            case SwapIn():
                assert self.pointer == act.replaces
                self.pointer = act.sandbox
            case StageCommit() | VerifyStaged():
                pass

    def half_carry_out(self, act: Act) -> None:
        match act:
            case CaptureCheckpoint():
                self.sealed[act.checkpoint] = {"half": 1}
            case ForkBranch():
                self.disk[act.branch] = {"half": 1}
            case StageRollback():
                self.disk[act.staged] = {"half": 1}
            case StageCommit() | VerifyStaged() | SwapIn():
                pass

    # ------------------------------------------------------------ what is asked

    @rule(effect=st.sampled_from(Effect))
    def run_in_canonical(self, effect: Effect) -> None:
        request = self.ask()
        self.request(
            RunRequested(at_s=self.now_s, lineage=ME, request=request, effect=effect, version=self.version()), request
        )

    @rule(data=st.data(), effect=st.sampled_from(Effect))
    def run_in_branch(self, data: st.DataObject, effect: Effect) -> None:
        if not self.branches:
            return
        request = self.ask()
        branch = self.pick_branch(data)
        event = RunRequested(
            at_s=self.now_s,
            lineage=ME,
            request=request,
            effect=effect,
            version=self.version(),
            branch=branch,
            action=ActionKey(data.draw(st.sampled_from("ab"))),
        )
        out = self.request(event, request)
        if effect is Effect.EXTERNAL:
            assert isinstance(out[0], RefuseTransaction)

    @rule(data=st.data(), meant=st.booleans())
    def something_is_written(self, data: st.DataObject, meant: bool) -> None:
        """A run writes; one that was declared READ does so too, sometimes."""
        may = [each for each in self.runs.values() if (each.effect is not Effect.READ) == meant]
        if not may:
            return
        run = data.draw(st.sampled_from(may))
        value = self.names = self.names + 1
        run.changed = True
        self.disk[run.sandbox][data.draw(st.sampled_from("xy"))] = value
        if run.sandbox == self.pointer:
            self.truth = dict(self.disk[run.sandbox])

    @rule(data=st.data())
    def run_ends(self, data: st.DataObject) -> None:
        if not self.runs:
            return
        request = data.draw(st.sampled_from(sorted(self.runs)))
        run = self.runs.pop(request)
        self.tell(RunEnded(at_s=self.now_s, lineage=ME, request=request, sandbox=run.sandbox, changed=run.changed))
        if run.changed:
            self.names += 1
            if run.sandbox == self.pointer:
                self.state = self.names
            else:
                self.branches[run.sandbox].state = self.names

    @rule()
    def checkpoint(self) -> None:
        request = self.ask()
        known = [each for each, (state, _) in self.kept.items() if state == self.state]
        out = self.request(
            CheckpointRequested(
                at_s=self.now_s, lineage=ME, request=request, checkpoint=CheckpointId(self.name("ckp"))
            ),
            request,
        )
        if known and not isinstance(out[0], RefuseTransaction):
            assert isinstance(out[0], ReportCheckpoint), "nothing changed, so it is free"
            assert out[0].checkpoint in known

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        asked = data.draw(st.sampled_from([*sorted(self.kept), CheckpointId("another's")]))
        request, staged = self.ask(), SandboxId(self.name("sbx"))
        out = self.request(
            RollbackRequested(at_s=self.now_s, lineage=ME, request=request, checkpoint=asked, staged=staged), request
        )
        assert asked in self.kept or isinstance(out[0], RefuseTransaction)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if self.kept:
            request = self.ask()
            asked = data.draw(st.sampled_from(sorted(self.kept)))
            self.request(
                CheckpointDropRequested(at_s=self.now_s, lineage=ME, request=request, checkpoint=asked), request
            )

    @rule()
    def fork(self) -> None:
        request, branch = self.ask(), SandboxId(self.name("sbx"))
        self.request(ForkRequested(at_s=self.now_s, lineage=ME, request=request, branch=branch), request)

    @rule(data=st.data(), named=st.sampled_from(["none", "right", "wrong"]))
    def commit(self, data: st.DataObject, named: str) -> None:
        if not self.branches:
            return
        self.commit_branch(self.pick_branch(data), named)

    def commit_branch(self, branch: SandboxId, named: str) -> None:
        request = self.ask()
        forked = self.branches[branch]
        ran = tuple(each for each in forked.ran if each is not None)
        actions = {"none": None, "right": ran, "wrong": (*ran, ActionKey("c"))}[named]
        is_wrong = actions is not None and [*actions] != forked.ran
        out = self.request(
            CommitRequested(at_s=self.now_s, lineage=ME, request=request, branch=branch, actions=actions), request
        )
        if not isinstance(out[0], RefuseTransaction):
            expected = ReportMismatch if is_wrong else StageCommit if forked.origin == self.state else ReportConflict
            assert isinstance(out[0], expected)

    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        if self.branches:
            self.discard_branch(self.pick_branch(data))

    def discard_branch(self, branch: SandboxId) -> None:
        request = self.ask()
        self.request(DiscardRequested(at_s=self.now_s, lineage=ME, request=request, branch=branch), request)

    # ------------------------------------------------------------ what is asked together

    @rule(
        data=st.data(),
        effect=st.sampled_from(Effect),
        meanwhile=st.sampled_from(["", "", "overtaken", "running"]),
        then=st.sampled_from(["commit", "commit", "discard", "leave"]),
        steps=st.integers(0, 3),
    )
    def speculate(self, data: st.DataObject, effect: Effect, meanwhile: str, then: str, steps: int) -> None:
        """Fork, execute, commit or discard, and go on with the commit for a while."""
        known = {*self.branches}
        self.fork()
        self.acts_succeed(data, 1)
        self.run_in_branch(data, effect)
        if meanwhile != "running":
            self.everything_that_runs_ends(data)
        if meanwhile == "overtaken":
            self.run_in_canonical(Effect.WRITE)
            self.everything_that_runs_ends(data)
        for branch in sorted({*self.branches} - known):
            if then == "commit":
                self.commit_branch(branch, "right")
            elif then == "discard":
                self.discard_branch(branch)
        self.acts_succeed(data, steps)

    @rule(data=st.data(), effect=st.sampled_from([None, *Effect]), ends=st.booleans(), steps=st.integers(0, 3))
    def speculate_over_a_kill(self, data: st.DataObject, effect: Effect | None, ends: bool, steps: int) -> None:
        """Fork, be killed, and commit what is there then."""
        self.everything_that_runs_ends(data)
        known = {*self.branches}
        self.fork()
        self.acts_succeed(data, 1)
        if effect is not None:
            self.run_in_canonical(effect)
        if ends:
            self.everything_that_runs_ends(data)
        self.killed(data)
        for branch in sorted({*self.branches} - known):
            self.commit_branch(branch, "none")
        self.acts_succeed(data, steps)

    @rule(data=st.data())
    def fork_beside_a_read_that_writes(self, data: st.DataObject) -> None:
        self.run_in_canonical(Effect.READ)
        self.fork()
        self.something_is_written(data, False)
        self.acts_succeed(data, 1)
        self.fork()
        self.everything_that_runs_ends(data)

    @rule(data=st.data(), steps=st.integers(0, 3))
    def go_back(self, data: st.DataObject, steps: int) -> None:
        """Keep the state, change it, roll back, and go on with the rollback for a while."""
        self.everything_that_runs_ends(data)
        self.checkpoint()
        self.acts_succeed(data, 1)
        self.run_in_canonical(Effect.WRITE)
        self.something_is_written(data, True)
        self.everything_that_runs_ends(data)
        self.rollback(data)
        self.acts_succeed(data, steps)

    def everything_that_runs_ends(self, data: st.DataObject) -> None:
        while self.runs:
            self.run_ends(data)

    # ------------------------------------------------------------ how it ends

    @rule(data=st.data(), steps=st.integers(1, 4))
    def acts_succeed(self, data: st.DataObject, steps: int) -> None:
        for _ in range(steps):
            act = self.pick_act(data)
            if act is not None:
                self.succeed(act, data)

    def succeed(self, act: Act, data: st.DataObject) -> None:
        same = [each for each, (_, files) in self.kept.items() if files == self.truth]
        if isinstance(act, CaptureCheckpoint) and same and data.draw(st.booleans()):
            self.tell(CheckpointUnchanged(at_s=self.now_s, lineage=ME, request=act.request, same_as=same[0]))
            return
        self.carry_out(act)
        done: dict[type[Act], type[Done]] = {
            CaptureCheckpoint: CheckpointCaptured,
            ForkBranch: BranchForked,
            StageRollback: StateStaged,
            StageCommit: StateStaged,
            VerifyStaged: StateVerified,
            SwapIn: StateSwapped,
        }
        self.tell(done[type(act)](at_s=self.now_s, lineage=ME, request=act.request))

    @rule(data=st.data())
    def act_fails(self, data: st.DataObject) -> None:
        act = self.pick_act(data)
        if act is None:
            return
        self.half_carry_out(act)
        failed: dict[type[Act], type[Failed]] = {CaptureCheckpoint: CheckpointNotCaptured, ForkBranch: ForkFailed}
        how = failed.get(type(act), StageFailed)
        self.tell(how(at_s=self.now_s, lineage=ME, request=act.request, reason="no room"))

    @rule(data=st.data())
    def branch_exits(self, data: st.DataObject) -> None:
        if self.branches:
            branch = self.pick_branch(data)
            if not any(isinstance(act, StageCommit | VerifyStaged | SwapIn) for act in self.doing):
                self.tell(BranchExited(at_s=self.now_s, lineage=ME, branch=branch, reason="signal 9"))

    @rule(data=st.data(), journalled=st.sampled_from([True, True, True, False]))
    def garbage_is_collected(self, data: st.DataObject, journalled: bool) -> None:
        if not self.to_collect:
            return
        each = self.to_collect.pop(data.draw(st.integers(0, len(self.to_collect) - 1)))
        self.remove(each)
        if journalled:
            event = GarbageCollected(
                at_s=self.now_s, lineage=ME, sandboxes=each.sandboxes, checkpoints=each.checkpoints
            )
            self.tell(event)
        else:
            self.killed(data)

    def remove(self, each: CollectGarbage) -> None:
        assert self.closed or self.pointer not in each.sandboxes, "the canonical state is collected"
        assert not {*each.checkpoints} & set(self.kept) or self.closed, "a kept checkpoint is collected"
        for sandbox in each.sandboxes:
            self.disk.pop(sandbox, None)
        for checkpoint in each.checkpoints:
            self.sealed.pop(checkpoint, None)

    @rule(data=st.data())
    def killed(self, data: st.DataObject) -> None:
        """Kill -9, at any moment: what was being done is done, half done or not done, and nobody wrote it down."""
        for act in self.doing:
            how = data.draw(st.sampled_from(["done", "half", "not"]))
            if how == "done" and not (isinstance(act, SwapIn) and self.closed):
                self.carry_out(act)
            elif how == "half":
                self.half_carry_out(act)
        doubtful = any(run.changed for run in self.runs.values())
        version = self.version() if doubtful or data.draw(st.booleans()) else None
        open_requests = {*self.unanswered, *self.runs}
        before = self.lineage.view()
        there = {each: self.version() for each in forked(before) if data.draw(st.sampled_from([True, True, False]))}
        restarted = RuntimeRestarted(at_s=self.now_s, lineage=ME, version=version, branches=tuple(there.items()))
        recovery = recover(self.journal, restarted)
        assert {*recovery.interrupted} == open_requests
        assert {branch for branch, _ in recovery.branches} == {each.id for each in before.branches} - {*there}
        assert (recovery.canonical is None) == self.closed
        assert self.closed or version is None or recovery.version == version
        self.journal.append(restarted)
        self.lineage = recovery.lineage
        self.moments.append(self.lineage.view())
        self.restart_abridged(restarted, before)
        self.lineage.check_invariants()
        self.doing, self.to_collect, self.told_garbage = [], [], []
        is_left_alone = not any(run.sandbox == before.sandbox for run in self.runs.values())
        self.runs, self.unanswered = {}, {}
        for each in recovery.instructions:
            self.take(each)
        told = {*recovery.garbage_sandboxes, *recovery.garbage_checkpoints}
        assert {*self.told_garbage} == told
        self.branches_go_on(there, is_moved_along=is_left_alone and version is not None)
        if version is not None:
            self.state = self.names

    def branches_go_on(self, there: dict[SandboxId, StateVersion], *, is_moved_along: bool) -> None:
        """What is not there is lost; what is there has the canonical state's fate, unless that was being changed."""
        self.names += 1
        assert {each.id: each.version for each in self.lineage.view().branches} == there
        self.branches = {name: self.branches[name] for name in there}
        for number, branch in enumerate(self.branches.values()):
            branch.origin = self.names if is_moved_along and branch.origin == self.state else branch.origin
            branch.state = -self.names - number
            branch.ran.append(None)

    def restart_abridged(self, restarted: RuntimeRestarted, before: LineageView) -> None:
        view = self.lineage.view()
        self.abridged += self.abridgement.written(restarted, before=before, after=view, instructions=())
        self.lengths.append(len(self.abridged))
        self.abridgement = Abridgement(view)
        if view.sandbox is not None:
            told = replayed(retold(view, view.sandbox, at_s=self.now_s), ME)
            told.check_invariants()
            again = told.view()
            assert (again.sandbox, again.version) == (view.sandbox, view.version)
            assert again.checkpoints == view.checkpoints
            assert {*again.branches} == {*view.branches}
            assert (again.stage, again.runs) == (Stage.IDLE, ())
            assert (again.garbage_sandboxes, again.garbage_checkpoints) == ((), ())

    @precondition(lambda self: self.names > 150)
    @rule()
    def close(self) -> None:
        self.closed = True
        self.tell(LineageClosed(at_s=self.now_s, lineage=ME))
        assert not self.unanswered, "whoever waited was answered"
        assert not self.runs
        self.doing, self.branches, self.kept = [], {}, {}

    # ------------------------------------------------------------ what holds always

    @invariant()
    def the_canonical_state_is_what_the_agent_has_seen(self) -> None:
        if hasattr(self, "lineage") and not self.closed:
            canonical = self.lineage.view().sandbox
            assert canonical is not None
            assert self.disk[canonical] == self.truth, "deterministic fallback"
            assert {*self.lineage.in_flight()} == {*self.unanswered, *self.runs}

    @invariant()
    def what_is_kept_stays_as_it_was(self) -> None:
        if hasattr(self, "lineage"):
            assert {*dict(self.lineage.view().checkpoints)} == {*self.kept}
            for checkpoint, (_, files) in self.kept.items():
                assert self.sealed[checkpoint] == files

    @invariant()
    def one_version_means_one_content(self) -> None:
        if not hasattr(self, "lineage") or self.closed:
            return
        view = self.lineage.view()
        doubtful = {run.sandbox for run in self.runs.values() if run.changed}
        states = [(view.version, self.truth)] if view.settled and self.pointer not in doubtful else []
        states += [(version, self.kept[checkpoint][1]) for checkpoint, version in view.checkpoints]
        busy = {run.sandbox for run in self.runs.values()}
        if self.pointer not in doubtful:
            states += [
                (each.version, self.disk[each.id])
                for each in view.branches
                if each.state.value == "open" and each.id not in busy
            ]
        for version, files in states:
            assert self.meaning.setdefault(version, dict(files)) == files, f"{version} means two contents"

    @invariant()
    def nothing_lies_about_that_has_no_name(self) -> None:
        if hasattr(self, "lineage"):
            view = self.lineage.view()
            named = {view.sandbox, view.staged, *(each.id for each in view.branches), *view.garbage_sandboxes}
            assert {*self.disk} <= named
            assert {*self.sealed} <= {view.capturing, *dict(view.checkpoints), *view.garbage_checkpoints}

    def teardown(self) -> None:
        """A journal that is cut after any event has one answer; and when all is closed, nothing is left."""
        if not hasattr(self, "lineage"):
            return
        for cut, moment in enumerate(self.moments, start=1):
            self.cut_journal_has_one_answer(self.journal[:cut], moment)
        for cut, (length, moment) in enumerate(zip(self.lengths, self.moments, strict=True), start=1):
            self.abridged_journal_has_the_same_answer(self.abridged[:length], self.journal[:cut], moment)
        self.close()
        while self.to_collect:
            each = self.to_collect.pop()
            self.remove(each)
            self.tell(
                GarbageCollected(at_s=self.now_s, lineage=ME, sandboxes=each.sandboxes, checkpoints=each.checkpoints)
            )
        assert (self.disk, self.sealed) == ({}, {})

    def cut_journal_has_one_answer(self, journal: list[TransactionEvent], moment: LineageView) -> None:
        there = forked(moment)
        recovery = recover(journal, restart(self.now_s, "", there))
        recovery.lineage.check_invariants()
        assert (recovery.canonical, recovery.version) == (moment.sandbox, moment.version)
        assert [each.id for each in recovery.lineage.view().branches] == there
        assert sorted(recovery.garbage_sandboxes) == garbage(moment), "garbage, exactly once"
        sealed = {moment.capturing, *moment.garbage_checkpoints} - {None}
        assert sorted(recovery.garbage_checkpoints) == sorted(filter(None, sealed))
        again = recover([*journal, restart(self.now_s, "", there)], restart(self.now_s, "again ", there))
        for branch in (*recovery.lineage.view().branches, *again.lineage.view().branches):
            assert branch.version.endswith(f"{branch.id} after"), "a crash during recovery has the same answer"
        assert without_versions(again.lineage.view()) == without_versions(recovery.lineage.view())

    def abridged_journal_has_the_same_answer(
        self, journal: list[TransactionEvent], whole: list[TransactionEvent], moment: LineageView
    ) -> None:
        after = StateVersion("after")
        restarted = replace(restart(self.now_s, "", forked(moment)), version=after)
        recovery, expected = recover(journal, restarted), recover(whole, restarted)
        recovery.lineage.check_invariants()
        assert recovery.canonical == moment.sandbox
        assert moment.sandbox is None or recovery.version == after
        assert recovery.lineage.view().checkpoints == moment.checkpoints
        assert recovery.lineage.view().branches == expected.lineage.view().branches, "a branch conflicts, or does not"
        assert sorted(recovery.garbage_sandboxes) == garbage(moment)
        sealed = {moment.capturing, *moment.garbage_checkpoints} - {None}
        assert sorted(recovery.garbage_checkpoints) == sorted(filter(None, sealed))


def restart(at_s: float, name: str, there: list[SandboxId]) -> RuntimeRestarted:
    """Have all branches go on that are there; nothing was taken from the canonical state."""
    branches = tuple((each, StateVersion(f"{name}{each} after")) for each in there)
    return RuntimeRestarted(at_s=at_s, lineage=ME, branches=branches)


def garbage(moment: LineageView) -> list[str]:
    """Return the sandboxes of which a restart at this moment leaves nothing."""
    made = {moment.staged, *(each.id for each in moment.branches)} - {*forked(moment)}
    return sorted(filter(None, {*made, *moment.garbage_sandboxes}))


def without_versions(view: LineageView) -> LineageView:
    """Return it without those of its branches."""
    return replace(view, branches=tuple(replace(each, version=StateVersion("")) for each in view.branches))


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
