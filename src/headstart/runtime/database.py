"""The file of the state: opened, brought to this version's schema, moved aside if it cannot be read.

A file that SQLite cannot read is moved aside, said so once, and a new one is begun: it
holds nothing that cannot be learned again. One that cannot be opened *now* (its disk is full,
somebody else holds it locked) stays where it is, and the service does not begin.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar, cast

from headstart.clock import Clock
from headstart.errors import ConfigError
from headstart.runtime.state_files import unusable

__all__ = ["FILE_NAME", "all_moved_aside", "may_pass", "open_database"]

SCHEMA_VERSION = 2
FILE_NAME = "state.sqlite"

_SCHEMA = """
CREATE TABLE catalogues (principal TEXT, key TEXT, server TEXT NOT NULL, catalogue TEXT NOT NULL,
    start_s REAL, cpu_s REAL, memory_bytes INTEGER, learned_wall_s REAL NOT NULL, PRIMARY KEY (principal, key));
CREATE TABLE forms (principal TEXT, key TEXT, form TEXT NOT NULL, choice TEXT NOT NULL, PRIMARY KEY (principal, key));
CREATE TABLE clients (id TEXT PRIMARY KEY, session TEXT NOT NULL, principal TEXT NOT NULL, server TEXT,
    protocol_version TEXT NOT NULL, client_params TEXT NOT NULL, seen_wall_s REAL NOT NULL);
CREATE TABLE held_state (session TEXT, server TEXT, principal TEXT NOT NULL, PRIMARY KEY (session, server));
CREATE TABLE learned (principal TEXT PRIMARY KEY, data TEXT NOT NULL);
CREATE TABLE traces (number INTEGER PRIMARY KEY, session TEXT NOT NULL, principal TEXT NOT NULL,
    ended_wall_s REAL NOT NULL, trace TEXT NOT NULL);
CREATE INDEX traces_by_session ON traces (session);
"""
_UNREADABLE = ".unreadable-"

_PASSING = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_NOMEM,
    }
)
"""What may be over at the next try; anything else is the statement's own fault."""

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class _Reader(Protocol[_T_co]):
    def __call__(self, connection: sqlite3.Connection, path: Path, *, moved_aside: Path | None) -> _T_co: ...


def open_database(folder: Path, clock: Clock, read: _Reader[_T]) -> _T:
    """Open (or begin) the database in `folder`, and return what `read` makes of it.

    A database that `read` finds to be none is moved aside, and `read` gets a new one, and where the old one has gone.

    Raises:
        ConfigError: The folder or the file cannot be used, or the file is from a newer version.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        return _open_file(folder / FILE_NAME, clock, read)
    except OSError as exc:
        raise unusable(folder, exc) from exc


def _open_file(path: Path, clock: Clock, read: _Reader[_T]) -> _T:
    try:
        return _connected(path, read, moved_aside=None)
    except sqlite3.DatabaseError as exc:
        if may_pass(exc):
            hint = "is its disk full or read-only, or does another program hold it open?"
            raise ConfigError(f"cannot be opened: {exc}", where=str(path), hint=hint) from exc
        aside = _move_aside(path, clock)
        _log.error(
            "%s cannot be read (%s); it was moved to %s and a new one is begun. "
            "hint: servers are learned again at their next use; nothing needs to be done",
            path,
            exc,
            aside,
        )
        return _connected(path, read, moved_aside=aside)


def may_pass(exc: sqlite3.Error) -> bool:
    """Whether the cause may be over at the next try; what Python's module finds wrong by itself has no code."""
    primary_code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    return primary_code in _PASSING


def all_moved_aside(path: Path) -> list[Path]:
    """Return what was moved aside from this path so far."""
    return list(path.parent.glob(f"{path.name}{_UNREADABLE}*"))


def _connected(path: Path, read: _Reader[_T], *, moved_aside: Path | None) -> _T:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(handle, 0o600)
    finally:
        os.close(handle)
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level="DEFERRED", timeout=10)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")  # what is forgotten is overwritten, not only unlinked
        _migrate(connection, path)
        return read(connection, path, moved_aside=moved_aside)
    except BaseException:
        connection.close()
        raise


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    version = cast("int", connection.execute("PRAGMA user_version").fetchone()[0])
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"was written by a newer headstart (schema {version}, this one knows {SCHEMA_VERSION})",
            where=str(path),
            hint="use that version, or move the file away",
        )
    for step in _MIGRATIONS[version:]:
        step(connection)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.commit()


def _begin(connection: sqlite3.Connection) -> None:
    connection.executescript(_SCHEMA)


def _date_held_state(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE held_state ADD COLUMN seen_wall_s REAL NOT NULL DEFAULT 0")
    connection.execute("UPDATE held_state SET seen_wall_s = CAST(strftime('%s', 'now') AS REAL)")


_MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (_begin, _date_held_state)
"""What brings schema n to n + 1, in order."""


def _move_aside(path: Path, clock: Clock) -> Path:
    aside = path.with_name(f"{path.name}{_UNREADABLE}{int(clock.wall_s())}")
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return aside
