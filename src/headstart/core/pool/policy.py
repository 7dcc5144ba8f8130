"""The pool's modes and limits, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Mode", "PoolPolicy"]


class Mode(Enum):
    """Who is warm when."""

    EAGER = "eager"
    """All of a session's servers start when it opens (what MCP hosts do)."""
    ON_DEMAND = "on-demand"
    """A server starts at its first call and stays until the session ends."""
    RESERVED = "reserved"
    """Every server of a live session is warm, taken from complete sets kept for those who come next."""
    PREDICTIVE = "predictive"
    """What a bet is worth starting is started; what is not worth keeping is stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPolicy:
    """The pool's limits.

    Attributes:
        memory_bytes: For all sandboxes together, by measurement, else by estimate.
        set_aside_bytes: What zygotes may hold beside it; the user sets the sum.
        starts_at_once: Start slots; starts are CPU-bound, so one per core is right.
        slot_patience_s: How long a start holds its slot at least; what takes so long, and several times as
            long as such starts do, is not waiting for the CPU.
        reserved_sets: In `reserved`: complete sets kept warm for sessions to come.
        idle_stop_s: When an idle sandbox that only served READ calls is stopped at the
            latest (predictive mode, and shared sandboxes in every mode).
        claim_patience_s: How long a call waits for memory that others are using.
        backoff_s / backoff_cap_s: The first wait after a failure (it doubles), and the longest.
        forgiven_after_s: A server that failed this long ago begins again at `backoff_s`.
    """

    mode: Mode = Mode.PREDICTIVE
    memory_bytes: int = 4_000_000_000
    set_aside_bytes: int = 0
    starts_at_once: int = 2
    slot_patience_s: float = 5.0
    reserved_sets: int = 1
    idle_stop_s: float = 600.0
    claim_patience_s: float = 30.0
    backoff_s: float = 0.5
    backoff_cap_s: float = 60.0
    forgiven_after_s: float = 120.0
