"""Whose names a sandbox carries: those made for it, or those of another, which it was forked from.

An identity is made once, for one sandbox, and never kept: it follows from that sandbox's id, which is random and
never used again. So all that has to be remembered of a fork with the same identity is whose it is.
"""

from __future__ import annotations

import hashlib
import uuid
from typing import Literal

from headstart.backends.contract import Identity
from headstart.errors import ConfigError
from headstart.ids import IdSource, SandboxId

__all__ = ["IdentityChoice", "choice_of", "identity_of", "is_fresh", "new_seed"]

IdentityChoice = Literal["fresh", "same"]
"""What a fork or a rollback carries: names and random state of its own, or those of the state that it begins with."""

_SEED_BITS = 31


def identity_of(sandbox: SandboxId, whose: SandboxId | None = None, *, boot: str = "") -> Identity:
    """Return what a sandbox carries as its own.

    Args:
        sandbox: Its id.
        whose: For which sandbox its identity was made; None: for itself.
        boot: Told apart from the times before when it was started again: then it has another boot id.

    >>> own, same = identity_of(SandboxId("box_1")), identity_of(SandboxId("box_2"), SandboxId("box_1"))
    >>> own.hostname, own.machine_id == same.machine_id, own.boot_id == same.boot_id
    ('box-f3f0cfb2b461', True, True)
    """
    whose = whose or sandbox
    return Identity(
        sandbox=sandbox,
        hostname=f"box-{_digest('hostname', whose).hex()[:12]}",
        machine_id=uuid.UUID(bytes=_digest("machine id", whose)[:16], version=4).hex,
        boot_id=str(uuid.UUID(bytes=_digest("boot id", whose, boot)[:16], version=4)),
    )


def new_seed(ids: IdSource) -> int:
    """Return a seed that was never used before, for a generator that takes 31 bits."""
    return int.from_bytes(_digest(ids.new("seed"))) & ((1 << _SEED_BITS) - 1)


def is_fresh(choice: str) -> bool:
    """Whether an identity was chosen that is new.

    Raises:
        ConfigError: It is no choice.
    """
    if choice not in {"fresh", "same"}:
        raise ConfigError(f"{choice!r} is no choice of an identity", where="identity", hint="say 'fresh' or 'same'")
    return choice == "fresh"


def choice_of(*, fresh: bool) -> IdentityChoice:
    """Return how a choice is written."""
    return "fresh" if fresh else "same"


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode()).digest()
