"""What outlives a run."""

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from headstart.clock import ManualClock
from headstart.core.events import PrepareForm
from headstart.errors import ConfigError
from headstart.ids import LOCAL_PRINCIPAL, PrincipalId, ResourceId, SessionId
from headstart.runtime.contract import Catalogue, RememberedClient, SessionMemory
from headstart.runtime.database import FILE_NAME
from headstart.runtime.store import TRACES_KEPT, Estimate, FormChoice, Known, Store, open_store

pytestmark = pytest.mark.anyio

CLOCK = ManualClock()
OTHER = PrincipalId("key_other")
SESSION = SessionId("ses")
NOTES = ResourceId("notes")
KNOWN = Known(
    catalogue=Catalogue(
        server=NOTES,
        digest="d",
        initialize={"protocolVersion": "2025-11-25", "x": [1.0, None, "é"]},
        tools=({"name": "b", "z": 1, "a": 2}, {"name": "a"}),
    ),
    estimate=Estimate(start_s=0.5, cpu_s=0.25, memory_bytes=10_000),
)


def mentions(folder: Path, word: bytes) -> bool:
    return any(word in path.read_bytes() for path in folder.iterdir())


def client(name: str = "mcp_1", *, seen_wall_s: float = 100.0) -> RememberedClient:
    return RememberedClient(
        id=name,
        session=SESSION,
        principal=LOCAL_PRINCIPAL,
        server=None,
        protocol_version="2025-11-25",
        client_params={"clientInfo": {"name": "c"}},
        seen_wall_s=seen_wall_s,
    )


async def test_everything_said_is_there_after_a_restart(tmp_path: Path) -> None:
    choice = FormChoice(form=PrepareForm.ZYGOTE, reason="forks", details={"modules": ["os"]})
    async with open_store(tmp_path, CLOCK) as store:
        store.learn(LOCAL_PRINCIPAL, "key", KNOWN)
        store.choose_form(LOCAL_PRINCIPAL, "key", choice)
        store.save(client())
        store.hold(SESSION, NOTES, LOCAL_PRINCIPAL)
        store.save_learned(LOCAL_PRINCIPAL, "{}")
    async with open_store(tmp_path, CLOCK) as store:
        assert store.known(LOCAL_PRINCIPAL, "key") == KNOWN
        assert [*store.known(LOCAL_PRINCIPAL, "key").catalogue.tools[0]] == ["name", "z", "a"]  # pyright: ignore[reportOptionalMemberAccess]
        assert store.form(LOCAL_PRINCIPAL, "key") == choice
        assert store.load("mcp_1") == client()
        assert store.held(SESSION) == (NOTES,)
        assert store.learned(LOCAL_PRINCIPAL) == "{}"


async def test_what_is_known_of_one_principal_is_not_known_of_another(tmp_path: Path) -> None:
    async with open_store(tmp_path, CLOCK) as store:
        store.learn(LOCAL_PRINCIPAL, "key", KNOWN)
        assert store.known(OTHER, "key") is None


async def test_files_can_be_read_by_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    async with open_store(folder, CLOCK) as store:
        store.save(client())
        await store.flush()
        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert set(modes.values()) == {0o600}
    assert FILE_NAME in modes


async def test_clients_that_were_not_seen_for_long_are_forgotten(tmp_path: Path) -> None:
    async with open_store(tmp_path, CLOCK) as store:
        memory: SessionMemory = store
        memory.save(client("old", seen_wall_s=1.0))
        memory.save(client("new", seen_wall_s=3.0))
        memory.forget_unseen(2.0)
        assert (memory.load("old"), memory.load("new")) == (None, client("new", seen_wall_s=3.0))
        memory.forget("new")
        memory.forget("new")
    async with open_store(tmp_path, CLOCK) as store:
        assert (store.load("old"), store.load("new")) == (None, None)


async def test_state_is_released_by_server_or_by_session(tmp_path: Path) -> None:
    other = ResourceId("other")
    async with open_store(tmp_path, CLOCK) as store:
        store.hold(SESSION, NOTES, LOCAL_PRINCIPAL)
        store.hold(SESSION, other, LOCAL_PRINCIPAL)
        store.release(SESSION, NOTES)
        assert store.held(SESSION) == (other,)
        store.release(SESSION)
    async with open_store(tmp_path, CLOCK) as store:
        assert store.held(SESSION) == ()


async def test_forgetting_erases_a_principal_and_nobody_else(tmp_path: Path) -> None:
    async with open_store(tmp_path, CLOCK) as store:
        for principal in (LOCAL_PRINCIPAL, OTHER):
            store.learn(principal, "key", KNOWN)
            store.save_learned(principal, "{}")
            store.save_trace(SESSION, principal, f'"{principal}"', newest_wall_s=1.0)
        erased = await store.forget_principal(LOCAL_PRINCIPAL)
        assert (erased.servers, erased.learned, erased.traces) == (1, 1, 1)
        assert store.known(LOCAL_PRINCIPAL, "key") is None
    async with open_store(tmp_path, CLOCK) as store:
        assert store.known(LOCAL_PRINCIPAL, "key") is None
        assert store.known(OTHER, "key") == KNOWN
        assert await store.traces(limit=10) == ['"key_other"']


async def test_forgetting_erases_the_bytes_too(tmp_path: Path) -> None:
    async with open_store(tmp_path, CLOCK) as store:
        store.save_learned(LOCAL_PRINCIPAL, '{"secret": "hunter2"}')
        await store.flush()
        assert mentions(tmp_path, b"hunter2")
        await store.forget_principal(None)
        assert not mentions(tmp_path, b"hunter2")


async def test_only_the_newest_traces_are_kept(tmp_path: Path) -> None:
    async with open_store(tmp_path, CLOCK) as store:
        for number in range(TRACES_KEPT + 10):
            store.save_trace(SessionId(f"ses-{number}"), LOCAL_PRINCIPAL, str(number), newest_wall_s=number)
        kept = await store.traces(limit=TRACES_KEPT * 2)
        assert (len(kept), kept[0]) == (TRACES_KEPT, str(TRACES_KEPT + 9))
        assert await store.traces(SessionId("ses-50")) == ["50"]
        assert await store.traces(SessionId("ses-1")) == []


async def test_a_file_that_cannot_be_read_is_moved_aside_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"this is no database, but it was somebody's" * 100)
    with caplog.at_level(logging.ERROR):
        async with open_store(tmp_path, CLOCK) as store:
            store.save(client())
            aside = store.moved_aside
    assert aside is not None
    assert aside.read_bytes().startswith(b"this is no database")
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert str(aside) in caplog.text
    assert "hint: " in caplog.text
    async with open_store(tmp_path, CLOCK) as store:
        assert store.load("mcp_1") == client()
        assert store.moved_aside is None


async def test_a_file_that_cannot_be_opened_now_stays_where_it_is(tmp_path: Path) -> None:
    async with open_store(tmp_path, CLOCK) as store:
        store.save(client())
    (tmp_path / f"{FILE_NAME}-wal").mkdir()  # in the way of SQLite's own
    with pytest.raises(ConfigError, match=r"state\.sqlite: cannot be opened: ") as caught:
        async with open_store(tmp_path, CLOCK):
            pass
    assert caught.value.hint is not None
    (tmp_path / f"{FILE_NAME}-wal").rmdir()
    async with open_store(tmp_path, CLOCK) as store:
        assert store.load("mcp_1") == client()


async def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    async with open_store(tmp_path, CLOCK):
        pass
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ConfigError, match=r"written by a newer headstart \(schema 99, this one knows 2\)") as caught:
        async with open_store(tmp_path, CLOCK):
            pass
    assert caught.value.hint == "use that version, or move the file away"


async def test_more_changes_than_the_queue_holds_are_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headstart.runtime.store.MAX_QUEUED", 10)
    async with open_store(tmp_path, CLOCK) as store:
        for number in range(100):
            store.save(client(f"mcp_{number}"))
    async with open_store(tmp_path, CLOCK) as store:
        assert all(store.load(f"mcp_{number}") is not None for number in range(100))


async def test_a_write_that_fails_is_counted_and_what_was_said_stays_true_in_memory(tmp_path: Path) -> None:
    async with open_store(tmp_path, CLOCK) as store:
        with closing(sqlite3.connect(tmp_path / FILE_NAME)) as other:
            other.execute("DROP TABLE clients")
        store.save(client("mcp_1"))
        await store.flush()
        assert store.failed_writes == 1
        assert store.load("mcp_1") is not None


async def test_what_cannot_be_written_now_is_written_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with open_store(tmp_path, CLOCK) as store:
        store._connection.execute("PRAGMA query_only = ON")  # pyright: ignore[reportPrivateUsage]  a disk that refuses
        store.save(client("mcp_1"))
        store.save(client("mcp_2"))
        await store.flush()
        assert store.failed_writes >= 1
        store._connection.execute("PRAGMA query_only = OFF")  # pyright: ignore[reportPrivateUsage]  it is over
    assert "is tried again" in caplog.text
    async with open_store(tmp_path, CLOCK) as store:
        assert store.load("mcp_1") == client("mcp_1")
        assert store.load("mcp_2") == client("mcp_2")


async def test_what_can_never_be_written_does_not_grow_without_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("headstart.runtime.store.MAX_QUEUED", 10)
    async with open_store(tmp_path, CLOCK) as store:
        store._connection.execute("PRAGMA query_only = ON")  # pyright: ignore[reportPrivateUsage]  a disk that refuses
        for number in range(30):
            store.save(client(f"mcp_{number}"))
        assert len(store._queue) <= 10  # pyright: ignore[reportPrivateUsage]  what is bounded
    assert "changes are lost" in caplog.text


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE catalogues SET catalogue = '{'",
        "UPDATE catalogues SET catalogue = '[]'",
        "UPDATE forms SET form = 'liquid'",
        "UPDATE forms SET choice = '{}'",
        "UPDATE clients SET client_params = 'x'",
    ],
)
async def test_a_damaged_row_is_dropped_and_the_rest_is_kept(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(tmp_path, CLOCK) as store:
        store.learn(LOCAL_PRINCIPAL, "k", KNOWN)
        store.choose_form(LOCAL_PRINCIPAL, "k", FormChoice(form=PrepareForm.COLD, reason="r"))
        store.save(client())
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as other, other:
        other.execute(damage)
    async with open_store(tmp_path, CLOCK) as store:
        kept = [store.known(LOCAL_PRINCIPAL, "k"), store.form(LOCAL_PRINCIPAL, "k"), store.load("mcp_1")]
    assert len([one for one in kept if one is None]) == 1
    assert "is damaged and is dropped" in caplog.text
    caplog.clear()
    async with open_store(tmp_path, CLOCK):
        assert caplog.text == ""


async def test_state_of_sessions_that_never_come_back_is_forgotten(tmp_path: Path) -> None:
    clock, other = ManualClock(), SessionId("other")
    async with open_store(tmp_path, clock) as store:
        store.hold(SESSION, NOTES, LOCAL_PRINCIPAL)
        store.hold(other, NOTES, LOCAL_PRINCIPAL)
        began_wall_s = clock.wall_s()
        clock.advance(100.0)
        store.still_held(other, NOTES)
        store.still_held(other, ResourceId("never held"))
    async with open_store(tmp_path, clock) as store:
        store.forget_unseen(began_wall_s + 50.0)
        assert (store.held(SESSION), store.held(other)) == ((), (NOTES,))


async def test_state_held_by_an_older_version_is_taken_over(tmp_path: Path) -> None:
    async with open_store(tmp_path, CLOCK):
        pass
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as old, old:
        old.execute("ALTER TABLE held_state DROP COLUMN seen_wall_s")
        old.execute("INSERT INTO held_state VALUES ('ses', 'notes', 'local')")
        old.execute("PRAGMA user_version = 1")
    async with open_store(tmp_path, CLOCK) as store:
        assert store.held(SESSION) == (NOTES,)


def test_the_store_is_a_session_memory() -> None:
    assert {"save", "load", "forget", "forget_unseen"} <= set(dir(Store))
