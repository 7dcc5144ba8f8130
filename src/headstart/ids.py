"""Names for things, each its own type, and the source that makes new ones.

Below everything; imports nothing of ours.
"""

from __future__ import annotations

import itertools
import re
import secrets
from typing import NewType, Protocol

__all__ = [
    "LOCAL_PRINCIPAL",
    "PRINCIPAL_SCOPE_KEY",
    "SESSION_NAME_RULE",
    "CallId",
    "CheckpointId",
    "GenerationId",
    "IdSource",
    "PrincipalId",
    "RandomIds",
    "ResourceId",
    "SandboxId",
    "SequentialIds",
    "SessionId",
    "StateVersion",
    "is_session_name",
    "session_named",
]

PrincipalId = NewType("PrincipalId", str)
"""The tenant: whose key, quotas, secrets and learned data."""

SessionId = NewType("SessionId", str)
"""A conversation or a tool client's connection, as far as they are known to be one."""

GenerationId = NewType("GenerationId", str)
"""One model response being written: one request to the proxy."""

CallId = NewType("CallId", str)
"""One request of a tool client that needs a sandbox to answer."""

SandboxId = NewType("SandboxId", str)
"""A running (or starting) isolated environment."""

CheckpointId = NewType("CheckpointId", str)
"""A state of a sandbox that is kept."""

StateVersion = NewType("StateVersion", str)
"""Identifies a sandbox's state; two states that may differ never share one."""

ResourceId = NewType("ResourceId", str)
"""What a bet can be about. For an MCP server: its name in the config."""


LOCAL_PRINCIPAL = PrincipalId("local")
"""Who everybody is while no keys are configured."""

PRINCIPAL_SCOPE_KEY = "headstart.principal"
"""Where the port's guard leaves the `PrincipalId` of a request, in its ASGI scope."""


SESSION_NAME_RULE = "a session name is 1 to 128 visible ASCII characters"
_SESSION_NAME = re.compile(r"[\x21-\x7e]{1,128}")


def is_session_name(name: str) -> bool:
    """Whether a client may call its session so (in a URL or header, once decoded).

    >>> [is_session_name(name) for name in ("run-1", "", "two words", "é", "x" * 129)]
    [True, False, False, False, False]
    """
    return _SESSION_NAME.fullmatch(name) is not None


def session_named(principal: PrincipalId, name: str) -> SessionId:
    """Return the session that a client names `name` (in a URL or header), kept apart by principal.

    >>> session_named(LOCAL_PRINCIPAL, "run-1"), session_named(PrincipalId("key_ab"), "run-1")
    ('run-1', 'key_ab/run-1')
    """
    return SessionId(name if principal == LOCAL_PRINCIPAL else f"{principal}/{name}")


class IdSource(Protocol):
    """Makes ids that were never used before."""

    def new(self, kind: str) -> str:
        """Return a fresh id that begins with `kind`, a short word such as `"ses"`."""
        ...


class RandomIds:
    """Unguessable ids: 96 random bits after the kind. What the service uses."""

    def new(self, kind: str) -> str:
        return f"{kind}_{secrets.token_hex(12)}"


class SequentialIds:
    """Predictable ids (`ses_1`, `ses_2`, …) for tests and replays."""

    def __init__(self) -> None:
        self._next = itertools.count(1)

    def new(self, kind: str) -> str:
        return f"{kind}_{next(self._next)}"
