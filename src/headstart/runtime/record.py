"""What a service that has stopped left behind: read, or forgotten, without one.

What one that was killed had open is told from its journal. For reading, the state file is
only looked at: nothing is migrated, moved or written. A service that starts meanwhile is not
disturbed, and SQLite keeps the two apart. Whoever forgets must hold the state directory.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import anyio.to_thread

from headstart.clock import Clock
from headstart.errors import HeadstartError
from headstart.ids import PrincipalId, SessionId
from headstart.runtime.database import FILE_NAME
from headstart.runtime.journal import erase_parts
from headstart.runtime.recovery import cut_off
from headstart.runtime.state_files import unusable
from headstart.runtime.store import Forgotten, newest_traces, nothing_known, open_store
from headstart.runtime.trace_record import Trace, decode_trace
from headstart.runtime.traces import LAST

__all__ = ["forget", "read_trace"]


def read_trace(state_dir: Path, session: str) -> Trace | None:
    """Return a session's trace (`last`: the newest), None if there is none.

    Raises:
        HeadstartError: The state file cannot be read; the message says why.
    """
    path = state_dir / FILE_NAME
    if not path.exists():
        return None
    found = [trace for trace in cut_off(state_dir / "journal") if session in (LAST, trace.session)]
    if not found or session == LAST:
        found += _kept(path, None if session == LAST else SessionId(session))
    return max(found, key=lambda trace: trace.newest_wall_s, default=None)


def _kept(path: Path, session: SessionId | None) -> list[Trace]:
    query, values = newest_traces(session)
    try:
        path.open("rb").close()  # what is in the way is told better by the system than by SQLite
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=10)) as connection:
            rows = connection.execute(query, (*values, 1)).fetchall()
        return [decode_trace(str(row[0])) for row in rows]
    except OSError as exc:
        raise unusable(path, exc) from exc
    except (sqlite3.Error, ValueError, KeyError) as exc:
        hint = "is it of this version, and its folder writable? headstart serve moves aside what is damaged"
        raise HeadstartError(f"{path} cannot be read: {exc}", hint=hint) from exc


async def forget(state_dir: Path, principal: PrincipalId | None, clock: Clock) -> Forgotten:
    """Erase what `Service.forget` would. If cancelled, some of it may be left.

    Raises:
        ConfigError: The state cannot be used.
        HeadstartError: Nothing is known of that principal, and so nothing was erased.
    """
    async with open_store(state_dir, clock) as store:
        if principal is not None and not await store.knows(principal):
            raise nothing_known(principal)
        erased = await store.forget_principal(principal)
    return replace(erased, journals=await anyio.to_thread.run_sync(erase_parts, state_dir / "journal"))
