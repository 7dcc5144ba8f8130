"""What outlives a run: one SQLite file, 0600 in a 0700 folder.

Held in memory while the service runs, because it is small and is asked for on the event
loop; every change goes through one queue to one writer, in batches, in a thread. The
tables are bounded by what they are about (servers in the config, sessions in the cap,
traces by `TRACES_KEPT`).

How the file is opened, and what becomes of one that cannot be read, is in `database.py`.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread

from headstart.clock import Clock
from headstart.core.events import PrepareForm
from headstart.errors import HeadstartError
from headstart.ids import PrincipalId, ResourceId, SessionId
from headstart.runtime.contract import Catalogue, RememberedClient
from headstart.runtime.database import all_moved_aside, may_pass, open_database
from headstart.runtime.tasks import open_tasks

__all__ = ["Estimate", "Forgotten", "FormChoice", "Known", "Store", "newest_traces", "nothing_known", "open_store"]

TRACES_KEPT = 200
MAX_QUEUED = 10_000
HELD_SAVED_EVERY_S = 60.0
"""How exactly it is known when a session last used a sandbox that holds state of its own."""

_LEARNED = ("catalogues", "forms", "learned", "traces")
"""What `forget` erases; live sessions are no learned data."""

_log = logging.getLogger(__name__)
_Statement = tuple[str, tuple[object, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one start was seen to take."""

    start_s: float
    cpu_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A server as it was learned."""

    catalogue: Catalogue
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FormChoice:
    """From what a server starts, and why.

    Attributes:
        details: What the chooser needs to prepare the form again (JSON).
    """

    form: PrepareForm
    reason: str
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """How much was erased, by what it was."""

    servers: int
    forms: int
    learned: int
    traces: int
    unreadable_files: int
    journals: int = 0


@dataclass(frozen=True, slots=True)
class _Held:
    principal: PrincipalId
    seen_wall_s: float


class Store:
    """The service's memory. Implements `SessionMemory`."""

    def __init__(self, connection: sqlite3.Connection, path: Path, *, clock: Clock, moved_aside: Path | None) -> None:
        self._connection = connection
        self._path = path
        self._guard = threading.Lock()
        self._clock = clock
        self._queue: deque[_Statement] = deque()
        self._wake = anyio.Event()
        self._closing = False
        self._known: dict[tuple[str, str], Known] = {}
        self._forms: dict[tuple[str, str], FormChoice] = {}
        self._clients: dict[str, RememberedClient] = {}
        self._held: dict[SessionId, dict[ResourceId, _Held]] = {}
        self._learned: dict[str, str] = {}
        self.moved_aside = moved_aside
        """Where a file that could not be read has gone, if that happened."""
        self.failed_writes = 0
        self._load()

    # ------------------------------------------------------------ servers

    def known(self, principal: PrincipalId, key: str) -> Known | None:
        return self._known.get((principal, key))

    def learn(self, principal: PrincipalId, key: str, known: Known) -> None:
        self._known[principal, key] = known
        estimate = known.estimate or Estimate(start_s=0, cpu_s=0, memory_bytes=0)
        values = (estimate.start_s, estimate.cpu_s, estimate.memory_bytes) if known.estimate else (None, None, None)
        self._write(
            "INSERT OR REPLACE INTO catalogues VALUES (?,?,?,?,?,?,?,?)",
            principal,
            key,
            known.catalogue.server,
            json.dumps(asdict(known.catalogue)),
            *values,
            self._clock.wall_s(),
        )

    def carry_over(self, principal: PrincipalId, before: str, after: str) -> None:
        """Let what is known under one key count under another of which nothing is known yet."""
        known = self.known(principal, before)
        if known is not None and self.known(principal, after) is None:
            self.learn(principal, after, known)

    def form(self, principal: PrincipalId, key: str) -> FormChoice | None:
        return self._forms.get((principal, key))

    def choose_form(self, principal: PrincipalId, key: str, choice: FormChoice) -> None:
        self._forms[principal, key] = choice
        text = json.dumps({"reason": choice.reason, "details": dict(choice.details)})
        self._write("INSERT OR REPLACE INTO forms VALUES (?,?,?,?)", principal, key, choice.form.value, text)

    # ------------------------------------------------------------ tool clients, as `SessionMemory`

    def save(self, client: RememberedClient) -> None:
        self._clients[client.id] = client
        self._write(
            "INSERT OR REPLACE INTO clients VALUES (?,?,?,?,?,?,?)",
            client.id,
            client.session,
            client.principal,
            client.server,
            client.protocol_version,
            json.dumps(client.client_params),
            client.seen_wall_s,
        )

    def load(self, client_id: str) -> RememberedClient | None:
        return self._clients.get(client_id)

    def forget(self, client_id: str) -> None:
        if self._clients.pop(client_id, None) is not None:
            self._write("DELETE FROM clients WHERE id = ?", client_id)

    def forget_unseen(self, before_wall_s: float) -> None:
        for client in [c for c in self._clients.values() if c.seen_wall_s < before_wall_s]:
            self.forget(client.id)
        stale = [
            (session, server)
            for session, held in self._held.items()
            for server, one in held.items()
            if one.seen_wall_s < before_wall_s
        ]
        for session, server in stale:
            self.release(session, server)

    # ------------------------------------------------------------ state that sandboxes hold

    def hold(self, session: SessionId, server: ResourceId, principal: PrincipalId) -> None:
        """Note that a sandbox of this session has served something that was no READ."""
        now_s = self._clock.wall_s()
        held = self._held.setdefault(session, {})
        known = held.get(server)
        if known is None or now_s - known.seen_wall_s >= HELD_SAVED_EVERY_S:
            held[server] = _Held(principal, now_s)
            self._write("INSERT OR REPLACE INTO held_state VALUES (?,?,?,?)", session, server, principal, now_s)

    def still_held(self, session: SessionId, server: ResourceId) -> None:
        """Note that a session goes on to use what it holds, if it holds anything."""
        known = self._held.get(session, {}).get(server)
        if known is not None:
            self.hold(session, server, known.principal)

    def held(self, session: SessionId) -> tuple[ResourceId, ...]:
        return tuple(self._held.get(session, ()))

    def release(self, session: SessionId, server: ResourceId | None = None) -> None:
        """Note that the state is gone and everybody knows: of one server, or of all."""
        held = self._held.get(session)
        if held is None:
            return
        for one in [server] if server is not None else list(held):
            if held.pop(one, None) is not None:
                self._write("DELETE FROM held_state WHERE session = ? AND server = ?", session, one)
        if not held:
            del self._held[session]

    # ------------------------------------------------------------ learned data, traces

    def learned(self, principal: PrincipalId) -> str | None:
        """Return what the core has learned of a principal, as it wrote it."""
        return self._learned.get(principal)

    def save_learned(self, principal: str, data: str) -> None:
        if self._learned.get(principal) != data:
            self._learned[principal] = data
            self._write("INSERT OR REPLACE INTO learned VALUES (?,?)", principal, data)

    def save_trace(self, session: SessionId, principal: PrincipalId, trace: str, *, newest_wall_s: float) -> None:
        """Keep a session's trace, by the end of its newest step."""
        self._write(
            "INSERT INTO traces (session, principal, ended_wall_s, trace) VALUES (?,?,?,?)",
            session,
            principal,
            newest_wall_s,
            trace,
        )
        self._write(f"DELETE FROM traces WHERE number <= (SELECT max(number) FROM traces) - {TRACES_KEPT}")  # noqa: S608 our own number

    async def traces(self, session: SessionId | None = None, *, limit: int = 1) -> list[str]:
        """Return the newest traces (of one session), newest first."""
        await self.flush()
        query, values = newest_traces(session)
        rows = await anyio.to_thread.run_sync(self._query, query, (*values, limit))
        return [str(row[0]) for row in rows]

    async def knows(self, principal: PrincipalId) -> bool:
        """Whether anything was learned for, or from, a principal."""
        await self.flush()
        return await anyio.to_thread.run_sync(self._knows, principal)

    def _knows(self, principal: PrincipalId) -> bool:
        with self._guard:
            found = (
                self._connection.execute(f"SELECT 1 FROM {table} WHERE principal = ? LIMIT 1", (principal,)).fetchone()  # noqa: S608 our own names
                for table in _LEARNED
            )
            return any(found)

    async def forget_principal(self, principal: PrincipalId | None) -> Forgotten:
        """Erase everything that was learned for, or from, a principal (None: everybody).

        Files that could not be read and were moved aside may hold something of anybody: they go.
        """
        counts = await anyio.to_thread.run_sync(self._erase, principal)
        self._known = {k: v for k, v in self._known.items() if principal not in (None, k[0])}
        self._forms = {k: v for k, v in self._forms.items() if principal not in (None, k[0])}
        self._learned = {k: v for k, v in self._learned.items() if principal not in (None, k)}
        return Forgotten(
            servers=counts["catalogues"],
            forms=counts["forms"],
            learned=counts["learned"],
            traces=counts["traces"],
            unreadable_files=counts["unreadable"],
        )

    def _erase(self, principal: PrincipalId | None) -> dict[str, int]:
        where, values = ("", ()) if principal is None else ("WHERE principal = ?", (principal,))
        with self._guard:
            self._apply_queue()  # what was said before must not be written after
            with self._connection as connection:
                erased = {
                    table: connection.execute(f"DELETE FROM {table} {where}", values).rowcount  # noqa: S608 our own names
                    for table in _LEARNED
                }
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the log still had it
        unreadable = all_moved_aside(self._path)
        for file in unreadable:
            file.unlink(missing_ok=True)
        return {**erased, "unreadable": len(unreadable)}

    # ------------------------------------------------------------ writing

    def _write(self, statement: str, *values: object) -> None:
        self._queue.append((statement, values))
        if len(self._queue) > MAX_QUEUED:
            self._apply()  # the writer cannot keep up: wait for the disk rather than lose anything
            self._bound_queue()
        elif not self._wake.is_set():
            self._wake.set()

    async def run(self) -> None:
        """Write what is said until `close` was called; `open_store` writes the rest."""
        while not self._closing:
            await self._wake.wait()
            self._wake = anyio.Event()
            await self.flush()

    async def flush(self) -> None:
        """Return once everything said so far is in the file, or could not be written."""
        await anyio.to_thread.run_sync(self._apply)

    def close(self) -> None:
        self._closing = True
        self._wake.set()

    def _apply(self) -> None:
        with self._guard:
            try:
                self._apply_queue()
            except sqlite3.OperationalError as exc:
                self.failed_writes += 1
                _log.error("the state cannot be written now (%s); it is right in memory and is tried again", exc)

    def _apply_queue(self) -> None:
        """Write all that waits in one transaction; if that fails it waits on."""
        taken: list[_Statement] = []
        try:
            with self._connection:
                while self._queue:
                    taken.append(self._queue.popleft())
                    self._execute(*taken[-1])
        except sqlite3.OperationalError:
            self._queue.extendleft(reversed(taken))
            raise

    def _execute(self, statement: str, values: tuple[object, ...]) -> None:
        try:
            self._connection.execute(statement, values)
        except sqlite3.OperationalError as exc:
            if may_pass(exc):
                raise
            self.failed_writes += 1
            _log.exception("a change cannot be written; it is right in memory and will be learned again")

    def _bound_queue(self) -> None:
        """Drop the oldest half of what could not be written for so long."""
        if len(self._queue) > MAX_QUEUED:
            _log.error("the state cannot be written; %d changes are lost", len(self._queue) - MAX_QUEUED // 2)
        while len(self._queue) > MAX_QUEUED // 2:
            self._queue.popleft()

    def _query(self, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        with self._guard:
            return self._connection.execute(query, values).fetchall()

    # ------------------------------------------------------------ reading it all, once

    def _load(self) -> None:
        catalogues = "principal, key, catalogue, start_s, cpu_s, memory_bytes"
        self._load_table("catalogues", catalogues, self._load_catalogue)
        self._load_table("forms", "principal, key, form, choice", self._load_form)
        clients = "id, session, principal, server, protocol_version, client_params, seen_wall_s"
        self._load_table("clients", clients, self._load_client)
        self._load_table("held_state", "session, server, principal, seen_wall_s", self._load_held)
        self._learned.update(self._connection.execute("SELECT principal, data FROM learned").fetchall())

    def _load_table(self, table: str, columns: str, take: Callable[..., None]) -> None:
        """Take each row; one that is damaged is dropped, since it can be learned again."""
        for number, *row in self._connection.execute(f"SELECT rowid, {columns} FROM {table}").fetchall():  # noqa: S608 our own names
            try:
                take(*row)
            except (ValueError, TypeError, KeyError, AttributeError) as exc:
                _log.warning("a row of %s in the state is damaged and is dropped: %r", table, exc)
                self._write(f"DELETE FROM {table} WHERE rowid = ?", number)  # noqa: S608 our own names

    def _load_catalogue(
        self, principal: str, key: str, text: str, start_s: float | None, cpu_s: float, memory_bytes: int
    ) -> None:
        estimate = None if start_s is None else Estimate(start_s=start_s, cpu_s=cpu_s, memory_bytes=memory_bytes)
        self._known[principal, key] = Known(catalogue=_catalogue(text), estimate=estimate)

    def _load_form(self, principal: str, key: str, form: str, text: str) -> None:
        choice = cast("dict[str, Any]", json.loads(text))
        self._forms[principal, key] = FormChoice(
            form=PrepareForm(form), reason=choice["reason"], details=choice["details"]
        )

    def _load_client(self, *row: Any) -> None:
        self._clients[row[0]] = _client(row)

    def _load_held(self, session: SessionId, server: ResourceId, principal: PrincipalId, seen_wall_s: float) -> None:
        self._held.setdefault(session, {})[server] = _Held(principal, seen_wall_s)


@asynccontextmanager
async def open_store(folder: Path, clock: Clock) -> AsyncGenerator[Store]:
    """Open (or begin) the state in `folder`; on leaving, everything said is in the file.

    Raises:
        ConfigError: The folder or the file cannot be used, or the file is from a newer version.
    """
    store = await anyio.to_thread.run_sync(open_database, folder, clock, partial(Store, clock=clock))
    try:
        async with open_tasks() as tasks:
            tasks.start_soon(store.run, name="store")
            try:
                yield store
            finally:
                store.close()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(_close, store)


def _close(store: Store) -> None:
    store._apply()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  same module
    with closing(store._connection) as connection:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  same module
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.OperationalError as exc:  # the disk is full: the next start does it
            _log.error("the state's write-ahead log stays beside it: %s", exc)


def newest_traces(session: SessionId | None) -> tuple[str, tuple[object, ...]]:
    """Return the query of traces, newest first, and its values, to which a limit is added.

    Of a session the newest is the one that was kept last; of all it is the one whose newest
    step ended last, for what was open when the service stopped was kept in no order.
    """
    if session is None:
        return "SELECT trace FROM traces ORDER BY ended_wall_s DESC, number DESC LIMIT ?", ()
    return "SELECT trace FROM traces WHERE session = ? ORDER BY number DESC LIMIT ?", (session,)


def nothing_known(principal: PrincipalId) -> HeadstartError:
    """Refuse to forget a principal of which nothing is known: its name is likely to be a slip."""
    return HeadstartError(
        f"nothing is known of a principal {principal!r}; nothing was erased",
        hint="look for a slip in its name; without one, everybody's is erased",
    )


def _catalogue(text: str) -> Catalogue:
    fields = cast("dict[str, Any]", json.loads(text))
    for name in ("tools", "resources", "resource_templates", "prompts"):
        fields[name] = tuple(fields[name])
    return Catalogue(**fields)


def _client(row: tuple[Any, ...]) -> RememberedClient:
    client_id, session, principal, server, version, params, seen = row
    return RememberedClient(
        id=client_id,
        session=session,
        principal=principal,
        server=server,
        protocol_version=version,
        client_params=json.loads(params),
        seen_wall_s=seen,
    )
