"""Which conversation a stream belongs to, and which session a conversation belongs to.

Three things are kept apart: the *generation* (one model response), the *conversation*
(one trajectory, many generations) and the *session* (a tool client, which owns
sandboxes). Model requests and tool calls arrive on two connections that know nothing of
each other; this is where they meet.

Generation → conversation, first answer wins:

1. the request names a session (URL or header): the conversation is that session's;
2. an id that the client sent of its own accord (`hints`), if it names a conversation (a
   `user` names a person, who may hold several at once);
3. the results that it brings back: the ids of tool calls that a known conversation's
   stream held. Some model servers number calls from 0; an id that several conversations
   had counts only among those that began alike;
4. else it is a new conversation. One that began alike with a conversation that is
   joined is *kin* to its session: good enough to prepare something unleased, never to
   act for that session.

Conversation → session: the same call seen in a stream (server, tool, canonical
arguments) and arriving at the gateway, from the same principal, within a window. Equal
calls of one conversation are matched first in, first out. If equal calls stand in the
streams of several conversations that could be meant, none is joined; the next call that
only one of them made decides. A conversation of the arriving session's own is meant
before a free one, and a free one before one that is joined elsewhere.

One session may have several conversations. A conversation whose calls arrive in several
open sessions *roams* (a client that opens a new MCP session per call): it has no session
that could be prepared for, so what is prepared for it stays unleased.

Everything here is bounded in number and forgotten after a time without use; what is
forgotten is only joined later, or not at all, which costs time and never correctness.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, NewType, TypeVar

from headstart.core.actions import ActionKey
from headstart.core.events import CallArrived
from headstart.core.stream import GenerationStarted
from headstart.ids import GenerationId, PrincipalId, SessionId

__all__ = ["Arrival", "Belonging", "ConversationId", "Joined", "Origin", "Scope", "ScopeLimits"]

ConversationId = NewType("ConversationId", str)

_SHARED_FIELDS: Final = frozenset({"user", "safety_identifier", "prompt_cache_key"})
"""Hints that name a person or an application, each of which may hold many conversations."""
_KIN_LOOKED_AT: Final = 16
_CONVERSATION_WORDS: Final = ("conversation", "session", "thread", "trajectory")
"""What a metadata field that names a conversation has in its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeLimits:
    """Bounds.

    Attributes:
        window_s: How long after it was written a call may still arrive (people approve calls by hand).
        forget_s: After how long without a generation or call a conversation is forgotten.
        conversations: Followed at once; the one least recently active goes first.
        sightings: Calls of one conversation that wait to arrive.
        ids: Hints, and tool call ids, remembered per conversation.
    """

    window_s: float = 180.0
    forget_s: float = 3_600.0
    conversations: int = 4_096
    sightings: int = 64
    ids: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Belonging:
    """Where a generation belongs, as far as is known now.

    Attributes:
        session: The conversation's one session; None while unknown, or if it roams.
        kin: A session whose conversation began alike; for preparing unleased only.
    """

    conversation: ConversationId
    principal: PrincipalId
    session: SessionId | None
    kin: SessionId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The place in a stream that a call came from."""

    conversation: ConversationId
    generation: GenerationId
    index: int
    seen_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A conversation was found to be a session's."""

    conversation: ConversationId
    session: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What an arriving call told: its place in a stream, and a join if it made one."""

    origin: Origin | None = None
    joined: Joined | None = None


@dataclass(slots=True, kw_only=True)
class _Conversation:
    id: ConversationId
    principal: PrincipalId
    opening: str
    active_s: float
    sessions: dict[SessionId, None] = field(default_factory=dict[SessionId, None])
    hints: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])
    wire_ids: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])
    sightings: deque[tuple[ActionKey, Origin]] = field(default_factory=deque[tuple[ActionKey, Origin]])
    generations: OrderedDict[GenerationId, None] = field(default_factory=OrderedDict[GenerationId, None])

    @property
    def session(self) -> SessionId | None:
        return next(iter(self.sessions)) if len(self.sessions) == 1 else None

    @property
    def roams(self) -> bool:
        return len(self.sessions) > 1

    @property
    def belonging(self) -> Belonging:
        return Belonging(conversation=self.id, principal=self.principal, session=self.session)


class Scope:
    """Joins generations to conversations and conversations to sessions.

    Args:
        limits: Its bounds.
    """

    def __init__(self, limits: ScopeLimits | None = None) -> None:
        self._limits = limits or ScopeLimits()
        self._conversations: OrderedDict[ConversationId, _Conversation] = OrderedDict()
        self._of_generation: dict[GenerationId, ConversationId] = {}
        self._of_id: dict[tuple[PrincipalId, str], dict[ConversationId, None]] = {}
        self._of_action: dict[tuple[PrincipalId, ActionKey], dict[ConversationId, None]] = {}
        self._of_session: dict[SessionId, dict[ConversationId, None]] = {}
        self._principals: dict[SessionId, PrincipalId] = {}
        self._made = 0

    def __len__(self) -> int:
        """How many conversations are followed."""
        return len(self._conversations)

    # ------------------------------------------------------------ sessions

    def session_opened(self, session: SessionId, principal: PrincipalId) -> None:
        """A tool client is there."""
        self._principals[session] = principal

    def session_closed(self, session: SessionId) -> None:
        """A tool client is gone; conversations that were its alone are free again."""
        self._principals.pop(session, None)
        for found in self._of_session.pop(session, {}):
            self._conversations[found].sessions.pop(session, None)

    # ------------------------------------------------------------ generations

    def generation_started(self, event: GenerationStarted) -> Belonging:
        """Find or make the conversation that a generation belongs to."""
        self._forget_idle(event.at_s)
        conversation = self._find(event) or self._make(event)
        self._touch(conversation, event.at_s)
        for hint in event.hints:
            if _names_a_conversation(hint):
                self._remember(conversation, conversation.hints, f"hint:{hint}")
        self._of_generation[event.generation] = conversation.id
        conversation.generations[event.generation] = None
        if len(conversation.generations) > self._limits.ids:
            oldest, _ = conversation.generations.popitem(last=False)
            self._of_generation.pop(oldest, None)
        return replace(conversation.belonging, kin=self._kin(conversation))

    def generation_ended(self, generation: GenerationId) -> None:
        """Nothing more is written in it (its calls may still arrive)."""
        found = self._of_generation.pop(generation, None)
        if found is not None and found in self._conversations:
            self._conversations[found].generations.pop(generation, None)

    def belonging(self, generation: GenerationId) -> Belonging | None:
        """Return where a running generation belongs (without kin; asked for every piece of text)."""
        found = self._of_generation.get(generation)
        return None if found is None else self._conversations[found].belonging

    def tool_call_closed(
        self, generation: GenerationId, *, index: int, wire_id: str, action: ActionKey | None, at_s: float
    ) -> None:
        """A call was written; `action` is None if it is none of our servers'."""
        found = self._of_generation.get(generation)
        if found is None:
            return
        conversation = self._conversations[found]
        if wire_id:
            self._remember(conversation, conversation.wire_ids, f"call:{wire_id}")
        if action is None:
            return
        origin = Origin(conversation=conversation.id, generation=generation, index=index, seen_s=at_s)
        conversation.sightings.append((action, origin))
        self._of_action.setdefault((conversation.principal, action), {})[conversation.id] = None
        if len(conversation.sightings) > self._limits.sightings:
            self._drop_sighting(conversation, 0)

    def _find(self, event: GenerationStarted) -> _Conversation | None:
        if event.session is not None:
            return self._named(event, event.session)
        for hint in event.hints:
            found = self._with_id(event.principal, f"hint:{hint}")
            if len(found) == 1:
                return found[0]
        for wire_id in event.answered_calls:
            found = self._with_id(event.principal, f"call:{wire_id}")
            alike = [each for each in found if each.opening == event.opening]
            for choice in (found, alike):
                if len(choice) == 1:
                    return choice[0]
        return None

    def _named(self, event: GenerationStarted, session: SessionId) -> _Conversation:
        name = ConversationId(f"session:{session}")
        conversation = self._conversations.get(name)
        if conversation is None:
            conversation = self._add(name, event)
        if session in self._principals or not conversation.sessions:
            self._join(conversation, session)
        return conversation

    def _with_id(self, principal: PrincipalId, key: str) -> tuple[_Conversation, ...]:
        return tuple(self._conversations[each] for each in self._of_id.get((principal, key), ()))

    def _make(self, event: GenerationStarted) -> _Conversation:
        self._made += 1
        return self._add(ConversationId(f"conversation:{self._made}"), event)

    def _add(self, name: ConversationId, event: GenerationStarted) -> _Conversation:
        conversation = _Conversation(id=name, principal=event.principal, opening=event.opening, active_s=event.at_s)
        self._conversations[name] = conversation
        if len(self._conversations) > self._limits.conversations:
            self._forget(next(iter(self._conversations.values())))
        return conversation

    def _kin(self, conversation: _Conversation) -> SessionId | None:
        """Return the session of the latest joined conversation that began alike.

        Only the latest few are looked at: thousands of rollouts may begin alike.
        """
        if conversation.sessions or not conversation.opening:
            return None
        alike = self._of_id.get((conversation.principal, f"opening:{conversation.opening}"), {})
        for other in islice(reversed(alike), _KIN_LOOKED_AT):
            session = self._conversations[other].session
            if session is not None:
                return session
        return None

    # ------------------------------------------------------------ calls

    def call_arrived(self, event: CallArrived) -> Arrival:
        """Find the place in a stream that a call came from, and join if that is unambiguous."""
        principal = self._principals.get(event.session)
        if principal is None:
            return Arrival()
        self._drop_old(principal, event.action, event.at_s)
        candidates = [self._conversations[e] for e in self._of_action.get((principal, event.action), ())]
        meant = self._meant(candidates, event.session)
        if meant is None:
            return Arrival()
        origin = self._take(meant, event.action)
        self._touch(meant, event.at_s)
        if event.session in meant.sessions:
            return Arrival(origin=origin)
        for named in [each for each in meant.sessions if each not in self._principals]:
            del meant.sessions[named]  # only a model URL's name; no tool client ever came under it
            _discard(self._of_session, named, meant.id)
        self._join(meant, event.session)
        return Arrival(origin=origin, joined=Joined(conversation=meant.id, session=event.session))

    @staticmethod
    def _meant(candidates: list[_Conversation], session: SessionId) -> _Conversation | None:
        """Choose the one conversation that may be meant; None if there are several or none."""
        own = [each for each in candidates if session in each.sessions]
        if own:
            return min(own, key=lambda each: each.sightings[0][1].seen_s)
        free = [each for each in candidates if not each.sessions or each.roams]
        choice = free or candidates
        return choice[0] if len(choice) == 1 else None

    def _join(self, conversation: _Conversation, session: SessionId) -> None:
        conversation.sessions[session] = None
        self._of_session.setdefault(session, {})[conversation.id] = None
        if conversation.opening:
            self._of_id.setdefault((conversation.principal, f"opening:{conversation.opening}"), {})[conversation.id] = (
                None
            )

    def _take(self, conversation: _Conversation, action: ActionKey) -> Origin:
        place = next(n for n, (key, _) in enumerate(conversation.sightings) if key == action)
        origin = conversation.sightings[place][1]
        self._drop_sighting(conversation, place)
        return origin

    def _drop_old(self, principal: PrincipalId, action: ActionKey, now_s: float) -> None:
        for found in list(self._of_action.get((principal, action), ())):
            conversation = self._conversations[found]
            while conversation.sightings and now_s - conversation.sightings[0][1].seen_s > self._limits.window_s:
                self._drop_sighting(conversation, 0)

    def _drop_sighting(self, conversation: _Conversation, place: int) -> None:
        action, _ = conversation.sightings[place]
        del conversation.sightings[place]
        if not any(key == action for key, _ in conversation.sightings):
            _discard(self._of_action, (conversation.principal, action), conversation.id)

    # ------------------------------------------------------------ remembering and forgetting

    def _remember(self, conversation: _Conversation, ids: OrderedDict[str, None], key: str) -> None:
        ids[key] = None
        ids.move_to_end(key)
        self._of_id.setdefault((conversation.principal, key), {})[conversation.id] = None
        if len(ids) > self._limits.ids:
            oldest, _ = ids.popitem(last=False)
            _discard(self._of_id, (conversation.principal, oldest), conversation.id)

    def _touch(self, conversation: _Conversation, at_s: float) -> None:
        conversation.active_s = max(conversation.active_s, at_s)
        self._conversations.move_to_end(conversation.id)

    def _forget_idle(self, now_s: float) -> None:
        while self._conversations:
            oldest = next(iter(self._conversations.values()))
            if now_s - oldest.active_s <= self._limits.forget_s:
                return
            self._forget(oldest)

    def _forget(self, conversation: _Conversation) -> None:
        while conversation.sightings:
            self._drop_sighting(conversation, 0)
        for key in (*conversation.hints, *conversation.wire_ids, f"opening:{conversation.opening}"):
            _discard(self._of_id, (conversation.principal, key), conversation.id)
        for generation in conversation.generations:
            self._of_generation.pop(generation, None)
        for session in conversation.sessions:
            _discard(self._of_session, session, conversation.id)
        del self._conversations[conversation.id]

    def forget(self, principal: PrincipalId) -> None:
        """Erase a principal's conversations."""
        for conversation in list(self._conversations.values()):
            if conversation.principal == principal:
                self._forget(conversation)


def _names_a_conversation(hint: str) -> bool:
    name = hint.partition("=")[0].lower()
    if name.startswith("metadata."):
        return any(word in name for word in _CONVERSATION_WORDS)
    return name not in _SHARED_FIELDS


_Key = TypeVar("_Key")


def _discard(index: dict[_Key, dict[ConversationId, None]], key: _Key, conversation: ConversationId) -> None:
    entries = index.get(key)
    if entries is not None:
        entries.pop(conversation, None)
        if not entries:
            del index[key]
