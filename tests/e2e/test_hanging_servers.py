"""Servers that never answer keep nobody else waiting, even where only one may start at a time."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path

import anyio
import pytest

from .clients import RawClient, said, tools
from .running import Place, Running, scripted, service, wait_until

pytestmark = pytest.mark.anyio

START_TIMEOUT_S = 60
LEARN_TIMEOUT_S = 12
"""Longer than a hanging start holds its slot (5 s), shorter than it may take."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hanging")


@pytest.fixture(scope="module")
def running(folder: Path) -> Generator[Running]:
    """A service of one start slot, whose first server never answers and whose second one stops answering."""
    place = Place(folder=folder).configure(
        {
            "mute": scripted("silent", start_timeout_s=START_TIMEOUT_S),
            "later": scripted("silent", args=(f"once={folder / 'silent'}",), start_timeout_s=START_TIMEOUT_S),
            "good": scripted("good"),
        },
        f'[service]\nbackend = "process"\nlearn_timeout_s = {LEARN_TIMEOUT_S}\n'
        '[pool]\nmode = "on-demand"\nzygotes = false\nstarts_at_once = 1\n',
    )
    with service(place) as started:
        yield started


def test_the_first_list_has_the_servers_that_were_to_be_learned_after_one_that_hangs(running: Running) -> None:
    with RawClient(f"{running.url}/mcp") as client:
        client.initialize()
        names = {tool["name"] for tool in client.request("tools/list")["result"]["tools"]}
    assert {"good__act", "later__act"} <= names
    assert not any(name.startswith("mute__") for name in names)


def test_what_hung_once_is_not_waited_for_by_the_next_session_anew(running: Running) -> None:
    began_s = time.monotonic()
    with RawClient(f"{running.url}/mcp") as client:
        client.initialize()
        names = {tool["name"] for tool in client.request("tools/list")["result"]["tools"]}
    assert "good__act" in names
    assert time.monotonic() - began_s < LEARN_TIMEOUT_S / 2


async def test_a_call_is_served_while_the_start_before_it_hangs(running: Running, folder: Path) -> None:
    (folder / "silent").touch()
    async with tools(f"{running.url}/s/hangs/mcp") as client, anyio.create_task_group() as calls:
        calls.start_soon(client.call_tool, "later__act")
        with anyio.fail_after(20):
            await anyio.to_thread.run_sync(wait_until, lambda: running.status()["pool"]["starting"] == 1)
            assert said(await client.call_tool("good__act", {})) == "done"
        assert running.status()["pool"]["starting"] == 1, "the other one still hangs"
        calls.cancel_scope.cancel()
