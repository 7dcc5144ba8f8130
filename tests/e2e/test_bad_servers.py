"""A server that fails is told by name, with what happened and the cure; the others of the session go on."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from .clients import ERAS, RawClient, said, tools
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


async def test_a_server_that_logs_on_stdout_works_and_the_operator_is_told_once(running: Running) -> None:
    for session in ("junk-1", "junk-2"):
        async with tools(f"{running.url}/s/{session}/mcp") as client:
            assert said(await client.call_tool("junk__act", {})) == "done"
    wait_until(lambda: bool(warnings_of(running, "junk")), what="the service's log is written")
    (warned,) = warnings_of(running, "junk")
    assert "it prints on stdout what is no MCP message" in warned
    assert "'[info] a line of log where only messages belong'" in warned
    assert "hint: have it log to stderr" in warned
    assert warnings_of(running, "good") == []


@pytest.mark.parametrize("era", ERAS)
async def test_an_answer_of_fifty_megabytes_arrives_whole(running: Running, era: str) -> None:
    async with tools(f"{running.url}/s/large-{era}/mcp", era=era) as client:
        result = await client.call_tool("large__act", {})
        assert not result.is_error
        assert len(said(result)) == BIG_MB * 1024 * 1024
        assert said(await client.call_tool("good__act", {})) == "done"
        assert said(await client.call_tool("large__echo", {"text": "still here"})).startswith("still here")


def test_a_server_that_ignores_eof_and_sigterm_is_ended_and_the_operator_is_told_once(running: Running) -> None:
    def stubborn() -> list[str]:
        return [command for command in running.processes().values() if "scripted.py stubborn" in command]

    with RawClient(f"{running.url}/mcp") as client:
        client.initialize()
        assert client.call("stubborn__act") == ("done", False)
        assert stubborn()
        client.http.delete(client.url, headers=client.headers)
    wait_until(lambda: not stubborn(), what="the stubborn server is gone")
    wait_until(lambda: bool(warnings_of(running, "stubborn")), what="the service's log is written")
    (warned,) = warnings_of(running, "stubborn")
    assert "it did not end soon after its stdin was closed, and not at SIGTERM either: it was killed. hint: " in warned


def warnings_of(running: Running, server: str) -> list[str]:
    return [
        line for line in running.log().splitlines() if line.startswith(f"WARNING headstart.runtime.habits: {server}:")
    ]
