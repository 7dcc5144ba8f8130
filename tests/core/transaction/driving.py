"""A lineage that is driven one event at a time, and what tests say of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from headstart.core.actions import ActionKey, Effect
from headstart.core.transaction import (
    BranchExited,
    BranchForked,
    CheckpointCaptured,
    CheckpointDropRequested,
    CheckpointRequested,
    CollectGarbage,
    CommitRequested,
    DiscardRequested,
    ForkRequested,
    GarbageCollected,
    Lineage,
    LineageClosed,
    LineageId,
    LineageOpened,
    Recovery,
    RefuseTransaction,
    ReportFailure,
    RequestId,
    RollbackRequested,
    RunEnded,
    RunRequested,
    RuntimeRestarted,
    StageFailed,
    StateStaged,
    StateSwapped,
    StateVerified,
    StateVersion,
    TransactionEvent,
    TransactionInstruction,
    recover,
)
from headstart.ids import CheckpointId, SandboxId

__all__ = ["ME", "YOU", "Driven", "Out", "collect", "driven", "failure", "refusal", "with_branch", "with_checkpoint"]

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

    def killed(
        self, version: str | None = None, *, cut: int | None = None, there: dict[str, str] | None = None
    ) -> Recovery:
        """Restart it; the branches that are `there` have got these versions."""
        new = None if version is None else StateVersion(version)
        branches = tuple((SandboxId(name), StateVersion(each)) for name, each in (there or {}).items())
        return recover(self.journal[:cut], RuntimeRestarted(at_s=9.0, lineage=ME, version=new, branches=branches))


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
