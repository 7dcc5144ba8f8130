"""What an agent asks for: a tool, its arguments, and what running it may touch.

Two calls are the same action when their tool and *canonical* arguments are the same.
Canonical means: JSON with sorted keys, no insignificant space, and numbers kept apart by
type (`2`, `2.0` and `"2"` are three different arguments: a tool can tell them apart, so
must we). The digest of that text is the `ActionKey`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NewType

__all__ = ["ActionKey", "Annotations", "Effect", "action_key", "canonical_arguments", "effect_of"]

ActionKey = NewType("ActionKey", str)
"""32 hex digits that identify resource, tool and canonical arguments."""


class Effect(Enum):
    """What running an action may touch."""

    READ = "read"
    """Leaves state unchanged."""
    WRITE = "write"
    """Changes only what the backend can fork and roll back."""
    EXTERNAL = "external"
    """Everything else, and everything unknown."""


def canonical_arguments(arguments: Mapping[str, object] | None) -> str:
    """Return the canonical JSON text of a call's arguments (`{}` for None).

    Raises:
        ValueError: The arguments hold something that JSON cannot (NaN, infinity).
    """
    return json.dumps(arguments or {}, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def action_key(resource: str, tool: str, arguments: str) -> ActionKey:
    """Digest an action: the server, the tool's own name there, and its canonical arguments."""
    text = "\x1f".join((resource, tool, arguments))
    return ActionKey(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotations:
    """A tool's own MCP hints; None where it gave none."""

    read_only: bool | None = None
    destructive: bool | None = None
    open_world: bool | None = None


def effect_of(
    *,
    override: Effect | None,
    annotations: Annotations,
    annotations_trusted: bool,
) -> Effect:
    """Decide a call's effect; the first answer wins: the config's override, the tool's hints if trusted, EXTERNAL.

    Nothing observes what a call did to its sandbox, so a trusted tool's hints are taken at their word.
    """
    if override is not None:
        return override
    if not annotations_trusted or annotations.open_world is not False:
        return Effect.EXTERNAL
    if annotations.read_only:
        return Effect.READ
    return Effect.WRITE
