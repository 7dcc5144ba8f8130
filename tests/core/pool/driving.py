"""A pool, driven one event at a time, and short names for what comes out."""

from __future__ import annotations

from dataclasses import dataclass, field

from headstart.core.actions import ActionKey
from headstart.core.bets import Bet, BetId, BetKind, PredictorName
from headstart.core.events import (
    CallAbandoned,
    CallArrived,
    CallReturned,
    Event,
    GrantLease,
    Instruction,
    LimitCpu,
    RefuseLease,
    ResourceRegistered,
    SandboxBecameReady,
    SandboxExited,
    SandboxStartFailed,
    SandboxStopped,
    SessionClosed,
    SessionOpened,
    StartSandbox,
    StopReason,
    StopSandbox,
    TimerFired,
)
from headstart.core.policy import Refusal
from headstart.core.pool import (
    Estimates,
    Mode,
    Pool,
    PoolPolicy,
    SandboxState,
    Stake,
)
from headstart.ids import CallId, PrincipalId, ResourceId, SandboxId, SequentialIds, SessionId

ME, YOU = PrincipalId("me"), PrincipalId("you")
GIT, EXCEL = ResourceId("git"), ResourceId("excel")
A, B = SessionId("a"), SessionId("b")
MB = 1_000_000


@dataclass
class Driven:
    """A pool and the clock that it is told."""

    pool: Pool
    now_s: float = 0.0
    calls: int = 0
    bets: int = 0
    out: list[Instruction] = field(default_factory=list[Instruction])

    def tell(self, event: Event) -> list[Instruction]:
        self.out = self.pool.handle(event)
        self.pool.check_invariants()
        return self.out

    def register(
        self,
        resource: ResourceId = GIT,
        *,
        shared: bool = False,
        session_specific: bool = False,
        remote: bool = False,
        memory_bytes: int = 100 * MB,
        start_s: float = 1.0,
    ) -> list[Instruction]:
        return self.tell(
            ResourceRegistered(
                at_s=self.now_s,
                principal=ME,
                resource=resource,
                shared=shared,
                session_specific=session_specific,
                remote=remote,
                memory_bytes=memory_bytes,
                start_s=start_s,
            )
        )

    def open(
        self, *sessions: SessionId, principal: PrincipalId = ME, lost: tuple[ResourceId, ...] = ()
    ) -> list[Instruction]:
        out: list[Instruction] = []
        for session in sessions:
            out += self.tell(
                SessionOpened(at_s=self.now_s, session=session, principal=principal, resources=(GIT, EXCEL), lost=lost)
            )
        return out

    def close(self, session: SessionId) -> list[Instruction]:
        return self.tell(SessionClosed(at_s=self.now_s, session=session))

    def call(self, session: SessionId = A, resource: ResourceId = GIT, *, read_only: bool = True) -> list[Instruction]:
        self.calls += 1
        return self.tell(
            CallArrived(
                at_s=self.now_s,
                call=CallId(f"c{self.calls}"),
                session=session,
                resource=resource,
                tool="t",
                action=ActionKey("k"),
                read_only=read_only,
            )
        )

    def returns(self, call: int) -> list[Instruction]:
        now_s = self.now_s
        return self.tell(CallReturned(at_s=now_s, call=CallId(f"c{call}"), sent_s=now_s, answered_s=now_s))

    def abandons(self, call: int) -> list[Instruction]:
        return self.tell(CallAbandoned(at_s=self.now_s, call=CallId(f"c{call}")))

    def ready(self, sandbox: int, *, memory_bytes: int = 100 * MB, start_s: float = 1.0) -> list[Instruction]:
        return self.tell(
            SandboxBecameReady(
                at_s=self.now_s, sandbox=sbx(sandbox), start_s=start_s, cpu_s=0.8, memory_bytes=memory_bytes
            )
        )

    def fails(self, sandbox: int) -> list[Instruction]:
        return self.tell(SandboxStartFailed(at_s=self.now_s, sandbox=sbx(sandbox), message="exit code 1"))

    def exits(self, sandbox: int) -> list[Instruction]:
        return self.tell(SandboxExited(at_s=self.now_s, sandbox=sbx(sandbox), message="signal 9"))

    def stopped(self, sandbox: int, *, cpu_s: float = 0.0) -> list[Instruction]:
        return self.tell(SandboxStopped(at_s=self.now_s, sandbox=sbx(sandbox), cpu_s=cpu_s))

    def pass_time(self, seconds: float) -> list[Instruction]:
        self.now_s += seconds
        due_s = self.pool.next_deadline_s()
        return self.tell(TimerFired(at_s=self.now_s)) if due_s is not None and due_s <= self.now_s else []

    def bet(
        self,
        resource: ResourceId = GIT,
        session: SessionId | None = A,
        *,
        backer: str | None = None,
        lasts_s: float = 10.0,
        worth_s: float = 1.0,
        probability: float = 0.5,
    ) -> Refusal | list[Instruction]:
        self.bets += 1
        stake = Stake(
            id=BetId(f"bet{self.bets}"),
            bet=Bet(
                kind=BetKind.PREWARM,
                predictor=PredictorName("keyword"),
                principal=ME,
                session=session,
                resource=resource,
                probability=probability,
                hidden_s=1.0,
                expires_s=self.now_s + lasts_s,
                because="words",
            ),
            probability=probability,
            backer=backer or session or "",
            worth_s=worth_s,
            placed_s=self.now_s,
            expires_s=self.now_s + lasts_s,
            cpu_s=1.0,
        )
        refusal = self.pool.refusal_of(stake.bet, stake.backer)
        if refusal is not None:
            return refusal
        if not self.pool.has_room(stake):
            return Refusal.POOL_MEMORY
        self.out = self.pool.place(stake)
        self.pool.check_invariants()
        return self.out

    def state(self, sandbox: int) -> SandboxState:
        found = self.pool.inventory.find(sbx(sandbox))
        return SandboxState.GONE if found is None else found.state


def sbx(number: int) -> SandboxId:
    return SandboxId(f"sbx_{number}")


def driven(
    mode: Mode = Mode.PREDICTIVE,
    *,
    memory_bytes: int = 1_000 * MB,
    starts_at_once: int = 2,
    reserved_sets: int = 1,
) -> Driven:
    policy = PoolPolicy(
        mode=mode, memory_bytes=memory_bytes, starts_at_once=starts_at_once, reserved_sets=reserved_sets
    )
    return Driven(Pool(policy, SequentialIds(), Estimates()))


def started(instructions: list[Instruction]) -> list[StartSandbox]:
    return [each for each in instructions if isinstance(each, StartSandbox)]


def refusal(instructions: list[Instruction]) -> RefuseLease:
    [found] = [each for each in instructions if isinstance(each, RefuseLease)]
    return found


def unlimited(sandbox: int) -> LimitCpu:
    return LimitCpu(sandbox=sbx(sandbox), cpu_s=None)


def granted(call: int, sandbox: int) -> GrantLease:
    return GrantLease(call=CallId(f"c{call}"), sandbox=sbx(sandbox))


def stop(sandbox: int, reason: StopReason) -> StopSandbox:
    return StopSandbox(sandbox=sbx(sandbox), reason=reason)
