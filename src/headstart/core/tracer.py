"""Builds steps, preparations and summaries from what the broker sees.

Pure, like all of core: told of every event with the joins and instructions that it led
to, it hands over what is finished (`take_finished`) and forgets it. A step is finished when the
generation has ended and every call that it asked for has come and gone; at the latest
when the same conversation's next generation begins, or its session closes.

Steps of a conversation that is not joined yet wait for the join, a few at most.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from headstart.core.bets import BetId, BetKind, PredictorName
from headstart.core.events import (
    CallAbandoned,
    CallArrived,
    CallReturned,
    LeaseRefusal,
    SandboxBecameReady,
    SessionClosed,
    SessionOpened,
    StartSandbox,
)
from headstart.core.pool import StakeLost, StakeWon
from headstart.core.scope import Belonging, Joined, Origin
from headstart.core.steps import (
    CallSpans,
    GenerationSpans,
    Part,
    Preparation,
    SessionSummary,
    Span,
    Step,
    tile,
    with_preparation,
    with_step,
)
from headstart.core.stream import GenerationEnded, GenerationStarted
from headstart.ids import CallId, GenerationId, PrincipalId, SandboxId, SessionId

__all__ = ["Finished", "Tracer"]

Finished = Step | Preparation | SessionSummary

_MOST_OPEN: Final = 8_192
"""Steps being built; the oldest is finished as it is."""
_MOST_UNJOINED: Final = 8
"""Finished steps that wait for their conversation's join; older ones go without a session."""
_MOST_FINISHED: Final = 65_536
"""Finished things that nobody took; the oldest go."""


@dataclass(slots=True, kw_only=True)
class _Call:
    event: CallArrived
    granted_s: float | None = None
    sandbox: SandboxId | None = None
    cold: bool = False
    hidden_s: float = 0.0
    predictor: PredictorName | None = None


@dataclass(slots=True, kw_only=True)
class _Open:
    """A step being built."""

    principal: PrincipalId
    conversation: str
    session: SessionId | None
    start_s: float
    started: GenerationStarted | None = None
    first_output_s: float | None = None
    text: bool = False
    written: int = 0
    ended: GenerationEnded | None = None
    running: dict[CallId, _Call] = field(default_factory=dict[CallId, _Call])
    done: list[CallSpans] = field(default_factory=list[CallSpans])
    closing: bool = False

    @property
    def complete(self) -> bool:
        over = self.started is None or self.ended is not None
        return over and not self.closing and not self.running and len(self.done) >= self.written


@dataclass(slots=True, kw_only=True)
class _Session:
    """A session's numbers.

    Attributes:
        closed_s: When it closed; it stays until the last bet on it is settled.
        unsettled: The bets on it that were open then and still are.
    """

    summary: SessionSummary
    parts: dict[Part, float] = field(default_factory=lambda: dict.fromkeys(Part, 0.0))
    closed_s: float | None = None
    unsettled: set[BetId] = field(default_factory=set[BetId])


class Tracer:
    """Follows all sessions; bounded by what is open."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._latest: dict[str, str] = {}
        self._step_of_call: dict[CallId, str] = {}
        self._sessions: dict[SessionId, _Session] = {}
        self._awaited: dict[BetId, SessionId] = {}
        """Open bets, and the closed session that stays for each."""
        self._unjoined: OrderedDict[str, deque[Step]] = OrderedDict()
        self._started_s: dict[SandboxId, float] = {}
        self._ready_s: dict[SandboxId, float] = {}
        self._finished: deque[Finished] = deque(maxlen=_MOST_FINISHED)

    def take_finished(self) -> list[Finished]:
        """Hand over what is finished since the last time."""
        finished = list(self._finished)
        self._finished.clear()
        return finished

    def summary(self, session: SessionId) -> SessionSummary | None:
        """Return an open session's numbers as they stand."""
        found = self._sessions.get(session)
        return None if found is None else self._summary(found)

    @property
    def open_steps(self) -> int:
        """How many steps are being built."""
        return len(self._open)

    # ------------------------------------------------------------ sessions

    def session_opened(self, event: SessionOpened) -> None:
        before = self._sessions.get(event.session)
        if before is not None and before.closed_s is not None:
            self._leave(event.session, before.closed_s)  # its name is used again
        if event.session not in self._sessions:
            self._sessions[event.session] = _Session(
                summary=SessionSummary(
                    session=event.session,
                    principal=event.principal,
                    opened_s=event.at_s,
                    last_s=event.at_s,
                )
            )

    def session_closed(self, event: SessionClosed, *, unsettled: Iterable[BetId] = ()) -> None:
        """Finish what is open of a session, and its summary, once its `unsettled` bets are settled."""
        found = self._sessions.get(event.session)
        if found is None or found.closed_s is not None:
            return
        for key in [key for key, step in self._open.items() if step.session == event.session]:
            self._finish(key, event.at_s)
        found.closed_s, found.unsettled = event.at_s, set(unsettled)
        self._awaited.update(dict.fromkeys(found.unsettled, event.session))
        if not found.unsettled:
            self._leave(event.session, event.at_s)

    def _leave(self, session: SessionId, closed_s: float) -> None:
        found = self._sessions.pop(session)
        for bet in found.unsettled:
            del self._awaited[bet]
        self._finished.append(replace(self._summary(found), last_s=closed_s, closed=True))

    def joined(self, joined: Joined) -> None:
        """A conversation turned out to be a session's: its steps are too."""
        for key, step in self._open.items():
            if step.conversation == joined.conversation and step.session is None:
                self._open[key].session = joined.session
        for step in self._unjoined.pop(joined.conversation, ()):
            self._hand_over(replace(step, session=joined.session))

    # ------------------------------------------------------------ generations

    def generation_started(self, event: GenerationStarted, belonging: Belonging) -> None:
        """A step begins; the conversation's step before it is over."""
        before = self._latest.get(belonging.conversation)
        if before is not None and before in self._open and not self._open[before].running:
            self._finish(before, event.at_s)
        key = f"generation:{event.generation}"
        self._open[key] = _Open(
            principal=event.principal,
            conversation=belonging.conversation,
            session=belonging.session,
            start_s=event.at_s,
            started=event,
        )
        self._latest[belonging.conversation] = key
        if len(self._open) > _MOST_OPEN:
            self._finish(next(iter(self._open)), event.at_s)

    def output_seen(self, generation: GenerationId, at_s: float, *, text: bool) -> None:
        """Something was written: text, or a call."""
        step = self._open.get(f"generation:{generation}")
        if step is None:
            return
        if step.first_output_s is None:
            step.first_output_s = at_s
        step.text = step.text or (text and not step.written)

    def call_written(self, generation: GenerationId) -> None:
        """A call of one of our servers was written; it is expected to arrive."""
        step = self._open.get(f"generation:{generation}")
        if step is not None:
            step.written += 1

    def generation_ended(self, event: GenerationEnded) -> None:
        key = f"generation:{event.generation}"
        step = self._open.get(key)
        if step is not None:
            step.ended = event
            self._finish_if_complete(key, event.at_s)

    # ------------------------------------------------------------ calls

    def call_arrived(self, event: CallArrived, origin: Origin | None, principal: PrincipalId) -> None:
        """A call joins the step that wrote it, or makes one of its own."""
        key = f"generation:{origin.generation}" if origin else ""
        if key not in self._open:
            key = f"call:{event.call}"
            conversation = str(origin.conversation) if origin else ""
            self._open[key] = _Open(
                principal=principal, conversation=conversation, session=event.session, start_s=event.at_s
            )
        step = self._open[key]
        step.session = step.session or event.session
        step.running[event.call] = _Call(event=event)
        self._step_of_call[event.call] = key

    def granted(self, call_id: CallId, sandbox: SandboxId | None, at_s: float) -> None:
        """A call has its sandbox."""
        call = self._call(call_id)
        if call is None:
            return
        call.granted_s, call.sandbox = at_s, sandbox
        started_s = None if sandbox is None else self._started_s.get(sandbox)
        call.cold = started_s is not None and started_s >= call.event.at_s

    def refused(self, call_id: CallId, refusal: LeaseRefusal, at_s: float) -> None:
        """A call was answered with an error instead."""
        call = self._call(call_id)
        if call is not None:
            spans = _contiguous(call_id, call.event.at_s, [(Part.ENV_PREP, at_s)])
            self._end_call(call, spans, at_s, refusal=refusal)

    def returned(self, event: CallReturned) -> None:
        call = self._call(event.call)
        if call is None:
            return
        granted_s = call.event.at_s if call.granted_s is None else call.granted_s
        ends = [
            (Part.ENV_PREP, granted_s),
            (Part.DATA_IO, event.sent_s),
            (Part.SANDBOX_EXEC, event.answered_s),
            (Part.DATA_IO, event.at_s),
        ]
        spans = _contiguous(event.call, call.event.at_s, ends)
        self._end_call(call, spans, event.at_s, is_error=event.is_error)

    def abandoned(self, event: CallAbandoned) -> None:
        call = self._call(event.call)
        if call is not None:
            self._abandon(call, event.at_s)

    def _abandon(self, call: _Call, at_s: float) -> None:
        ends = [(Part.ENV_PREP, at_s if call.granted_s is None else call.granted_s), (Part.SANDBOX_EXEC, at_s)]
        self._end_call(call, _contiguous(call.event.call, call.event.at_s, ends), at_s, abandoned=True)

    def _end_call(
        self,
        call: _Call,
        spans: tuple[Span, ...],
        at_s: float,
        *,
        refusal: LeaseRefusal | None = None,
        is_error: bool = False,
        abandoned: bool = False,
    ) -> None:
        event = call.event
        key = self._step_of_call.pop(event.call)
        step = self._open[key]
        del step.running[event.call]
        step.done.append(
            CallSpans(
                call=event.call,
                resource=event.resource,
                tool=event.tool,
                start_s=event.at_s,
                end_s=max(event.at_s, at_s),
                spans=spans,
                sandbox=call.sandbox,
                refusal=refusal,
                is_error=is_error,
                abandoned=abandoned,
                hidden_s=call.hidden_s,
                predictor=call.predictor,
                cold=call.cold,
            )
        )
        self._finish_if_complete(key, at_s)

    def _call(self, call_id: CallId) -> _Call | None:
        key = self._step_of_call.get(call_id)
        return None if key is None else self._open[key].running[call_id]

    # ------------------------------------------------------------ preparations

    def sandbox_starts(self, instruction: StartSandbox, at_s: float) -> None:
        self._started_s[instruction.sandbox] = at_s

    def sandbox_ready(self, event: SandboxBecameReady) -> None:
        if event.sandbox in self._started_s:
            self._ready_s[event.sandbox] = event.at_s

    def sandbox_gone(self, sandbox: SandboxId) -> None:
        self._started_s.pop(sandbox, None)
        self._ready_s.pop(sandbox, None)

    def won(self, fact: StakeWon) -> None:
        """A bet was claimed."""
        call = None if fact.call is None else self._call(fact.call)
        kept = fact.stake.bet.kind is BetKind.KEEP
        if call is not None and not kept:
            call.hidden_s, call.predictor = fact.hidden_s, fact.stake.bet.predictor
        preparation = replace(
            self._preparation(fact, fact.session or None),
            won=True,
            call=fact.call,
            waited_s=fact.waited_s,
            hidden_s=fact.hidden_s,
        )
        self._add(preparation)
        self._settled(fact.stake.id)

    def lost(self, fact: StakeLost) -> None:
        """A bet came to nothing."""
        backer = SessionId(fact.stake.backer)
        session = fact.stake.bet.session or (backer if backer in self._sessions else None)
        preparation = replace(
            self._preparation(fact, session),
            void=fact.void,
            wasted_cpu_s=fact.cpu_s,
            wasted_byte_s=fact.byte_s,
        )
        self._add(preparation)
        self._settled(fact.stake.id)

    def _preparation(self, fact: StakeWon | StakeLost, session: SessionId | None) -> Preparation:
        bet = fact.stake.bet
        return Preparation(
            principal=bet.principal,
            session=session,
            sandbox=fact.sandbox,
            resource=bet.resource,
            kind=bet.kind,
            predictor=bet.predictor,
            because=bet.because,
            probability=fact.stake.probability,
            placed_s=fact.stake.placed_s,
            started_s=self._started_s.get(fact.sandbox),
            ready_s=self._ready_s.get(fact.sandbox),
            ended_s=fact.at_s,
            won=False,
        )

    def _add(self, preparation: Preparation) -> None:
        self._finished.append(preparation)
        session = None if preparation.session is None else self._sessions.get(preparation.session)
        if session is not None:
            session.summary = with_preparation(session.summary, preparation)

    def _settled(self, bet: BetId) -> None:
        """A bet ended, whoever's it was in the end: a closed session may be over with it."""
        session = self._awaited.pop(bet, None)
        found = None if session is None else self._sessions[session]
        if session is None or found is None or found.closed_s is None:
            return
        found.unsettled.discard(bet)
        if not found.unsettled:
            self._leave(session, found.closed_s)

    # ------------------------------------------------------------ finishing

    def _finish_if_complete(self, key: str, at_s: float) -> None:
        step = self._open.get(key)
        if step is not None and step.complete:
            self._finish(key, at_s)

    def _finish(self, key: str, at_s: float) -> None:
        """Close a step as it is; what still runs in it is cut off here."""
        step = self._open[key]
        step.closing = True
        for call in list(step.running.values()):
            self._abandon(call, at_s)
        del self._open[key]
        if self._latest.get(step.conversation) == key:
            del self._latest[step.conversation]
        generation = _generation(step, at_s)
        activities = ([generation] if generation else []) + step.done
        end_s = max((each.end_s for each in activities), default=step.start_s)
        finished = Step(
            principal=step.principal,
            session=step.session,
            conversation=step.conversation,
            number=0,
            start_s=step.start_s,
            end_s=end_s,
            generation=generation,
            calls=tuple(step.done),
            tiles=tile(activities, start_s=step.start_s, end_s=end_s),
        )
        if step.session is None:
            self._set_aside(finished)
        else:
            self._hand_over(finished)

    def _set_aside(self, step: Step) -> None:
        """Keep a step until its conversation is joined."""
        waiting = self._unjoined.setdefault(step.conversation, deque())
        waiting.append(step)
        self._unjoined.move_to_end(step.conversation)
        if len(waiting) > _MOST_UNJOINED:
            self._finished.append(waiting.popleft())
        if len(self._unjoined) > _MOST_OPEN:
            _, forgotten = self._unjoined.popitem(last=False)
            self._finished.extend(forgotten)

    def _hand_over(self, step: Step) -> None:
        session = None if step.session is None else self._sessions.get(step.session)
        if session is None:
            self._finished.append(step)
            return
        session.summary = with_step(session.summary, step)
        for span in step.tiles:
            session.parts[span.part] += span.seconds
        self._finished.append(replace(step, number=session.summary.steps))

    @staticmethod
    def _summary(session: _Session) -> SessionSummary:
        return replace(session.summary, parts=tuple(session.parts.items()))


def _generation(step: _Open, at_s: float) -> GenerationSpans | None:
    if step.started is None:
        return None
    start_s = step.started.at_s
    end_s = max(start_s, at_s if step.ended is None else step.ended.at_s)
    first_s = end_s if step.first_output_s is None else step.first_output_s
    return GenerationSpans(
        generation=step.started.generation,
        start_s=start_s,
        end_s=end_s,
        spans=_contiguous(None, start_s, [(Part.CONTEXT, min(first_s, end_s)), (Part.DECODE, end_s)]),
        model=step.started.model,
        outcome="" if step.ended is None else step.ended.outcome.value,
        output_tokens=None if step.ended is None else step.ended.output_tokens,
        calls_written=step.written,
        text=step.text,
    )


def _contiguous(call: CallId | None, start_s: float, ends: list[tuple[Part, float]]) -> tuple[Span, ...]:
    """Make spans that follow each other; clocks read in another task may be a little out of order."""
    last_s = max(start_s, ends[-1][1])
    spans: list[Span] = []
    for part, told_s in ends:
        end_s = min(max(start_s, told_s), last_s)
        if end_s > start_s:
            spans.append(Span(part=part, start_s=start_s, end_s=end_s, call=call))
        start_s = end_s
    return tuple(spans)
