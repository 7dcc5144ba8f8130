"""Names for things, each its own type, and the source that makes new ones.

Below everything; imports nothing of ours.
"""

from __future__ import annotations

import itertools
import re
import secrets
from dataclasses import dataclass
from typing import NewType, Protocol

__all__ = [
    "LOCAL_PRINCIPAL",
    "NODE_RULE",
    "PRINCIPAL_SCOPE_KEY",
    "SESSION_NAME_RULE",
    "CallId",
    "CheckpointId",
    "GenerationId",
    "IdParts",
    "IdSource",
    "NodeIds",
    "PrincipalId",
    "RandomIds",
    "ResourceId",
    "SandboxId",
    "SequentialIds",
    "SessionId",
    "StateVersion",
    "begins_id",
    "is_node_name",
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


NODE_RULE = "a node's name is 1 to 24 lowercase letters, digits and -, with neither of its ends a -"
_NODE = r"[a-z0-9](?:[a-z0-9-]{0,22}[a-z0-9])?"
_ID = re.compile(rf"([a-z]+)_(?:({_NODE})-)?([A-Za-z0-9_]*)")


def is_node_name(name: str) -> bool:
    """Whether a machine may be called so in ids.

    >>> [is_node_name(name) for name in ("gpu-3", "7", "", "-a", "a-", "A", "a_b", "x" * 25)]
    [True, True, False, False, False, False, False, False]
    """
    return re.fullmatch(_NODE, name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdParts:
    """What an id says: `box_4f1c…`, or, where there are several machines, `box_gpu-3-4f1c…`.

    >>> str(IdParts(kind="box", node="gpu-3", unique="4f1c")), str(IdParts(kind="box", unique="4f1c"))
    ('box_gpu-3-4f1c', 'box_4f1c')

    Attributes:
        node: The machine that it was made on; None where that is not said.
        unique: What tells it from others.
    """

    kind: str
    unique: str
    node: str | None = None

    @classmethod
    def read(cls, text: str) -> IdParts | None:
        """Return the parts of an id, or of the beginning of one; None if it is none.

        >>> IdParts.read("box_gpu-3-4f1c"), IdParts.read("box_4f1c")
        (IdParts(kind='box', unique='4f1c', node='gpu-3'), IdParts(kind='box', unique='4f1c', node=None))
        >>> IdParts.read("work"), IdParts.read("box_GPU-4f1c")
        (None, None)
        """
        found = _ID.fullmatch(text)
        return None if found is None else cls(kind=found[1], node=found[2], unique=found[3])

    def __str__(self) -> str:
        return f"{self.kind}_{self.unique}" if self.node is None else f"{self.kind}_{self.node}-{self.unique}"


SHORTEST_BEGINNING = 3


def begins_id(id_: str, beginning: str) -> bool:
    """Whether an id begins so: with its kind and node, with its node, or with what is unique of it.

    >>> [begins_id("box_gpu-3-4f1c", said) for said in ("box_gpu-3-4f", "gpu-3-4", "4f1", "4f", "f1c", "box_")]
    [True, True, True, False, False, False]
    """
    parts = IdParts.read(id_)
    if parts is None:
        return False
    rest = beginning.removeprefix(f"{parts.kind}_")
    if len(rest) < SHORTEST_BEGINNING:
        return False
    return parts.unique.startswith(rest) or id_.removeprefix(f"{parts.kind}_").startswith(rest)


class IdSource(Protocol):
    """Makes ids that were never used before."""

    def new(self, kind: str) -> str:
        """Return a fresh id that begins with `kind`, a short word such as `"ses"`."""
        ...


class RandomIds:
    """Unguessable ids: 96 random bits after the kind. What the service uses."""

    def new(self, kind: str) -> str:
        return f"{kind}_{secrets.token_hex(12)}"


class NodeIds:
    """Ids that say on which machine they were made.

    >>> NodeIds(SequentialIds(), "gpu-3").new("box")
    'box_gpu-3-1'
    """

    def __init__(self, ids: IdSource, node: str) -> None:
        self._ids = ids
        self._node = node

    def new(self, kind: str) -> str:
        return str(IdParts(kind=kind, node=self._node, unique=self._ids.new(kind).removeprefix(f"{kind}_")))


class SequentialIds:
    """Predictable ids (`ses_1`, `ses_2`, …) for tests and replays."""

    def __init__(self) -> None:
        self._next = itertools.count(1)

    def new(self, kind: str) -> str:
        return f"{kind}_{next(self._next)}"
