"""All sandboxes, found by what one looks for, and what they hold.

The pool decides; this keeps its indexes true. A sandbox is in exactly one of these, by
its state and its claim:

- a start queue (queued), one per priority, first come first served;
- `starting`;
- the shelf: alive and unclaimed, by principal and server (also while queued or starting);
- the claims: alive and claimed, by session and server (shared ones by principal).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from headstart.core.bets import BetId
from headstart.core.events import Priority
from headstart.core.pool.sandboxes import Claim, Happening, Sandbox, SandboxState
from headstart.errors import InvalidTransition
from headstart.ids import CallId, PrincipalId, ResourceId, SandboxId, SessionId

__all__ = ["Inventory"]

_GRAVEYARD: Final = 256
"""Stories of gone sandboxes kept for error messages."""

_Shelf = tuple[PrincipalId, ResourceId]
_Owned = tuple[PrincipalId, ResourceId, SessionId | None]


class Inventory:
    """The sandboxes of a pool; bounded by what is alive."""

    def __init__(self) -> None:
        self._all: dict[SandboxId, Sandbox] = {}
        self._queues: dict[Priority, dict[SandboxId, None]] = {priority: {} for priority in Priority}
        self._starting: dict[SandboxId, None] = {}
        self._shelves: dict[_Shelf, dict[SandboxId, None]] = {}
        self._claims: dict[_Owned, SandboxId] = {}
        self._claim_counts: dict[_Shelf, int] = {}
        self._graves: deque[tuple[SandboxId, tuple[str, ...]]] = deque(maxlen=_GRAVEYARD)
        self._used_bytes = 0
        self._stopping_bytes = 0
        self.hosted_bytes = 0
        """What hosted sandboxes use of the budget; they are not among these."""
        self.ended = 0
        self.ended_unused = 0
        self.ended_unused_cpu_s = 0.0

    # ------------------------------------------------------------ looking

    def __iter__(self) -> Iterator[Sandbox]:
        return iter(list(self._all.values()))

    def __len__(self) -> int:
        return len(self._all)

    @property
    def used_bytes(self) -> int:
        """Charged to sandboxes that are on the machine."""
        return self._used_bytes

    @property
    def stopping_bytes(self) -> int:
        """The part of `used_bytes` that is about to be free."""
        return self._stopping_bytes

    def find(self, sandbox: SandboxId) -> Sandbox | None:
        """Return a sandbox that is not gone."""
        return self._all.get(sandbox)

    def expect(self, sandbox: SandboxId, event: str) -> Sandbox:
        """Return the sandbox that an event is about.

        Raises:
            InvalidTransition: It is gone or was never there.
        """
        found = self._all.get(sandbox)
        if found is None:
            story = next((lines for grave, lines in reversed(self._graves) if grave == sandbox), ())
            state = SandboxState.GONE.value if story else "unknown"
            raise InvalidTransition(subject=sandbox, state=state, event=event, story=story)
        return found

    def of(self, principal: PrincipalId, resource: ResourceId) -> list[Sandbox]:
        """Return the living sandboxes of a server, claimed or not."""
        return [each for each in self if (each.principal, each.resource) == (principal, resource) and each.alive]

    def claimed_by(self, principal: PrincipalId, resource: ResourceId, session: SessionId | None) -> Sandbox | None:
        """Return the sandbox that a session (None: all sessions, shared) has claimed."""
        found = self._claims.get((principal, resource, session))
        return None if found is None else self._all[found]

    def claims_on(self, principal: PrincipalId, resource: ResourceId) -> int:
        """Count the sessions that have claimed a sandbox of this server."""
        return self._claim_counts.get((principal, resource), 0)

    def bets_on(self, session: SessionId) -> list[BetId]:
        """Return the open bets on what a session will call, those on sandboxes that are being stopped included."""
        stakes = (sandbox.stake for sandbox in self)
        return [stake.id for stake in stakes if stake is not None and session in {stake.bet.session, stake.backer}]

    def shelf(self, principal: PrincipalId, resource: ResourceId) -> list[Sandbox]:
        """Return the unclaimed ones, oldest first."""
        return [self._all[each] for each in self._shelves.get((principal, resource), ())]

    def queue(self, priority: Priority) -> list[Sandbox]:
        """Return what waits for a start in this class, first come first."""
        return [self._all[each] for each in self._queues[priority]]

    def queued(self, priority: Priority) -> int:
        """Count what waits for a start in this class."""
        return len(self._queues[priority])

    def all_queued(self) -> int:
        """Count what waits for a start."""
        return sum(map(len, self._queues.values()))

    def starting(self) -> list[Sandbox]:
        """Return what is being started."""
        return [self._all[each] for each in self._starting]

    # ------------------------------------------------------------ changing

    def add(self, sandbox: Sandbox, *, note: str) -> None:
        """Take in a new sandbox, queued."""
        self._all[sandbox.id] = sandbox
        self._queues[sandbox.priority][sandbox.id] = None
        sandbox.story.append(f"{sandbox.created_s:.3f} {sandbox.resource} queued ({note})")
        if sandbox.claimed:
            self._index_claim(sandbox)
        else:
            self._shelves.setdefault((sandbox.principal, sandbox.resource), {})[sandbox.id] = None

    def move(self, sandbox: Sandbox, happening: Happening, at_s: float, note: str = "") -> None:
        """Follow the sandbox's table and keep the indexes true.

        Raises:
            InvalidTransition: The table has no such row.
        """
        before = sandbox.move(happening, at_s, note)
        after = sandbox.state
        if before is after:
            return
        if before is SandboxState.QUEUED:
            del self._queues[sandbox.priority][sandbox.id]
        if before is SandboxState.STARTING:
            del self._starting[sandbox.id]
        if before is SandboxState.STOPPING:
            self._stopping_bytes -= sandbox.memory_bytes
        match after:
            case SandboxState.STARTING:
                self._starting[sandbox.id] = None
                self._used_bytes += sandbox.memory_bytes
            case SandboxState.STOPPING:
                self._stopping_bytes += sandbox.memory_bytes
                self._drop_indexes(sandbox)
            case SandboxState.GONE:
                if before is not SandboxState.QUEUED:
                    self._used_bytes -= sandbox.memory_bytes
                if before is not SandboxState.STOPPING:
                    self._drop_indexes(sandbox)
                del self._all[sandbox.id]
                self._graves.append((sandbox.id, tuple(sandbox.story)))
                self._count_ended(sandbox)
            case _:
                pass

    def _count_ended(self, sandbox: Sandbox) -> None:
        self.ended += 1
        if sandbox.served == 0:
            self.ended_unused += 1
            self.ended_unused_cpu_s += sandbox.cpu_s

    def claim(self, sandbox: Sandbox, session: SessionId, *, call: CallId | None, at_s: float) -> None:
        """Give an unclaimed sandbox to a session (a shared one to all of its principal's)."""
        self._unshelve(sandbox)
        sandbox.claimed = True
        sandbox.owner = None if sandbox.shared else session
        sandbox.claim = Claim(call=call, session=session, at_s=at_s)
        self._index_claim(sandbox)
        self.move(sandbox, Happening.CLAIMED, at_s, session)

    def set_priority(self, sandbox: Sandbox, priority: Priority) -> None:
        """Change a sandbox's priority; a queued one goes to the end of its new queue."""
        if priority is sandbox.priority:
            return
        if sandbox.state is SandboxState.QUEUED:
            del self._queues[sandbox.priority][sandbox.id]
            self._queues[priority][sandbox.id] = None
        sandbox.priority = priority

    def charge(self, sandbox: Sandbox, memory_bytes: int) -> None:
        """Replace what a sandbox is charged with by what was measured."""
        if sandbox.holds_memory:
            self._used_bytes += memory_bytes - sandbox.memory_bytes
        if sandbox.state is SandboxState.STOPPING:
            self._stopping_bytes += memory_bytes - sandbox.memory_bytes
        sandbox.memory_bytes = memory_bytes

    def _index_claim(self, sandbox: Sandbox) -> None:
        self._claims[sandbox.principal, sandbox.resource, sandbox.owner] = sandbox.id
        shelf = (sandbox.principal, sandbox.resource)
        self._claim_counts[shelf] = self._claim_counts.get(shelf, 0) + 1

    def _drop_indexes(self, sandbox: Sandbox) -> None:
        if not sandbox.claimed:
            self._unshelve(sandbox)
            return
        del self._claims[sandbox.principal, sandbox.resource, sandbox.owner]
        shelf = (sandbox.principal, sandbox.resource)
        self._claim_counts[shelf] -= 1
        if not self._claim_counts[shelf]:
            del self._claim_counts[shelf]

    def _unshelve(self, sandbox: Sandbox) -> None:
        shelf = self._shelves[sandbox.principal, sandbox.resource]
        del shelf[sandbox.id]
        if not shelf:
            del self._shelves[sandbox.principal, sandbox.resource]

    # ------------------------------------------------------------ checking

    def check(self) -> None:
        """Assert that the indexes say what the sandboxes say.

        Raises:
            AssertionError: They do not.
        """
        alive = [each for each in self._all.values() if each.alive]
        states = SandboxState
        _same({e.id for e in self._all.values() if e.state is states.STARTING}, set(self._starting), "starting")
        for priority, queue in self._queues.items():
            queued = {e.id for e in alive if e.state is states.QUEUED and e.priority is priority}
            _same(queued, set(queue), f"queue {priority.name}")
        shelved = {each for shelf in self._shelves.values() for each in shelf}
        _same({e.id for e in alive if not e.claimed}, shelved, "shelves")
        _same({e.id for e in alive if e.claimed}, set(self._claims.values()), "claims")
        _same(len(self._claims), sum(self._claim_counts.values()), "claim counts")
        _same(sum(e.memory_bytes for e in self._all.values() if e.holds_memory), self._used_bytes, "used memory")
        stopping = sum(e.memory_bytes for e in self._all.values() if e.state is states.STOPPING)
        _same(stopping, self._stopping_bytes, "stopping memory")
        for each in alive:
            _check_sandbox(each)


def _same(expected: object, actual: object, what: str) -> None:
    if expected != actual:
        raise AssertionError(f"{what}: the sandboxes say {expected}, the index says {actual}")


def _check_sandbox(sandbox: Sandbox) -> None:
    story = "\n  ".join(sandbox.story)
    leased = sandbox.state is SandboxState.LEASED
    if leased and not sandbox.claimed:
        raise AssertionError(f"{sandbox.id} is leased to nobody:\n  {story}")
    if sandbox.state is SandboxState.READY and sandbox.claimed:
        raise AssertionError(f"{sandbox.id} is claimed and not leased:\n  {story}")
    if sandbox.waiting and (leased or not sandbox.claimed):
        raise AssertionError(f"{sandbox.id} keeps calls waiting in state {sandbox.state.value}:\n  {story}")
    if sandbox.running and not leased:
        raise AssertionError(f"{sandbox.id} runs calls in state {sandbox.state.value}:\n  {story}")
