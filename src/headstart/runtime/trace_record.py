"""A session's trace as it is kept and told."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

from headstart.core.events import PrepareForm
from headstart.core.steps import Preparation, SessionSummary, Step
from headstart.ids import ResourceId, SessionId
from headstart.runtime.codec import RecordCodec

__all__ = ["MOST_STEPS", "StartsFrom", "Trace", "decode_trace", "encode_trace"]

MOST_STEPS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StartsFrom:
    """From what a server of the session starts, and why; as it was when the trace was taken."""

    server: ResourceId
    form: PrepareForm
    reason: str


_CODEC = RecordCodec([Step, Preparation, SessionSummary, StartsFrom])


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A session as time.

    Attributes:
        steps: The newest `MOST_STEPS`, oldest first.
        summary: Of all its steps.
        wall_offset_s: What a time in it has to be added to, to be one on the wall clock;
            None in records of before it was noted.
        forms: Of each server that it called or that was prepared for it, in that order.
        cut_off_s: When the service was last heard of that was killed with the session open;
            None for any other session.
    """

    session: SessionId
    summary: SessionSummary
    steps: tuple[Step, ...]
    preparations: tuple[Preparation, ...]
    wall_offset_s: float | None = None
    forms: tuple[StartsFrom, ...] = ()
    cut_off_s: float | None = None

    @property
    def newest_wall_s(self) -> float:
        """When its newest step ended, on the wall clock; 0 if it has none, or of before that was noted."""
        if self.wall_offset_s is None:
            return 0.0
        return max((step.end_s + self.wall_offset_s for step in self.steps), default=0.0)


def encode_trace(trace: Trace) -> str:
    """Return the text to save a trace as."""
    return json.dumps(
        {
            "session": trace.session,
            "summary": _CODEC.encode(trace.summary),
            "steps": [_CODEC.encode(step) for step in trace.steps],
            "preparations": [_CODEC.encode(one) for one in trace.preparations],
            "wall_offset_s": trace.wall_offset_s,
            "cut_off_s": trace.cut_off_s,
            "forms": [_CODEC.encode(one) for one in trace.forms],
        },
        separators=(",", ":"),
    )


def decode_trace(text: str) -> Trace:
    """Return the trace that was saved as this text.

    Raises:
        ValueError, KeyError: It is none.
    """
    fields = cast("dict[str, Any]", json.loads(text))
    return Trace(
        session=fields["session"],
        summary=cast("SessionSummary", _CODEC.decode(fields["summary"])),
        steps=tuple(cast("Step", _CODEC.decode(one)) for one in fields["steps"]),
        preparations=tuple(cast("Preparation", _CODEC.decode(one)) for one in fields["preparations"]),
        wall_offset_s=fields.get("wall_offset_s"),
        cut_off_s=fields.get("cut_off_s"),
        forms=tuple(cast("StartsFrom", _CODEC.decode(one)) for one in fields.get("forms", ())),
    )
