"""A server that fails is told by name, with what happened and the cure; the others of the session go on."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from .clients import RawClient, said, tools
from .running import Place, Running, scripted, service, wait_until

pytestmark = pytest.mark.anyio

START_TIMEOUT_S = 2
BIG_MB = 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bad")


@pytest.fixture(scope="module")
def running(folder: Path) -> Generator[Running]:
    """A service whose servers are well when they are looked at for the first time."""

    def later(behaviour: str, **options: object) -> dict[str, object]:
        return scripted(behaviour, args=(f"once={folder / behaviour}",), **options)

    place = Place(folder=folder).configure(
        {
            "good": scripted("good"),
            "silent": later("silent", start_timeout_s=START_TIMEOUT_S),
            "exits": later("exits"),
            "dies": scripted("dies"),
            "junk": scripted("junk"),
            "stubborn": scripted("stubborn"),
            "large": scripted("large", args=(f"mb={BIG_MB}",)),
            "broken": scripted("exits"),
        },
        '[service]\nbackend = "process"\n[pool]\nzygotes = false\n',
    )
    with service(place) as started:
        with RawClient(f"{started.url}/mcp") as client:
            client.initialize()
            names = {tool["name"] for tool in client.request("tools/list")["result"]["tools"]}
        assert {"good__act", "silent__act", "exits__act", "large__act"} <= names
        assert "broken__act" not in names
        yield started


async def test_a_server_that_never_answers_is_given_up_after_its_time(running: Running, folder: Path) -> None:
    (folder / "silent").touch()
    async with tools(f"{running.url}/s/silent/mcp") as client:
        result = await client.call_tool("silent__act", {})
        assert result.is_error
        assert f"silent: it did not answer its handshake within {START_TIMEOUT_S} s" in said(result)
        assert "loading a very large model" not in said(result)
        assert "start_timeout_s" in said(result)
        assert said(await client.call_tool("good__act", {})) == "done"


async def test_a_server_that_exits_at_once_is_told_and_its_last_words_to_the_operator(
    running: Running, folder: Path
) -> None:
    (folder / "exits").touch()
    async with tools(f"{running.url}/s/exits/mcp") as client:
        result = await client.call_tool("exits__act", {})
        assert result.is_error
        assert "exits: it exited with code 3 before its handshake was done" in said(result)
        assert "headstart status shows what the server wrote last" in said(result)
        assert "no API key" not in said(result)
        assert "no API key" in running.command("status").stdout
        assert "| no API key" in running.log()
        assert f"hint: run it by hand to see why: {sys.executable} with mcpServers.exits.args" in said(result)
        assert said(await client.call_tool("good__act", {})) == "done"


async def test_a_server_that_could_never_be_looked_at_is_named_and_its_calls_say_why(running: Running) -> None:
    async with tools(f"{running.url}/s/broken/mcp") as client:
        assert "# broken\nNot available" in (client.instructions or "")
        result = await client.call_tool("broken__act", {})
        assert result.is_error
        assert "broken: it exited with code 3 before its handshake was done" in said(result)
        assert "no API key" not in f"{said(result)} {client.instructions}"
        assert said(await client.call_tool("good__act", {})) == "done"


async def test_a_server_that_dies_in_a_call_is_told_and_started_again(running: Running) -> None:
    async with tools(f"{running.url}/s/dies/mcp") as client:
        assert said(await client.call_tool("dies__add", {"text": "x"})) == "1 notes"
        result = await client.call_tool("dies__act", {})
        assert result.is_error
        assert "dies: it exited with code 7 during the call" in said(result)
        assert "a bug in line 42" not in said(result)
        assert "a bug in line 42" in running.command("status").stdout
        assert "hint: call again: a fresh one starts, without what this one held" in said(result)
        assert said(await client.call_tool("good__act", {})) == "done"
        again = await client.call_tool("dies__notes", {})
        assert (again.is_error, said(again)) == (False, "")


async def test_a_server_that_logs_on_stdout_works(running: Running) -> None:
    async with tools(f"{running.url}/s/junk/mcp") as client:
        assert said(await client.call_tool("junk__act", {})) == "done"


async def test_an_answer_of_fifty_megabytes_arrives_whole_or_as_an_error_that_names_the_limit(running: Running) -> None:
    async with tools(f"{running.url}/s/large/mcp", era="legacy") as client:
        result = await client.call_tool("large__act", {})
        if result.is_error:
            assert "large" in said(result)
            assert "MB" in said(result)
            assert "hint:" in said(result)
        else:
            assert len(said(result)) == BIG_MB * 1024 * 1024
        assert said(await client.call_tool("good__act", {})) == "done"
        assert said(await client.call_tool("large__echo", {"text": "still here"})).startswith("still here")


def test_a_server_that_ignores_eof_and_sigterm_is_ended(running: Running) -> None:
    def stubborn() -> list[str]:
        return [command for command in running.processes().values() if "scripted.py stubborn" in command]

    with RawClient(f"{running.url}/mcp") as client:
        client.initialize()
        assert client.call("stubborn__act") == ("done", False)
        assert stubborn()
        client.http.delete(client.url, headers=client.headers)
    wait_until(lambda: not stubborn(), what="the stubborn server is gone")
