"""What `headstart init` mounts is what a server needs, in a real sandbox."""

from __future__ import annotations

import json
import shutil
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


def test_a_server_that_lies_in_a_home_sees_its_modules_and_no_keys(
    mappable_path: Path, local_backend_trouble: str
) -> None:
    if local_backend_trouble:
        pytest.skip(f"the local backend cannot run here: {local_backend_trouble}")
    if mappable_path.is_relative_to("/dev/shm"):
        pytest.skip("/var/tmp cannot be id-mapped, and nothing of /dev/shm is mounted: it is each sandbox's own")
    home = mappable_path / "home"
    place = Place(folder=mappable_path / "project")
    (home / ".ssh").mkdir(parents=True)
    for name, text in {
        "beside.py": "SAID = 'here'",
        ".ssh/id": "a key",
        ".netrc": "a password",
        "diary": "dear",
    }.items():
        (home / name).write_text(text)
    shutil.copy(SERVERS / "looking.py", home / "server.py")
    launch = {"command": sys.executable, "args": ["-B", "server.py"], "cwd": str(home)}
    place.configure({"looking": launch})
    place.config.unlink()
    done = headstart("init", "--from", "mcp.json", "--state-dir", str(place.state), cwd=place.folder, HOME=str(home))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a sandbox sees only the code beside that: move it to a folder of its own" in done.stderr
    with service(place, HOME=str(home)) as running, RawClient(f"{running.url}/s/one/mcp") as client:
        client.initialize()
        said, failed = client.call("looking__look")
    assert not failed
    assert json.loads(said) == [["beside.py", "server.py"], "here"]
