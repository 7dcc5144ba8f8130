"""How a service begins and ends: nothing is left of it, and its clients go on after a restart."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing

import anyio
import pytest
from mcp import Client, StdioServerParameters, stdio_client
from tests.left_behind import in_line_s, keepers, noted_namespaces

from headstart.backends.local.guest.places import find_places
from headstart.backends.spawner.guest.processes import children, descendants
from headstart.bench.demo.meter import command_of

from .clients import RawClient, said, tools
from .running import Place, alive, headstart, scripted, service, wait_until

pytestmark = pytest.mark.anyio

NOTHING_LEFT = "stopped; left: 0 processes, 0 mounts, 0 cgroups\n"
STREAMS_WERE_CUT = "timeout graceful shutdown exceeded"
"""What the HTTP server logs when it has waited for open streams in vain."""
GONE_WITHIN_S = 1.0
"""Without the time that the test itself stood in line for a CPU: others may want the machine, too."""


def configured(place: Place, isolation: str = "process", **servers: dict[str, object]) -> Place:
    return place.configure(servers or {"good": scripted("good")}, f'[service]\nbackend = "{isolation}"\n')


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


def test_stop_leaves_no_process_mount_or_control_group(place: Place, isolation: str) -> None:
    with service(configured(place, isolation)) as running, RawClient(f"{running.url}/s/one/mcp") as client:
        client.initialize()
        assert client.call("good__add", text="x") == ("1 notes", False)
        before = running.processes()
        assert any("scripted.py" in command for command in before.values())
        (spawner,) = children(running.process.pid)
        assert bool(groups_of(spawner)) == (isolation == "local" and bool(find_places()))
        with noted_namespaces(before) as namespaces:
            assert {"mnt", "pid"} <= kinds_of(namespaces) or isolation == "process"
            told = running.command("stop")
            assert (told.stdout, told.returncode) == (NOTHING_LEFT, 0), told.stderr
            assert (alive(before), groups_of(spawner), keepers(namespaces)) == ({}, [], [])
        assert told.stderr.startswith(f"stopping the service (pid {running.process.pid})")
        assert running.process.wait(5) == 0
    assert running.log().endswith("headstart: stopped\n")


def groups_of(spawner: int) -> list[str]:
    """Control groups of a spawner's run, wherever they were made."""
    return [folder for folder, _, _ in os.walk("/sys/fs/cgroup") if f"/headstart-run-{spawner}-" in folder]


def kinds_of(namespaces: frozenset[str]) -> set[str]:
    return {name.partition(":")[0] for name in namespaces}


async def test_a_stream_that_a_client_holds_open_does_not_hold_up_the_end(place: Place) -> None:
    with service(configured(place)) as running:
        async with tools(f"{running.url}/mcp", era="legacy") as client:
            await client.list_tools()
            wait_until(lambda: running.status()["runtime"]["sessions"] == 1)
            running.process.send_signal(signal.SIGTERM)
            assert await anyio.to_thread.run_sync(running.process.wait, 20) == 0
    assert STREAMS_WERE_CUT not in running.log()


def test_a_killed_service_takes_everything_along(place: Place, isolation: str) -> None:
    hanging = scripted("hangs", args=(f"log={place.folder / 'hangs.log'}",))
    configured(place, isolation, good=scripted("good"), hangs=hanging)
    with service(place) as running:
        with RawClient(f"{running.url}/s/one/mcp") as one, RawClient(f"{running.url}/s/two/mcp") as two:
            for client in (one, two):
                client.initialize()
                assert client.call("good__add", text="x") == ("1 notes", False)
            before = running.processes()
            assert sum("scripted.py good" in command for command in before.values()) >= 2
            with noted_namespaces(before) as namespaces:
                queued_s = in_line_s()
                os.kill(running.process.pid, signal.SIGKILL)
                took_s = wait_until(lambda: not alive(before), what="every process is gone")
                assert took_s - (in_line_s() - queued_s) < GONE_WITHIN_S
                assert keepers(namespaces) == []
        running.process.wait(5)


def test_a_service_whose_spawner_is_killed_ends_with_one_line_that_says_so(place: Place, isolation: str) -> None:
    with service(configured(place, isolation)) as running, RawClient(f"{running.url}/s/one/mcp") as client:
        client.initialize()
        assert client.call("good__add", text="x") == ("1 notes", False)
        before = running.processes()
        (spawner,) = children(running.process.pid)
        os.kill(spawner, signal.SIGKILL)
        assert running.process.wait(20) == 1
        wait_until(lambda: not alive(before), what="every process is gone")
    error, hint = running.log().splitlines()[-2:]
    assert error.startswith(f"error: the spawner (pid {spawner})")
    assert "was killed by SIGKILL" in error
    assert hint.startswith("hint: start headstart again")
    assert "Traceback" not in running.log()
    assert not (place.state / "service.json").exists()
    with service(place) as again, RawClient(f"{again.url}/s/two/mcp") as client:
        client.initialize()
        assert client.call("good__add", text="x") == ("1 notes", False)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
async def test_a_client_goes_on_after_a_restart_and_is_told_once_what_was_lost(
    place: Place, end: signal.Signals
) -> None:
    port = free_port()
    with anyio.fail_after(60):
        with service(configured(place), "--port", port) as running:
            client_context = tools(f"{running.url}/mcp", era="legacy")
            client = await client_context.__aenter__()
            assert said(await client.call_tool("good__add", {"text": "kept?"})) == "1 notes"
            running.process.send_signal(end)
            running.process.wait(20)
        with service(place, "--port", port) as again:
            assert again.status()["runtime"]["state_moved_aside"] is None
            assert [tool.name for tool in (await client.list_tools()).tools][:1] == ["good__echo"]
            lost = await client.call_tool("good__notes", {})
            assert lost.is_error
            assert "good" in said(lost)
            assert "state is gone" in said(lost)
            assert said(await client.call_tool("good__notes", {})) == ""
            assert said(await client.call_tool("good__add", {"text": "again"})) == "1 notes"
            await client_context.__aexit__(None, None, None)


def test_a_session_that_nobody_uses_ends_and_so_does_its_sandbox(place: Place) -> None:
    toml = '[service]\nbackend = "process"\nsession_idle_s = 0.5\n'
    with service(place.configure({"good": scripted("good")}, toml)) as running:
        with RawClient(f"{running.url}/mcp") as client:
            client.initialize()
            assert client.call("good__add", text="x") == ("1 notes", False)
            before = {pid: command for pid, command in running.processes().items() if "scripted.py" in command}
            assert before
            wait_until(lambda: running.status()["runtime"]["sessions"] == 0, within_s=30, what="the session has ended")
            wait_until(lambda: not alive(before), what="its sandbox is gone")
        ended = running.trace("last")["summary"]
        assert (ended["closed"], ended["calls"]) == (True, 1)


async def test_a_signal_right_after_the_announcement_is_an_orderly_end(place: Place) -> None:
    with service(configured(place)) as running:
        pass  # `service` sends SIGTERM at once and requires exit status 0
    assert not (place.state / "service.json").exists()
    assert running.log().endswith("headstart: stopped\n")


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT], ids=["terminated", "interrupted"])
def test_a_signal_while_the_service_is_still_opening_is_an_orderly_end(place: Place, end: signal.Signals) -> None:
    configured(place)
    place.state.mkdir(mode=0o700)
    state = sqlite3.connect(place.state / "state.sqlite", isolation_level=None)
    with closing(state) as held:
        held.execute("BEGIN EXCLUSIVE")  # opening waits for this, so the signal comes while it does
        command = [sys.executable, "-m", "headstart", "serve", "--config", str(place.config), "--port", "0"]
        opening = subprocess.Popen(
            [*command, "--state-dir", str(place.state)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        wait_until(lambda: bool(descendants(opening.pid)), within_s=30, what="the backend is open")
        below = {pid: command_of(pid) for pid in descendants(opening.pid)}
        opening.send_signal(end)
    _, told = opening.communicate(timeout=30)
    assert opening.returncode == 0, told
    assert told == "headstart: stopping\nheadstart: stopped\n"
    assert alive(below) == {}
    assert not (place.state / "service.json").exists()


def test_a_stopped_service_s_record_is_traced_as_the_service_itself_did(place: Place) -> None:
    with service(configured(place)) as running, RawClient(f"{running.url}/s/one/mcp") as client:
        client.initialize()
        assert client.call("good__add", text="x") == ("1 notes", False)
        client.http.delete(f"{running.url}/s/one/mcp")
        while_running = running.command("trace", "one")
        assert (while_running.returncode, while_running.stderr) == (0, "")
    stopped = headstart("trace", "last", "--state-dir", str(place.state))
    assert stopped.returncode == 0, stopped.stderr
    assert stopped.stdout == while_running.stdout
    (line,) = stopped.stderr.splitlines()
    assert line.startswith("no service is running: this is the record")
    unknown = headstart("trace", "two", "--state-dir", str(place.state))
    assert unknown.returncode == 1
    assert "no session 'two' is recorded" in unknown.stderr
    assert "hint: headstart trace last shows the newest" in unknown.stderr


def test_what_was_learned_is_forgotten_whether_or_not_the_service_runs(place: Place) -> None:
    with service(configured(place)) as running:
        with RawClient(f"{running.url}/s/one/mcp") as client:
            client.initialize()
            assert client.call("good__add", text="x") == ("1 notes", False)
            client.http.delete(f"{running.url}/s/one/mcp")
        assert running.command("trace", "one").returncode == 0  # so that it is in the record
        assert "1 traces" in running.command("forget").stdout
        none = running.command("trace")
        assert "no session has made a call yet" in none.stderr
        assert "hint: headstart env" in none.stderr
    forgotten = headstart("forget", "--state-dir", str(place.state))
    assert forgotten.returncode == 0, forgotten.stderr
    assert forgotten.stdout.startswith("forgotten: ")
    assert forgotten.stdout.endswith("1 journals\n"), "of what came after the first time"
    assert list((place.state / "journal").iterdir()) == []
    none = headstart("trace", "--state-dir", str(place.state))
    assert none.returncode == 1
    assert f"no session is recorded in {place.state}" in none.stderr
    assert "hint: start a service (headstart serve)" in none.stderr


async def test_mcp_over_stdio_starts_a_service_and_speaks(place: Place) -> None:
    configured(place)
    place.config.write_text(f"{place.config.read_text(encoding='utf-8')}port = {free_port()}\n", encoding="utf-8")
    shim = StdioServerParameters(
        command=sys.executable,
        args=["-m", "headstart", "mcp", "--config", str(place.config), "--state-dir", str(place.state)],
    )
    try:
        with anyio.fail_after(60):
            async with Client(stdio_client(shim)) as client:
                assert "good__add" in [tool.name for tool in (await client.list_tools()).tools]
                assert said(await client.call_tool("good__add", {"text": "over stdio"})) == "1 notes"
            async with Client(stdio_client(shim)) as client:  # finds the one that runs; its session is its own
                assert said(await client.call_tool("good__notes", {})) == ""
        log = place.state / "serve.log"
        assert log.read_text(encoding="utf-8").count("headstart: http") == 1
        assert log.stat().st_mode & 0o777 == 0o600
    finally:
        told = headstart("stop", "--state-dir", str(place.state))
    assert told.stdout == NOTHING_LEFT, told.stderr


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
async def test_a_client_over_stdio_goes_on_after_a_restart(place: Place, end: signal.Signals) -> None:
    port = free_port()
    shim = StdioServerParameters(
        command=sys.executable, args=["-m", "headstart", "mcp", "--state-dir", str(place.state)]
    )
    with anyio.fail_after(60):
        with service(configured(place), "--port", port) as running:
            client_context = Client(stdio_client(shim), mode="legacy")
            client = await client_context.__aenter__()
            assert said(await client.call_tool("good__add", {"text": "kept?"})) == "1 notes"
            running.process.send_signal(end)
            running.process.wait(20)
        with service(place, "--port", port):
            lost = await client.call_tool("good__notes", {})
            assert lost.is_error
            assert "state is gone" in said(lost)
            assert said(await client.call_tool("good__add", {"text": "again"})) == "1 notes"
            await client_context.__aexit__(None, None, None)


def test_env_gives_urls_that_work(place: Place, model: str) -> None:
    port = free_port()
    toml = f'[service]\nbackend = "process"\nport = {port}\n[upstreams]\ndefault = "{model}"\n'
    place.configure({"good": scripted("good")}, toml)
    told = headstart("env", "openai", "--session", "a-1", "--config", str(place.config))
    script = f'{told.stdout}\necho "$OPENAI_BASE_URL $MCP_URL"\n'
    done = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, timeout=20, check=True)
    model_url, mcp_url = done.stdout.split()
    with service(place, "--port", port) as running, RawClient(mcp_url) as client:
        client.initialize()
        assert client.call("good__add", text="x") == ("1 notes", False)
        assert client.http.get(f"{model_url}/models").json()["object"] == "list"
        assert running.trace("a-1")["session"] == "a-1"
    unknown = headstart("env", "emacs", "--config", str(place.config))
    assert unknown.returncode == 2
    assert "hint: known: openai" in unknown.stderr
