"""The built-in server `sandbox`: what a client can do in the sandbox that its session has."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import cast

import anyio
import httpx2
import pytest
from mcp.types import ToolAnnotations
from tests.machine import where_processes_may_be_traced

import headstart
from headstart.backends.contract import Capabilities, Processes
from headstart.backends.local import open_local_backend
from headstart.errors import SandboxUnknown
from headstart.sandbox.hosted import SandboxHost
from headstart.sandbox.tools import SandboxServer

from .clients import ERAS, RawClient, said, tools
from .running import Place, Running, alive, scripted, service, wait_until
from .running import headstart as command
from .talking import talking

pytestmark = pytest.mark.anyio

NAMES = [
    *("bash", "python", "read_file", "write_file", "edit_file", "list_files"),
    *("checkpoint", "rollback", "drop", "fork", "commit", "discard"),
]


@pytest.fixture
def durable(local_backend_trouble: str, tmp_path: Path) -> None:
    """Skip where sandboxes do not outlive the service."""
    if local_backend_trouble:
        pytest.skip(f"the local backend cannot run here: {local_backend_trouble}")

    async def is_durable() -> bool:
        async with open_local_backend(tmp_path / "backend") as backend:
            return backend.capabilities.durable

    if not anyio.run(is_durable):
        pytest.skip("no files can be kept on disk here")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, local_backend_trouble: str) -> Generator[Running]:
    if local_backend_trouble:
        pytest.skip(f"the local backend cannot run here: {local_backend_trouble}")
    place = Place(folder=tmp_path_factory.mktemp("sandbox")).configure({"good": scripted("good")})
    with service(place) as started:
        yield started


async def sandboxes(running: Running) -> dict[str, headstart.HostedInfo]:
    """The service's sandboxes by their names (their ids, where they have none)."""
    async with headstart.connect(running.place.state) as hosted:
        return {info.name or info.id: info for info in await hosted.list()}


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Look, for as long as it may take, until something is so that nothing tells."""
    with anyio.fail_after(10):
        while not await is_so():  # noqa: ASYNC110 see above
            await anyio.sleep(0.01)


async def until_gone(running: Running, *names: str) -> None:
    async def are_gone() -> bool:
        return set(names).isdisjoint(await sandboxes(running))

    await until(are_gone)


def kill(running: Running) -> None:
    running.process.kill()
    running.process.wait(10)


def parent_of_bash(running: Running) -> int:
    """The first process of the sandbox in which there is a bash session."""
    (bash,) = (pid for pid, name in running.processes().items() if name.startswith("bash"))
    (parent,) = re.findall(r"^PPid:\t(\d+)", Path(f"/proc/{bash}/status").read_text(encoding="utf-8"), re.MULTILINE)
    return int(parent)


async def end(running: Running, session: str) -> None:
    async with httpx2.AsyncClient(trust_env=False) as http:
        answer = await http.delete(f"{running.url}/s/{session}/mcp")
    assert answer.status_code < 300, answer.text


# ---------------------------------------------------------------- what is listed


@pytest.mark.parametrize("era", ERAS)
async def test_the_tools_are_there_under_their_own_names_and_in_the_merged_view(running: Running, era: str) -> None:
    async with tools(f"{running.url}/mcp/sandbox", era=era) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == NAMES
    async with tools(f"{running.url}/mcp", era=era) as client:
        merged = [tool.name for tool in (await client.list_tools()).tools]
        assert [name for name in merged if name.startswith("sandbox__")] == [f"sandbox__{name}" for name in NAMES]
        assert "good__add" in merged
        assert "hello" in said(await client.call_tool("sandbox__bash", {"command": "echo hello"}))


async def test_listing_the_tools_starts_nothing(running: Running) -> None:
    async with talking(running, "only-lists") as talk:
        await talk.client.list_tools()
        assert "mcp-only-lists" not in await sandboxes(running)
        await talk.bash("true")
        assert "mcp-only-lists" in await sandboxes(running)
    await end(running, "only-lists")


async def test_the_schemas_say_what_is_needed_and_hold_no_null(running: Running) -> None:
    async with talking(running) as talk:
        listed = {tool.name: tool for tool in (await talk.client.list_tools()).tools}
    schema = listed["edit_file"].input_schema
    assert schema["required"] == ["path", "old", "new"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["branch"]["type"] == "string"
    for tool in listed.values():
        assert tool.description
        assert "null" not in json.dumps(tool.input_schema)
        for argument in tool.input_schema["properties"].values():
            assert argument["description"]


def hints(running: Running) -> dict[str, ToolAnnotations]:
    async def read() -> dict[str, ToolAnnotations]:
        async with talking(running) as talk:
            return {tool.name: tool.annotations or ToolAnnotations() for tool in (await talk.client.list_tools()).tools}

    return anyio.run(read)


def test_the_hints_say_what_reads_and_what_destroys_and_that_nothing_leaves_the_sandbox(running: Running) -> None:
    told = hints(running)
    assert {name for name in NAMES if told[name].read_only_hint} == {"read_file", "list_files"}
    additive = {name for name in NAMES if told[name].destructive_hint is False}
    assert additive == {"checkpoint", "fork"}
    assert {told[name].open_world_hint for name in NAMES} == {False}


@pytest.mark.parametrize(
    ("network", "mode", "open_world"),
    [
        ("host", "ro", {"bash", "python"}),
        ("none", "rw", {"bash", "python", "write_file", "edit_file"}),
        ("none", "overlay", set[str]()),
    ],
)
def test_what_reaches_the_network_or_the_hosts_files_says_so(
    place: Place, tmp_path: Path, local_backend_trouble: str, network: str, mode: str, open_world: set[str]
) -> None:
    if local_backend_trouble:
        pytest.skip(f"the local backend cannot run here: {local_backend_trouble}")
    shown = tmp_path / "shown"
    shown.mkdir()
    mount = f'mounts = [{{path = "{shown}", mode = "{mode}"}}]'
    with service(place.configure({}, f'[sandbox]\nnetwork = "{network}"\n{mount}\n')) as started:
        assert {name for name, told in hints(started).items() if told.open_world_hint} == open_world


# ---------------------------------------------------------------- running something


async def test_bash_keeps_its_folder_and_variables_and_tells_how_a_command_ended(running: Running) -> None:
    async with talking(running) as talk:
        await talk.bash("cd /tmp; export NAME=value")
        assert await talk.bash("echo $NAME $PWD") == "value /tmp"
        told = await talk.ok("bash", command="echo out; echo err >&2; false")
        assert told == "out\nerr\n[exit code 1, in /tmp]"


async def test_a_command_that_takes_too_long_is_interrupted_and_its_session_goes_on(running: Running) -> None:
    async with talking(running) as talk:
        await talk.bash("NAME=kept")
        told = await talk.ok("bash", command="echo begun; sleep 600", timeout_s=0.5)
        assert told.startswith("begun\n[it took longer than 0.5 s and was interrupted; the bash session goes on]")
        assert await talk.bash("echo $NAME") == "kept"


async def test_a_session_that_has_ended_is_told_and_the_next_command_has_a_new_one(running: Running) -> None:
    async with talking(running) as talk:
        await talk.bash("NAME=lost")
        assert "[exit code 3; the bash session is gone" in await talk.ok("bash", command="exit 3")
        told = await talk.ok("bash", command="echo -$NAME-")
        assert told.startswith("--\n[this is a new session: what those before had set is gone]\n[exit code 0")


async def test_long_output_is_cut_in_the_middle_and_says_by_how_much(running: Running) -> None:
    async with talking(running) as talk:
        whole = await talk.ok("bash", command="printf 'a%.0s' {1..29000}")
        assert whole.startswith("a" * 29_000 + "\n[exit code 0")
        cut = await talk.ok("bash", command="echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last")
    assert cut.startswith("first\n")
    assert "last\n[exit code 0" in cut
    assert len(cut) < 31_000
    before, notice, after = re.split(r"(\n\[… .* …\]\n)", cut)
    left_out = int(notice.split()[1].replace(",", ""))
    status = after[after.index("[exit code") :]
    assert len(before) + left_out + len(after) == len(f"first\n\nlast\n{status}") + 3_000_000


async def test_python_keeps_its_variables_and_an_exception_is_a_result(running: Running) -> None:
    async with talking(running) as talk:
        assert await talk.ok("python", code="x = 20\nprint('said')\nx + 1") == "said\n21"
        assert await talk.ok("python", code="y = x") == "[it said nothing]"
        told = await talk.ok("python", code="1 / 0")
        assert told.startswith("Traceback")
        assert told.endswith("ZeroDivisionError: division by zero")
        assert "the Python kernel is gone" in await talk.ok("python", code="import os; os._exit(1)")


async def test_a_call_that_is_cancelled_interrupts_what_it_runs(running: Running) -> None:
    async with talking(running, "cancels") as talk, talking(running, "cancels") as other:
        await talk.bash("NAME=kept")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk.client.call_tool, "bash", {"command": "touch begun; sleep 600"})
            await until(other.sees("begun"))
            tasks.cancel_scope.cancel()
        with anyio.fail_after(20):
            assert await other.bash("echo $NAME; grep -lsx sleep /proc/[0-9]*/comm | wc -l") == "kept\n0"
    await end(running, "cancels")


# ---------------------------------------------------------------- files


async def test_files_are_written_read_by_lines_and_listed(running: Running) -> None:
    async with talking(running) as talk:
        assert (
            await talk.ok("write_file", path="src/a.txt", content="one\ntwo\nthree\n") == "Wrote 14 bytes to src/a.txt."
        )
        assert await talk.ok("read_file", path="src/a.txt") == "one\ntwo\nthree\n"
        assert await talk.ok("read_file", path="src/a.txt", start_line=2, end_line=2, numbered=True) == "     2\ttwo\n"
        assert await talk.ok("read_file", path="src/a.txt", start_line=2, end_line=99) == "two\nthree\n"
        assert "has no line 7: it has 3 lines" in await talk.error("read_file", path="src/a.txt", start_line=7)
        await talk.bash("mkdir src/empty; ln -s a.txt src/link; : > src/none")
        assert await talk.ok("list_files", depth=2) == "src/\nsrc/a.txt  14\nsrc/empty/\nsrc/link@\nsrc/none  0"
        assert await talk.ok("list_files", path="src/empty") == "[the folder is empty]"
        assert await talk.ok("list_files", path="/", depth=1) == await talk.ok("list_files", path="//")
        assert await talk.ok("read_file", path="src/none") == "[the file is empty]"


async def test_a_file_that_is_longer_than_can_be_shown_is_read_on_from_where_it_was_cut(running: Running) -> None:
    async with talking(running) as talk:
        await talk.bash("seq 1 20000 > many; head -c 60000 /dev/zero | tr '\\0' a > wide")
        whole, next_line = "", 1
        while next_line:
            part = await talk.ok("read_file", path="many", start_line=next_line)
            text, _, note = part.partition("\n[lines ")
            whole += text + ("\n" if note else "")
            next_line = int(re.findall(r"start_line (\d+)", note)[0]) if note else 0
        assert whole == "".join(f"{number}\n" for number in range(1, 20_001))
        assert (await talk.ok("read_file", path="wide")).endswith(
            "\n[line 1 goes on for 10,000 characters; use bash: cut -c]"
        )


async def test_what_is_no_text_or_not_there_is_told_with_what_helps(running: Running) -> None:
    async with talking(running) as talk:
        await talk.bash("printf 'a\\0b' > nul; printf '\\xff\\xfe' > bytes; truncate -s 70M large; mkdir folder")
        for name, size in (("nul", 3), ("bytes", 2)):
            told = await talk.error("read_file", path=name)
            assert f"{name} is no UTF-8 text: it is binary, {size} bytes\nhint: use bash" in told
        assert "large is larger than 64 MB\nhint: " in await talk.error("read_file", path="large")
        assert "folder: Is a directory\nhint: " in await talk.error("read_file", path="folder")
        assert "nowhere: No such file or directory\nhint: " in await talk.error("list_files", path="nowhere")
        assert "/usr/new: " in await talk.error("write_file", path="/usr/new", content="")


async def test_an_edit_replaces_what_is_there_exactly_once(running: Running) -> None:
    async with talking(running) as talk:
        await talk.ok("write_file", path="f", content="a = 1\nb = 1\n  c = 2\n")
        assert await talk.ok("edit_file", path="f", old="a = 1", new="a = 3") == "Replaced it in f, line 1."
        await talk.ok("edit_file", path="f", old="b = 1", new="b = 3")
        told = await talk.error("edit_file", path="f", old=" = 3", new="")
        assert "old is in f 2 times: lines 1, 2\nhint: give more of what stands around it" in told
        told = await talk.error("edit_file", path="f", old="c = 2\nd", new="")
        assert "old is not in f\nhint: its first line is there, in line 3" in told
        assert "nothing would change" in await talk.error("edit_file", path="f", old="a", new="a")
        assert await talk.ok("read_file", path="f") == "a = 3\nb = 3\n  c = 2\n"
        told = await talk.ok("edit_file", path="f", old=" = 3", new=" = 4", replace_all=True)
        assert told == "Replaced it 2 times in f, lines 1, 2."
        assert await talk.ok("read_file", path="f") == "a = 4\nb = 4\n  c = 2\n"
        await talk.ok("write_file", path="dos", content="x\r\ny\r\n")
        assert "lines end in \\r\\n" in await talk.error("edit_file", path="dos", old="x\ny", new="")


async def test_of_edits_at_the_same_time_none_is_lost(running: Running) -> None:
    async with talking(running) as talk:
        await talk.ok("write_file", path="f", content="".join(f"<{number}>" for number in range(20)))
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                arguments = {"path": "f", "old": f"<{number}>", "new": f"({number})"}
                tasks.start_soon(talk.client.call_tool, "edit_file", arguments)
        assert await talk.ok("read_file", path="f") == "".join(f"({number})" for number in range(20))


async def test_a_folder_with_more_than_can_be_shown_says_so_and_strange_names_are_shown(running: Running) -> None:
    async with talking(running) as talk:
        await talk.bash(
            "mkdir many odd closed; touch many/{1..1500}; touch $'odd/\\xff'; touch closed/x; chmod 0 closed"
        )
        listed = (await talk.ok("list_files", path="many")).splitlines()
        assert len(listed) == 1_001
        assert listed[-1].startswith("[there is more than these 1,000")
        assert await talk.ok("list_files", path="odd") == "?  0"
        assert "closed/  [Permission denied]" in await talk.ok("list_files", depth=2)


# ---------------------------------------------------------------- transactions


async def test_a_rollback_brings_files_and_the_bash_session_back(running: Running) -> None:
    async with talking(running) as talk:
        assert "there is no checkpoint to go back to" in await talk.error("rollback")
        await talk.bash("echo good > f; NAME=before; cd /tmp")
        kept = re.findall(r"Checkpoint (\S+) of (\S+) holds the files and bash session", await talk.ok("checkpoint"))
        assert kept
        assert kept[0][1] in {info.id for info in (await sandboxes(running)).values()}
        await talk.bash("echo bad > ~/f; NAME=after; cd /")
        await talk.ok("rollback")
        assert await talk.bash("cat ~/f; echo $NAME $PWD") == "good\nbefore /tmp"
        await talk.bash("rm ~/f")
        await talk.ok("checkpoint")
        await talk.ok("rollback", to=kept[0][0])
        assert await talk.bash("cat ~/f") == "good"
        assert "chk_none" in await talk.error("rollback", to="chk_none")


@where_processes_may_be_traced
async def test_what_a_checkpoint_cannot_hold_is_told_and_can_be_left_out(running: Running) -> None:
    async with talking(running) as talk:
        await talk.ok("python", code="x = 1; log = open('log', 'w')")
        for tool in ("checkpoint", "fork"):
            told = await talk.error(tool)
            assert re.search(
                r"Python kernel has open: /home/sandbox/log .*no checkpoint holds\nhint: .*files_only=true", told
            )
        assert "Not in it: python3" in await talk.ok("checkpoint", files_only=True)
        assert await talk.ok("python", code="x") == "1"
        await talk.ok("rollback")
        assert "NameError" in await talk.ok("python", code="x")


@where_processes_may_be_traced
async def test_a_rollback_and_a_branch_have_what_the_python_kernel_knew(running: Running) -> None:
    async with talking(running) as talk:
        await talk.ok("python", code="x = [1]")
        await talk.ok("checkpoint")
        await talk.ok("python", code="x.append(2)")
        branch = await talk.fork()
        assert await talk.ok("python", code="x", branch=branch) == "[1, 2]"
        told = await talk.ok("rollback")
        assert told.endswith(", with its files and Python kernel. What else ran has ended; bash begins anew.")
        assert await talk.ok("python", code="x") == "[1]"


@where_processes_may_be_traced
async def test_a_checkpoint_and_a_rollback_name_what_is_kept_and_what_begins_anew(running: Running) -> None:
    async with talking(running) as talk:
        assert (await talk.ok("checkpoint")).endswith(" holds the files.")
        told = await talk.ok("rollback")
        assert told.endswith(", with its files. What else ran has ended; bash and Python begin anew.")
        await talk.bash("NAME=value")
        await talk.ok("python", code="x = 1")
        told = await talk.ok("checkpoint")
        assert told.endswith(" holds the files, bash session and Python kernel.")
        beginning = told.split()[1][: len("chk_") + 6]
        told = await talk.ok("rollback", to=beginning)
        assert told.endswith(", with its files, bash session and Python kernel. What else ran has ended.")
        assert await talk.ok("python", code="x") == "1"


@pytest.mark.parametrize("processes", list(Processes))
def test_the_tools_tell_whether_a_python_kernel_is_kept(processes: Processes) -> None:
    capabilities = Capabilities(isolation="some", layers=True, processes=processes)
    nowhere = cast("SandboxHost", None)  # listing asks nobody
    listed = SandboxServer(nowhere, headstart.SandboxOptions(), capabilities, away_s=60).catalogue.tools
    told = {tool["name"]: str(tool["description"]) for tool in listed}
    for name in ("checkpoint", "fork"):
        assert ("A Python kernel cannot be" in told[name]) is (processes is Processes.NONE)
    assert ("Python begins anew" in told["rollback"]) is (processes is Processes.NONE)
    assert ("files, bash session and Python kernel" in told["checkpoint"]) is (processes is Processes.KERNELS)


async def test_a_checkpoint_after_each_of_hundreds_of_steps_is_kept_and_the_oldest_goes_which_is_told(
    running: Running,
) -> None:
    kept: list[str] = []
    async with talking(running) as talk:
        for number in range(205):
            await talk.ok("write_file", path="n", content=str(number))
            told = await talk.ok("checkpoint")
            kept.append(told.split()[1])
            oldest = f" 128 are kept, so the oldest was dropped: {kept[number - 128]}." if number >= 128 else ""
            assert told.endswith(f" holds the files.{oldest}")
        branch = await talk.fork()
        assert await talk.ok("read_file", path="n", branch=branch) == "204"
        await talk.ok("rollback", to=kept[-128])
        assert await talk.ok("read_file", path="n") == "77"
        assert kept[76] in await talk.error("rollback", to=kept[76])


async def test_a_checkpoint_can_be_dropped_however_often_its_state_was_kept(running: Running) -> None:
    async with talking(running) as talk:
        await talk.bash("echo good > f")
        first = (await talk.ok("checkpoint")).split()[1]
        assert (await talk.ok("checkpoint")).split()[1] == first
        await talk.ok("write_file", path="f", content="better")
        second = (await talk.ok("checkpoint")).split()[1]
        assert await talk.ok("drop", checkpoint=first) == f"Checkpoint {first} is gone; the sandbox is as it was."
        assert first in await talk.error("drop", checkpoint=first)
        assert first in await talk.error("rollback", to=first)
        await talk.ok("rollback", to=second)
        assert await talk.ok("read_file", path="f") == "better"


async def test_a_branch_is_tried_and_committed_or_discarded(running: Running) -> None:
    async with talking(running) as talk:
        await talk.bash("echo old > f; NAME=shared")
        good, bad = await talk.fork(), await talk.fork()
        assert await talk.bash("echo $NAME; echo new > f", branch=good) == "shared"
        await talk.ok("write_file", path="f", content="bad", branch=bad)
        assert await talk.ok("read_file", path="f") == "old\n"
        assert await talk.ok("read_file", path="f", branch=bad) == "bad"
        assert await talk.ok("python", code="open('f').read()", branch=good) == "'new\\n'"
        assert await talk.ok("discard", branch=bad) == f"{bad} is gone; the sandbox is as it was."
        await talk.ok("commit", branch=good)
        assert await talk.ok("read_file", path="f") == "new\n"
        for gone in (good, bad):
            assert f"there is no branch '{gone}' (there are: none)" in await talk.error("bash", command="", branch=gone)
            assert "there is no branch" in await talk.error("commit", branch=gone)


async def test_a_commit_over_what_has_changed_is_refused_and_both_stay(running: Running) -> None:
    async with talking(running) as talk:
        branch = await talk.fork()
        await talk.bash("echo mine > f", branch=branch)
        await talk.bash("echo theirs > f")
        assert "hint: something has run there since" in await talk.error("commit", branch=branch)
        assert await talk.ok("read_file", path="f") == "theirs\n"
        assert await talk.ok("read_file", path="f", branch=branch) == "mine\n"


async def test_branches_are_no_more_than_can_be_kept(running: Running) -> None:
    async with talking(running) as talk:
        branches = [await talk.fork() for _ in range(16)]
        assert "there are 16 branches already\nhint: commit or discard one" in await talk.error("fork")
        async with headstart.connect(running.place.state) as hosted:
            await (await hosted.get(branches[0])).kill()  # who is gone does not count
        await talk.fork()


# ---------------------------------------------------------------- whose sandbox it is, and how long


async def test_sessions_do_not_see_each_others_sandboxes_or_branches(running: Running) -> None:
    async with talking(running) as one, talking(running) as other:
        await one.bash("echo secret > f; NAME=one")
        branch = await one.fork()
        assert await other.bash("ls; echo -$NAME-") == "--"
        for reached in (branch, *(info.id for info in (await sandboxes(running)).values())):
            assert "there is no branch" in await other.error("read_file", path="f", branch=reached)
            assert "there is no branch" in await other.error("discard", branch=reached)
        assert await one.ok("read_file", path="f", branch=branch) == "secret\n"


async def test_sessions_whose_sandboxes_would_be_called_the_same_have_one_each(running: Running) -> None:
    for name in ("a@b", "a-b"):
        with RawClient(f"{running.url}/mcp/sandbox", headers={"X-Headstart-Session": name}) as client:
            client.initialize()
            assert client.call("bash", command="ls; touch f")[0].startswith("[exit code 0")
    assert "mcp-a-b" in await sandboxes(running)
    await end(running, "a-b")
    await end(running, "a@b")


async def test_connections_of_one_session_share_its_sandbox(running: Running) -> None:
    async with talking(running, "shared") as one, talking(running, "shared", era="auto") as other:
        async with anyio.create_task_group() as tasks:
            for talk in (one, other, one, other):
                tasks.start_soon(talk.bash, "echo $RANDOM >> f")
        assert await other.bash("wc -l < f") == "4"
    assert "mcp-shared" in await sandboxes(running)
    await end(running, "shared")
    await until_gone(running, "mcp-shared")


async def test_a_session_s_end_ends_its_sandbox_and_branches(running: Running) -> None:
    async with talking(running) as talk:
        before = set(await sandboxes(running))
        await talk.bash("sleep 600 &")
        await talk.fork(files_only=True)
        made = set(await sandboxes(running)) - before
        assert len(made) == 2
    await until_gone(running, *made)
    async with headstart.connect(running.place.state) as hosted:
        (name,) = (each for each in made if each.startswith("box_"))
        with pytest.raises(SandboxUnknown, match="the session that it was made for has ended"):
            await hosted.get(name)


async def test_a_named_session_that_ended_begins_anew(running: Running) -> None:
    async with talking(running, "again") as talk:
        await talk.bash("echo old > f")
    await end(running, "again")
    await until_gone(running, "mcp-again")
    async with talking(running, "again") as talk:
        assert await talk.ok("list_files") == "[the folder is empty]"
    await end(running, "again")


async def test_a_sandbox_that_was_ended_is_told_once_and_then_there_is_a_new_one(running: Running) -> None:
    async with talking(running, "killed") as talk:
        await talk.bash("echo old > f")
        async with headstart.connect(running.place.state) as hosted:
            await (await hosted.get("mcp-killed")).kill()
        told = await talk.error("list_files")
        assert "has ended: it was killed; its state is gone\nhint: the next call begins a new one" in told
        assert await talk.ok("list_files") == "[the folder is empty]"
        async with headstart.connect(running.place.state) as hosted:
            await (await hosted.get("mcp-killed")).kill()
        assert await talk.bash("ls") == ""  # nothing was in it: nobody missed it
    await end(running, "killed")


async def test_a_sandbox_that_goes_under_a_call_is_told_by_that_call_alone(running: Running) -> None:
    told: list[str] = []
    async with talking(running, "under") as talk:

        async def work() -> None:
            told.append(await talk.error("bash", command="touch begun; sleep 600"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            await until(talk.sees("begun"))
            async with headstart.connect(running.place.state) as hosted:
                await (await hosted.get("mcp-under")).kill()
        assert "its state is gone" in told[0]
        assert await talk.ok("list_files") == "[the folder is empty]"
    await end(running, "under")


async def test_a_named_session_goes_on_where_it_was_after_a_kill_and_is_told_once_what_is_lost(
    place: Place, durable: None
) -> None:
    with service(place.configure({})) as started:
        async with talking(started, "survives") as talk:
            await talk.bash("echo work > work.txt; NAME=lost; sleep 600 &")
            kept = (await talk.ok("checkpoint", files_only=True)).split()[1]
            branch = (await talk.ok("fork", files_only=True)).split()[1]
            await talk.ok("write_file", path="work.txt", content="more")
            await talk.ok("python", code="x = 1")
        processes = started.processes()
        kill(started)
    wait_until(lambda: not alive(processes))
    with service(place) as started:
        async with talking(started, "survives") as talk:
            assert await talk.ok("read_file", path="work.txt") == "more"
            assert await talk.ok("read_file", path="work.txt", branch=branch) == "work\n"
            await talk.ok("discard", branch=branch)
            told = await talk.ok("bash", command="echo -$NAME-")
            assert told.startswith("--\n[this is a new session: what those before had set is gone]\n")
            assert "[this is a new session: what those before had set is gone]" in await talk.ok("python", code="1")
            assert "[this" not in await talk.ok("bash", command="true") + await talk.ok("python", code="1")
            await talk.ok("rollback", to=kept)
            assert await talk.ok("read_file", path="work.txt") == "work\n"
        assert list(await sandboxes(started)) == ["mcp-survives"]
        await end(started, "survives")
        await until_gone(started, "mcp-survives")


async def test_a_client_goes_on_with_its_session_id_and_its_bash_after_a_restart(place: Place, durable: None) -> None:
    with service(place.configure({})) as started:
        client = RawClient(f"{started.url}/mcp/sandbox")
        name = f"mcp-{client.initialize()}"
        client.call("bash", command="cd /tmp; NAME=kept; echo old > ~/f")
    with service(place) as started, RawClient(f"{started.url}/mcp/sandbox") as again:
        client.http.close()
        again.headers = client.headers
        assert again.call("bash", command="echo $NAME $PWD; cat ~/f")[0].startswith("kept /tmp\nold\n[exit code 0")
        assert again.http.delete(again.url, headers=again.headers).is_success
        await until_gone(started, name)


async def test_the_sandbox_of_a_session_that_does_not_come_back_after_a_restart_ends_when_the_session_would(
    place: Place, durable: None
) -> None:
    place.configure({}, "[service]\nsession_idle_s = 1.5\n")
    with service(place) as started:
        async with talking(started, "stays-away") as away, talking(started, "returns") as returns:
            await away.bash("touch f")
            await returns.bash("touch f")
            kill(started)
    with service(place) as started:
        async with talking(started, "returns") as returns:
            await returns.client.list_tools()  # which is enough: the session is there
            await until_gone(started, "mcp-stays-away")
            assert await returns.ok("list_files") == "f  0"
        async with talking(started, "stays-away") as away:
            assert "sandbox: this session's state is gone, with the sandbox that held it" in await away.error(
                "list_files"
            )
            assert await away.ok("list_files") == "[the folder is empty]"


async def test_a_session_does_not_take_up_what_only_is_called_like_its_sandbox(place: Place, durable: None) -> None:
    with service(place.configure({})) as started:
        async with headstart.connect(place.state) as hosted:
            await (await hosted.create(name="mcp-named")).files.write("secret", "of somebody")
    with service(place) as started:
        async with talking(started, "named") as talk:
            assert await talk.ok("list_files") == "[the folder is empty]"


async def test_a_sandbox_that_loses_its_processes_comes_back_with_its_files(place: Place, durable: None) -> None:
    with service(place.configure({})) as started:
        async with talking(started, "robust") as talk:
            await talk.bash("echo old > f; NAME=lost")
            os.kill(parent_of_bash(started), signal.SIGKILL)

            async def is_back() -> bool:
                result = await talk.client.call_tool("read_file", {"path": "f"})
                told = said(result)
                assert told == "old\n" or "is being brought back with its files\nhint: call again" in told, told
                return not result.is_error

            await until(is_back)
            assert "[this is a new session" in await talk.ok("bash", command="true")


async def test_sessions_that_nobody_uses_end_with_their_sandboxes(place: Place, local_backend_trouble: str) -> None:
    if local_backend_trouble:
        pytest.skip(f"the local backend cannot run here: {local_backend_trouble}")
    with service(place.configure({}, "[service]\nsession_idle_s = 0.5\n")) as started:
        with RawClient(f"{started.url}/s/idle/mcp/sandbox") as client:
            client.initialize()
            assert client.call("bash", command="sleep 600 &")[1] is False
        assert "mcp-idle" in await sandboxes(started)
        await until_gone(started, "mcp-idle")


# ---------------------------------------------------------------- what is wrong with a call


async def test_wrong_arguments_are_told_with_the_right_ones(running: Running) -> None:
    async with talking(running) as talk:
        told = await talk.error("bash", comand="ls")
        assert told == "sandbox: bash has no argument 'comand'\nhint: it takes command, timeout_s, branch"
        assert "bash needs the argument 'command'" in await talk.error("bash")
        assert "timeout_s: input should be greater than 0" in await talk.error("bash", command="ls", timeout_s=0)
        assert "path: must have no NUL characters" in await talk.error("read_file", path="a\0b")
        assert "is no text for bash" in await talk.error("bash", command="a\0b")
        assert await talk.bash("echo fine", branch=None) == "fine"


def test_no_such_tool_or_method_or_text_is_an_error_and_the_session_goes_on(running: Running) -> None:
    with RawClient(f"{running.url}/mcp/sandbox") as client:
        client.initialize()
        answer = client.request("tools/call", {"name": "sh", "arguments": {}})
        assert answer["error"]["message"].startswith("Unknown tool: sh. hint: there are bash, python")
        assert client.request("resources/read", {"uri": "file:///x"})["error"]["code"] == -32601
        for arguments in ("ls", ["ls"], 7):
            answer = client.request("tools/call", {"name": "bash", "arguments": arguments})
            assert answer["result"]["isError"], answer
        body = (
            '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bash","arguments":{"command":"\\ud800"}}}'
        )
        headers = {**client.headers, "Content-Type": "application/json"}
        answer = client.http.post(client.url, content=body.encode(), headers=headers)
        assert answer.status_code == 200
        assert answer.json()["result"]["isError"], answer.text
        assert client.call("bash", command="echo on")[0].startswith("on\n")


# ---------------------------------------------------------------- the operator


def test_the_example_of_the_how_to_does_what_it_shows(running: Running, tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "give-an-agent-a-sandbox.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(example.replace("http://127.0.0.1:8787", running.url), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True)
    shown = re.sub(r"\[exit code (\d), in .*\]", r"\1", done.stdout).splitlines()
    assert shown == ["all is well", "0", "cat: notes: No such file or directory", "1", "all is well", "0"]


def test_its_calls_are_in_the_waterfall_and_it_is_among_the_servers(running: Running) -> None:
    with RawClient(f"{running.url}/s/traced/mcp") as client:
        client.initialize()
        client.call("sandbox__bash", command="sleep 0.1")
    told = running.command("trace", "traced").stdout
    assert "running sandbox.bash" in told
    assert "starts cold" not in told
    assert "/mcp serves 1 server (good) and the built-in sandbox\n" in running.log()
    (status,) = (each for each in running.status()["runtime"]["servers"] if each["name"] == "sandbox")
    assert (status["built_in"], status["remote"]) == (True, False)
    assert "the service" in running.command("status").stdout


def offered(started: Running) -> list[str]:
    with RawClient(f"{started.url}/mcp") as client:
        client.initialize()
        answer = client.request("tools/list")
        return [tool["name"] for tool in answer["result"]["tools"] if tool["name"].startswith("sandbox__")]


def test_a_server_of_the_user_s_that_is_called_so_is_served_in_its_place_and_that_is_told_once(place: Place) -> None:
    servers = {"sandbox": scripted("good")}
    with service(place.configure(servers, '[service]\nbackend = "process"\n')) as started:
        assert "sandbox__add" in offered(started)
        assert "sandbox__bash" not in offered(started)
        assert started.log().count("your server called sandbox is served in place of the built-in one. hint: ") == 1


def test_a_server_of_the_user_s_that_is_disabled_is_in_nobody_s_place(place: Place) -> None:
    servers = {"sandbox": {**scripted("good"), "disabled": True}}
    config = '[service]\nbackend = "process"\n[sandbox]\nenabled = true\n'
    with service(place.configure(servers, config)) as started:
        assert "sandbox__bash" in offered(started)


def test_it_can_be_switched_off(place: Place, isolation: str) -> None:
    config = f'[service]\nbackend = "{isolation}"\n[sandbox]\nenabled = false\n'
    with service(place.configure({}, config)) as started:
        assert offered(started) == []
        with RawClient(f"{started.url}/mcp/sandbox") as client:
            answer = client.http.post(client.url, json={}, headers=client.headers)
        assert answer.status_code == 404
        assert "built-in" not in started.log()


def test_without_isolation_it_is_served_only_if_that_is_said(place: Place) -> None:
    config = '[service]\nbackend = "process"\n'
    with service(place.configure({}, config)) as started:
        assert offered(started) == []
        assert "the built-in server sandbox is not served, since nothing isolates it here. hint: " in started.log()
    with service(place.configure({}, f"{config}[sandbox]\nenabled = true\n")) as started:
        told = hints(started)
        assert list(told) == NAMES[:6]  # nothing is kept there to go back to
        assert {name for name in told if told[name].open_world_hint} == {"bash", "python", "write_file", "edit_file"}
        with RawClient(f"{started.url}/mcp/sandbox") as client:
            client.initialize()
            assert client.call("bash", command="echo $((6 * 7))")[0].startswith("42\n")


def test_its_sandboxes_are_made_as_configured(place: Place, mappable_path: Path, local_backend_trouble: str) -> None:
    if local_backend_trouble:
        pytest.skip(f"the local backend cannot run here: {local_backend_trouble}")
    shown = mappable_path / "shown"
    shown.mkdir()
    config = f"""
[sandbox]
mounts = ["/usr/share", {{path = "{shown}", mode = "rw"}}]
memory_mb = 300
disk_mb = 50
pids = 40
env = {{GREETING = "hello"}}
"""
    with service(place.configure({}, config)) as started, RawClient(f"{started.url}/mcp/sandbox") as client:
        assert f"{shown} (rw)" in client.instructions()
        line = f"echo $GREETING > {shown}/f; head -c 80000000 /dev/zero > big"
        if "No space left on device" not in client.call("bash", command=line)[0]:  # the kernel does not hold the limit
            wait_until(lambda: "this is a new session" in client.call("bash", command="true")[0])
    assert (shown / "f").read_text() == "hello\n"


def test_a_template_that_there_is_none_of_is_told_before_anything_is_served(place: Place, isolation: str) -> None:
    place.configure({}, f'[service]\nbackend = "{isolation}"\n[sandbox]\nenabled = true\ntemplate = "nowhere"\n')
    done = command("serve", "--config", str(place.config), "--state-dir", str(place.state), "--port", "0")
    assert done.returncode == 2
    error, hint = done.stderr.splitlines()
    assert "nowhere" in error
    assert hint.startswith("hint: ")


def test_options_that_cannot_be_used_are_told_in_one_line(place: Place) -> None:
    place.configure({}, "[sandbox]\nmemory_mb = 1e12\n")
    done = command("serve", "--config", str(place.config), "--state-dir", str(place.state), "--port", "0")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: memory_mb: 1000000000000.0 is not possible",
        "hint: say a number above 0, or None for no limit",
    ]
