"""One step of an agent, as time: spans that tile it, and what was prepared for it.

A step is one model generation and the calls that it asks for, from the request entering
the proxy to the last observation leaving the gateway. Each activity in it is cut into
spans::

    generation   context (until the first output) · decode (until the last)
    call         env_prep (until a sandbox is granted) · data_io (until it is sent)
                 · sandbox_exec (until it is answered) · data_io (until it has left)

Activities overlap: calls run side by side, and a call may arrive while the model still
writes. What the *agent* waited for is the critical path, so the tiles are found by
walking back from the end: take the activity that was going on last, attribute to it the
time back to its beginning, go on from there with what was going on then. Time with no
activity (the agent's own) is `unattributed`. So the tiles are contiguous and cover the
step exactly, whatever overlaps.

Rejected: a union by kind ("some call was executing"). With parallel calls it charges a
wait to execution and hides that the slower call had been waiting for its sandbox.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from headstart.core.bets import BetKind, PredictorName
from headstart.core.events import LeaseRefusal
from headstart.ids import CallId, GenerationId, PrincipalId, ResourceId, SandboxId, SessionId

__all__ = [
    "Activity",
    "CallSpans",
    "GenerationSpans",
    "Part",
    "Preparation",
    "SessionSummary",
    "Span",
    "Step",
    "tile",
    "with_preparation",
    "with_step",
]


class Part(Enum):
    """What a span of time was."""

    CONTEXT = "context"
    DECODE = "decode"
    ENV_PREP = "env_prep"
    DATA_IO = "data_io"
    SANDBOX_EXEC = "sandbox_exec"
    UNATTRIBUTED = "unattributed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time of one kind.

    Attributes:
        call: Whose it is, if a call's.
    """

    part: Part
    start_s: float
    end_s: float
    call: CallId | None = None

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSpans:
    """A generation's own spans, contiguous.

    Attributes:
        calls_written: Calls of our servers that it asked for.
        text: Whether it had visible text or reasoning before its first call.
    """

    generation: GenerationId
    start_s: float
    end_s: float
    spans: tuple[Span, ...]
    model: str = ""
    outcome: str = ""
    output_tokens: int | None = None
    calls_written: int = 0
    text: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSpans:
    """A call's own spans, contiguous.

    Attributes:
        sandbox: Where it ran; None for a remote or built-in server's, or if it was refused.
        refusal: Why it had none.
        abandoned: The client went away.
        hidden_s: What it was spared by a bet (prewarm or prefetch).
        predictor: Whose bet that was.
        cold: It waited for a start that nothing had prepared.
    """

    call: CallId
    resource: ResourceId
    tool: str
    start_s: float
    end_s: float
    spans: tuple[Span, ...]
    sandbox: SandboxId | None = None
    refusal: LeaseRefusal | None = None
    is_error: bool = False
    abandoned: bool = False
    hidden_s: float = 0.0
    predictor: PredictorName | None = None
    cold: bool = False

    @property
    def waited_s(self) -> float:
        """Seconds in env_prep."""
        return sum(span.seconds for span in self.spans if span.part is Part.ENV_PREP)


Activity = GenerationSpans | CallSpans


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A finished step.

    Attributes:
        session: Whose; None if its conversation was never joined to one.
        number: Its place among the session's steps, from 1 (0 without a session).
        generation: None if no generation was seen for its call.
        tiles: Contiguous from `start_s` to `end_s`.
    """

    principal: PrincipalId
    session: SessionId | None
    conversation: str
    number: int
    start_s: float
    end_s: float
    generation: GenerationSpans | None
    calls: tuple[CallSpans, ...]
    tiles: tuple[Span, ...]

    @property
    def wall_s(self) -> float:
        return self.end_s - self.start_s

    def seconds(self, part: Part) -> float:
        """Return how much of the step was of one kind."""
        return sum(span.seconds for span in self.tiles if span.part is part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Something that was done early, and what became of it.

    Attributes:
        session: Who used it, or for whom it was meant; None if that was never known.
        placed_s / started_s / ready_s / ended_s: None where it did not get so far.
        won: A call came for it.
        void: It ended for a reason that says nothing about the prediction.
        waited_s / hidden_s: What the call still waited, and what it was spared.
        wasted_cpu_s / wasted_byte_s: What it cost in vain.
    """

    principal: PrincipalId
    session: SessionId | None
    sandbox: SandboxId
    resource: ResourceId
    kind: BetKind
    predictor: PredictorName
    because: str
    probability: float
    placed_s: float
    started_s: float | None
    ready_s: float | None
    ended_s: float
    won: bool
    void: bool = False
    call: CallId | None = None
    waited_s: float = 0.0
    hidden_s: float = 0.0
    wasted_cpu_s: float = 0.0
    wasted_byte_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """A session in numbers, seconds each unless named otherwise.

    Attributes:
        wall_s: Sum of its steps.
        hidden_s: Spared by prewarming and prefetching.
        kept_s: Spared because a sandbox was kept (which on-demand pools do as well; so it
            is not part of `hidden_s`).
        cold_calls: Calls that waited for a start that nothing had prepared.
        closed: The session has ended; this is the last summary of it.
    """

    session: SessionId
    principal: PrincipalId
    opened_s: float
    last_s: float
    steps: int = 0
    calls: int = 0
    cold_calls: int = 0
    wall_s: float = 0.0
    parts: tuple[tuple[Part, float], ...] = ()
    waited_s: float = 0.0
    hidden_s: float = 0.0
    kept_s: float = 0.0
    wasted_cpu_s: float = 0.0
    wasted_byte_s: float = 0.0
    closed: bool = False


def with_step(summary: SessionSummary, step: Step) -> SessionSummary:
    """Return a session's numbers with one step more; its parts are summed by whoever keeps them."""
    return replace(
        summary,
        last_s=max(summary.last_s, step.end_s),
        steps=summary.steps + 1,
        calls=summary.calls + len(step.calls),
        cold_calls=summary.cold_calls + sum(call.cold for call in step.calls),
        wall_s=summary.wall_s + step.wall_s,
        waited_s=summary.waited_s + sum(call.waited_s for call in step.calls),
    )


def with_preparation(summary: SessionSummary, preparation: Preparation) -> SessionSummary:
    """Return a session's numbers with one preparation more."""
    kept = preparation.kind is BetKind.KEEP
    return replace(
        summary,
        hidden_s=summary.hidden_s + (0.0 if kept else preparation.hidden_s),
        kept_s=summary.kept_s + (preparation.hidden_s if kept else 0.0),
        wasted_cpu_s=summary.wasted_cpu_s + preparation.wasted_cpu_s,
        wasted_byte_s=summary.wasted_byte_s + preparation.wasted_byte_s,
    )


def tile(activities: Iterable[Activity], *, start_s: float, end_s: float) -> tuple[Span, ...]:
    """Attribute [start_s, end_s] to the activities on the critical path.

    Returns:
        Contiguous spans, the first from `start_s`, the last to `end_s`; empty if the
        step took no time.
    """
    backwards: list[Span] = []
    candidates = list(activities)
    at_s = end_s
    while at_s > start_s:
        activity = _last_going_on(candidates, at_s)
        reached_s = start_s if activity is None else max(start_s, min(activity.end_s, at_s))
        if reached_s < at_s:
            backwards.append(Span(part=Part.UNATTRIBUTED, start_s=reached_s, end_s=at_s))
        if activity is None:
            break
        backwards.extend(reversed(_clipped(activity.spans, max(start_s, activity.start_s), reached_s)))
        at_s = min(reached_s, max(start_s, activity.start_s))
    return tuple(reversed(backwards))


def _last_going_on(activities: Sequence[Activity], at_s: float) -> Activity | None:
    """Return what began before `at_s` and went on until it, or the longest; the earliest begun of equals."""
    begun = [each for each in activities if each.start_s < at_s]
    return max(begun, key=lambda each: (min(each.end_s, at_s), -each.start_s), default=None)


def _clipped(spans: Sequence[Span], start_s: float, end_s: float) -> list[Span]:
    return [
        Span(part=span.part, start_s=max(span.start_s, start_s), end_s=min(span.end_s, end_s), call=span.call)
        for span in spans
        if min(span.end_s, end_s) > max(span.start_s, start_s)
    ]
