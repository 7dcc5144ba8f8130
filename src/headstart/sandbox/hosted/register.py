"""Which sandboxes live in the service, by id and name; which rest on disk alone, and which have ended and why."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field

import anyio

from headstart.errors import ConfigError, HeadstartError, SandboxUnknown
from headstart.ids import IdParts, SessionId, begins_id
from headstart.sandbox.hosted.record import HostedRecord
from headstart.sandbox.sandbox import Sandbox

__all__ = ["Broken", "Hibernated", "Hosted", "Register", "Waking"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_PREFIX = "box_"
_LONGEST_NAME = 63
_MOST_ENDED = 1_000
_WHO_LIVES = "headstart sandbox list shows who lives"


@dataclass(slots=True, kw_only=True)
class Hosted:
    """One sandbox, or branch, that lives.

    Attributes:
        record: What it was made with, and what ran in it.
        users: How many use it now; it is idle when nobody does.
        ending: Set to have its task end it; then `why` says for what reason.
        goes_on: It ends for now only: the next service has it again, or this one at once.
        hibernates: It ends to be hibernated.
        has_had_kernel / has_had_shell: Something was kept in these since it runs; so whoever had something before
            was told that it is lost, if it is.
        gone: Set when it is here no more.
    """

    box: Sandbox
    record: HostedRecord
    used_at_s: float
    users: int = 0
    why: str = ""
    goes_on: bool = False
    hibernates: bool = False
    has_had_kernel: bool = False
    has_had_shell: bool = False
    ending: anyio.Event = field(default_factory=anyio.Event)
    gone: anyio.Event = field(default_factory=anyio.Event)

    @property
    def id(self) -> str:
        return self.box.id

    @property
    def branch_of(self) -> str | None:
        """The sandbox that it was forked from; None if it is none."""
        return self.record.branch_of

    @property
    def name(self) -> str | None:
        """What its user calls it; a branch has no name."""
        return self.record.name

    def end(self, why: str, *, goes_on: bool = False, hibernates: bool = False) -> None:
        """Have its task end it; the first reason counts."""
        if not self.ending.is_set():
            self.why = why
            self.goes_on = goes_on
            self.hibernates = hibernates
            self.ending.set()

    def has_ended(self) -> SandboxUnknown:
        """Return what is told to who uses it."""
        return _has_ended(self.id, self.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """One whose files are on disk, and that does not run.

    Attributes:
        why: What has kept it from being brought back; "" while that is being tried.
    """

    record: HostedRecord
    why: str = ""

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def name(self) -> str | None:
        return self.record.name


@dataclass(slots=True, kw_only=True)
class Waking:
    """A hibernated sandbox is being woken.

    Attributes:
        over: Set when it runs, or when it is known that it cannot.
        failure: Why it cannot.
    """

    over: anyio.Event = field(default_factory=anyio.Event)
    failure: HeadstartError | None = None


@dataclass(slots=True, kw_only=True)
class Hibernated:
    """One that is on disk, and nowhere else.

    Attributes:
        waking: None unless it is being woken.
    """

    record: HostedRecord
    waking: Waking | None = None

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def name(self) -> str | None:
        return self.record.name


class Register:
    """Finds sandboxes, and keeps their names apart.

    Args:
        node: What this machine is called in ids; None: nothing.
    """

    def __init__(self, node: str | None = None) -> None:
        self._node = node
        self._living: dict[str, Hosted] = {}
        self._broken: dict[str, Broken] = {}
        self._hibernated: dict[str, Hibernated] = {}
        self._ended: dict[str, str] = {}
        self._ended_as: dict[str, str] = {}
        """By name, which sandbox was the last that was called so."""

    @property
    def living(self) -> tuple[Hosted, ...]:
        """The oldest first."""
        return tuple(self._living.values())

    @property
    def broken(self) -> tuple[Broken, ...]:
        return tuple(self._broken.values())

    @property
    def hibernated(self) -> tuple[Hibernated, ...]:
        return tuple(self._hibernated.values())

    def branches_of(self, hosted: Hosted) -> tuple[Hosted, ...]:
        """Return the branches of a sandbox that live."""
        return tuple(each for each in self._living.values() if each.branch_of == hosted.id)

    def of_session(self, session: SessionId) -> tuple[Hosted, ...]:
        """Return the sandboxes that live and were made for a session, without their branches."""
        return tuple(each for each in self._living.values() if each.branch_of is None and each.record.is_of(session))

    # ------------------------------------------------------------ what changes

    def note_living(self, hosted: Hosted) -> None:
        self._living[hosted.id] = hosted
        self._broken.pop(hosted.id, None)
        self._hibernated.pop(hosted.id, None)

    def note_gone(self, hosted: Hosted) -> None:
        """It is here no more."""
        del self._living[hosted.id]
        self.note_ended(hosted.id, hosted.why, name=hosted.name)

    def note_broken(self, record: HostedRecord, why: str = "") -> None:
        """It does not run, and its files are on disk."""
        self._broken[record.id] = Broken(record=record, why=why)

    def note_hibernated(self, record: HostedRecord) -> None:
        """It rests on disk until somebody uses it."""
        self._hibernated[record.id] = Hibernated(record=record)

    def note_ended(self, sandbox: str, why: str, *, name: str | None) -> None:
        """Nothing of it is left, and who asks for it by its id or name is told why."""
        self._broken.pop(sandbox, None)
        self._hibernated.pop(sandbox, None)
        self._ended[sandbox] = why
        if name is not None:
            self._ended_as[name] = sandbox
        while len(self._ended) > _MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        while len(self._ended_as) > _MOST_ENDED:
            del self._ended_as[next(iter(self._ended_as))]

    # ------------------------------------------------------------ names

    def check_name(self, name: str | None) -> None:
        """Refuse what can be no sandbox's name, or is another's.

        Raises:
            ConfigError: It is so.
        """
        if name is None:
            return
        if not _NAME.fullmatch(name) or name.startswith(_PREFIX):
            hint = f"use letters, digits, _ . and -, at most {_LONGEST_NAME}, and do not begin with {_PREFIX}"
            raise ConfigError(f"{name!r} cannot be a sandbox's name", where="name", hint=hint)
        for each in self._all():
            if each.name == name:
                hint = "choose another, or kill that one first"
                raise ConfigError(f"{each.id} is called {name!r} already", where="name", hint=hint)

    def find(self, sandbox: str) -> Hosted | Broken | Hibernated:
        """Return a sandbox by its id or name, or by a beginning of its id, or of what follows its node, that no other has.

        Raises:
            SandboxUnknown: There is none, or there are several; of one that has ended, the message says why.
        """
        everybody = self._all()
        found = [each for each in everybody if sandbox in {each.id, each.name}]
        if not found:
            found = [each for each in everybody if begins_id(each.id, sandbox)]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(sorted(each.id for each in found))
            raise SandboxUnknown(f"{sandbox!r} could be {ids}", hint="write more of its id")
        if len(sandbox) > _LONGEST_NAME:
            raise SandboxUnknown(f"there is no sandbox {sandbox[:_LONGEST_NAME]!r}…", hint=_WHO_LIVES)
        if sandbox in self._ended:
            raise _has_ended(sandbox, self._ended[sandbox])
        if (named := self._ended_as.get(sandbox, "")) in self._ended:
            raise _has_ended(f"{sandbox} ({named})", self._ended[named])
        self._refuse_other_node(sandbox)
        words = [word for each in everybody for word in (each.id, each.name) if word]
        near = difflib.get_close_matches(sandbox, words, n=1)
        hint = f"did you mean {near[0]}?" if near else _WHO_LIVES
        raise SandboxUnknown(f"there is no sandbox {sandbox!r}", hint=hint)

    def _refuse_other_node(self, sandbox: str) -> None:
        parts = IdParts.read(sandbox)
        if parts is None or f"{parts.kind}_" != _PREFIX or parts.node in {None, self._node}:
            return
        here = f"this one is {self._node}" if self._node else "this one has no name"
        hint = f"ask the service there; {_WHO_LIVES} here"
        raise SandboxUnknown(f"{sandbox} lives on the node {parts.node}, and {here}", hint=hint)

    def find_living(self, sandbox: str) -> Hosted:
        """Return one that can be used.

        Raises:
            SandboxUnknown: As `find`; or it is ending, is hibernated, or could not be brought back.
        """
        found = self.find(sandbox)
        if isinstance(found, Broken):
            if not found.why:
                raise SandboxUnknown(f"{found.id} is being brought back", hint="ask again in a moment")
            hint = f"headstart sandbox kill {found.id} lets go of it; else the next start of the service tries again"
            raise SandboxUnknown(f"{found.id} could not be brought back: {found.why}", hint=hint)
        if isinstance(found, Hibernated):
            raise SandboxUnknown(f"{found.id} is hibernated", hint=f"headstart sandbox resume {found.id} wakes it")
        if found.ending.is_set():
            raise found.has_ended()
        return found

    def _all(self) -> list[Hosted | Broken | Hibernated]:
        return [*self._living.values(), *self._broken.values(), *self._hibernated.values()]


def _has_ended(sandbox: str, why: str) -> SandboxUnknown:
    return SandboxUnknown(f"{sandbox} has ended: {why}", hint=_WHO_LIVES)
