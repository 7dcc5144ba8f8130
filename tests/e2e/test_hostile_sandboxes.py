"""What runs in a session's sandbox attacks the tools that look into it: the service stays as it was."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import anyio
import pytest

import headstart
from headstart.errors import BackendError

from .running import Place, Running, service
from .talking import talking

pytestmark = pytest.mark.anyio

PATIENCE_S = 60
MB = 1_000_000


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, local_backend_trouble: str) -> Generator[Running]:
    if local_backend_trouble:
        pytest.skip(f"the local backend cannot run here: {local_backend_trouble}")
    with service(Place(folder=tmp_path_factory.mktemp("sandbox")).configure({})) as started:
        yield started


def most_memory(running: Running) -> int:
    """Return the bytes of memory that the service has had at most."""
    pid = json.loads((running.place.state / "service.json").read_text())["pid"]
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


# ---------------------------------------------------------------- paths


LINKS = """
ln -s /etc/shadow shadow; ln -s / top; ln -s /proc/1/root init; ln -s /proc/self/root self; ln -s {state} state
ln -s ../../../../../../../.. up; ln -s loop loop; mkfifo fifo
"""
PATHS = [
    "/etc/shadow",
    "shadow",
    "top/etc/shadow",
    "init/etc/shadow",
    "self/etc/shadow",
    "up/etc/shadow",
    "../../../../../../etc/shadow",
    "/proc/1/cwd/../../etc/shadow",
    "state/service.json",
    "state/state.sqlite",
    "{state}/service.json",
    "/proc/1/environ",
    "/proc/self/environ",
    "/proc/self/mem",
    "/proc/self/fd/3",
    "/dev/zero",
    "fifo",
    "loop",
]


async def test_no_path_reaches_what_the_sandbox_does_not_have(running: Running) -> None:
    state = running.place.state
    async with talking(running, "paths") as talk:
        await talk.bash(LINKS.format(state=state))
        token = json.loads((state / "service.json").read_text())["token"]
        with anyio.fail_after(PATIENCE_S):
            for path in (each.format(state=state) for each in PATHS):
                for told in (
                    await talk.error("read_file", path=path),
                    await talk.error("list_files", path=path),
                    await talk.error("edit_file", path=path, old="a", new="b"),
                ):
                    assert "root:" not in told, path
                    assert token not in told, path
        for path in ("init/etc", "top/etc", "self/etc", "up/etc", "/proc/1/cwd/etc"):
            assert "shadow" not in await talk.ok("list_files", path=path)
            assert "Read-only file system" in await talk.error("write_file", path=f"{path}/new", content="x")


async def test_what_is_written_where_the_host_has_something_is_the_sandbox_s_own(running: Running) -> None:
    token = (running.place.state / "service.json").read_text()
    async with talking(running, "written") as talk:
        await talk.bash(f"mkdir -p {running.place.state}; ln -s {running.place.state} state")
        await talk.ok("write_file", path="state/service.json", content="{}")
        assert await talk.ok("read_file", path=f"{running.place.state}/service.json") == "{}"
    assert (running.place.state / "service.json").read_text() == token


KNOCKING = """
import os, socket
for name in ("sandboxes.sock", "service.json", "hosted", "stores", "templates", "state.sqlite", "local"):
    path = os.path.join({state!r}, name)
    try: print("GOT", os.stat(path))
    except FileNotFoundError: pass
    try: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(path); print("GOT in")
    except FileNotFoundError: pass
print(os.listdir({state!r}), "state" in os.listdir({above!r}))
"""


@pytest.mark.parametrize("mode", ["ro", "rw", "overlay"])
@pytest.mark.parametrize("network", ["none", "host"])
async def test_a_sandbox_that_has_the_folder_above_the_state_finds_nothing_in_it(
    running: Running, mode: str, network: str
) -> None:
    if mode == "overlay" and os.geteuid() != 0:
        pytest.skip("an ordinary user's stores are folders in the state, and no overlay can cover its own layers")
    state = running.place.state
    state.parent.chmod(0o755)  # where ids cannot be mapped, a sandbox is somebody else
    async with headstart.connect(state) as hosted:
        box = await hosted.create(mounts={str(state.parent): mode}, network=network)
        branch = await box.fork()
        for each in (box, branch):
            told = await each.run(("python3", "-c", KNOCKING.format(state=str(state), above=str(state.parent))))
            assert told.stdout == "[] True\n", told
        await box.kill()
        (state / "stores").mkdir(exist_ok=True)  # there may be none here
        with pytest.raises(BackendError, match="Headstart's own state"):
            await hosted.create(mounts={str(state / "stores"): mode})


SWAPPING = """
mkdir -p d; echo mine > d/passwd
(for i in $(seq 2000); do mv d d2; ln -s /proc/1/root/etc d; rm d; mv d2 d; done; touch done) > /dev/null 2>&1 &
"""


async def test_a_folder_that_is_swapped_for_a_link_all_the_time_leads_nowhere(running: Running) -> None:
    async with talking(running, "swapped") as talk:
        await talk.bash(SWAPPING)
        seen: set[str] = set()
        with anyio.fail_after(PATIENCE_S):
            while "done" not in await talk.ok("list_files"):
                result = await talk.client.call_tool("read_file", {"path": "d/passwd"})
                seen.add("error" if result.is_error else result.content[0].text)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
                await talk.client.call_tool("write_file", {"path": "d/passwd", "content": "mine"})
        inside = await talk.bash("cat /etc/passwd")
        assert {each.strip() for each in seen} <= {"error", "mine", inside.strip()}


# ---------------------------------------------------------------- content


async def test_files_without_end_or_of_lines_alone_cost_no_more_than_their_size(running: Running) -> None:
    async with talking(running, "large") as talk:
        await talk.bash(
            "truncate -s 500G huge; truncate -s 63M sparse; head -c 60000000 /dev/zero | tr '\\0' '\\n' > lines"
        )
        before = most_memory(running)
        for path in ("huge", "sparse"):
            assert "is larger than 64 MB" in await talk.error("read_file", path=path) or path == "sparse"
        with anyio.fail_after(PATIENCE_S):
            told = await talk.ok("read_file", path="lines", start_line=59_000_000)
            assert "of 60,000,000; start_line" in told
            told = await talk.error("edit_file", path="lines", old="\n", new="x")
            assert "old is in lines 60000000 times: lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …" in told
            told = await talk.error("edit_file", path="lines", old="\n", new="x" * 1_000_000, replace_all=True)
            assert "would be larger than 64 MB" in told
        assert most_memory(running) - before < 500 * MB, "the file three times, as bytes and as text, is 180 MB"


async def test_a_piece_of_white_space_that_is_not_there_is_told(running: Running) -> None:
    async with talking(running, "white") as talk:
        await talk.ok("write_file", path="f", content="a\n")
        with anyio.fail_after(PATIENCE_S):
            assert "old is not in f\nhint: read_file shows" in await talk.error(
                "edit_file", path="f", old="\t", new=" "
            )


NAMES = """
import os
name = '\\x01' * 240
for _ in range(15):
    os.mkdir(name); os.chdir(name)
for number in range(20_000):
    os.close(os.open(name + str(number), os.O_CREAT | os.O_WRONLY))
print(os.getcwd().replace('\\x01', '?'))
"""


async def test_a_folder_of_endless_names_is_told_and_costs_nothing(running: Running) -> None:
    async with talking(running, "names") as talk:
        await talk.ok("python", code=NAMES)
        before = most_memory(running)
        deep = "/".join(["\x01" * 240] * 15)
        with anyio.fail_after(PATIENCE_S):
            assert "more in it than can be listed" in await talk.error("list_files", path=deep)
        assert most_memory(running) - before < 100 * MB


@pytest.mark.parametrize(
    ("tool", "argument", "code"),
    [
        ("bash", "command", "head -c 500000000 /dev/zero | tr '\\0' '\\n' >&2"),
        ("python", "code", "import os\nfor _ in range(1000): os.write(1, bytes(1_000_000))"),
        ("python", "code", "'x' * 300_000_000"),
        ("python", "code", "raise ValueError('x' * 300_000_000)"),
    ],
    ids=["lines", "written", "shown", "raised"],
)
async def test_a_gigabyte_of_output_leaves_the_service_as_it_was(
    tool: str, argument: str, code: str, running: Running
) -> None:
    async with talking(running, "output") as talk:
        await talk.ok(tool, **{argument: "1" if tool == "python" else "true"})
        before = most_memory(running)
        with anyio.fail_after(PATIENCE_S):
            await talk.client.call_tool(tool, {argument: code})
        assert most_memory(running) - before < 50 * MB


async def test_ten_gigabytes_of_output_are_taken_to_their_end_and_leave_the_service_as_it_was(running: Running) -> None:
    async with talking(running, "ten-gigabytes") as talk:
        await talk.bash("true")
        before = most_memory(running)
        with anyio.fail_after(PATIENCE_S):
            told = await talk.bash("head -c 10000000000 /dev/zero && echo all of it > written")
        assert len(told) < 1 * MB
        assert await talk.bash("cat written") == "all of it"
        assert most_memory(running) - before < 50 * MB
