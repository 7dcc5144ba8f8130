"""What `headstart init` mounts is what a server needs, in a real sandbox."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from .clients import RawClient
from .running import SERVERS, Place, headstart, service


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_database_among_the_arguments_can_be_written_and_keeps_what_was(
    mappable_path: Path, local_backend_trouble: str, journal: str, relative: bool
) -> None:
    if local_backend_trouble:
        pytest.skip(f"the local backend cannot run here: {local_backend_trouble}")
    if mappable_path.is_relative_to("/dev/shm"):
        pytest.skip("/var/tmp cannot be id-mapped, and nothing of /dev/shm is mounted: it is each sandbox's own")
    place = Place(folder=mappable_path / "project")
    data = place.folder / "data"
    data.mkdir(parents=True)
    database = data / "notes.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE notes (text)")
    arguments = [str(SERVERS / "database.py"), journal, "--db-path", "data/notes.db" if relative else str(database)]
    place.configure({"notes": {"command": sys.executable, "args": arguments}})
    place.config.unlink()
    done = headstart("init", "--from", "mcp.json", "--state-dir", str(place.state), cwd=place.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(data) in place.config.read_text(encoding="utf-8")
    with service(place) as running, RawClient(f"{running.url}/s/one/mcp") as client:
        client.initialize()
        assert client.call("notes__add") == ("1", False)
        assert client.call("notes__add") == ("2", False)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM notes").fetchone() == (2,)
