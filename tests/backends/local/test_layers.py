"""Checkpoints of the local backend's sandboxes: what tries to write where nothing may change any more."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from headstart.backends.contract import (
    ByteStreams,
    Capture,
    Checkpoint,
    Command,
    Identity,
    Limits,
    Mount,
    MountMode,
    RunningSandbox,
)
from headstart.backends.local import LocalBackend
from headstart.backends.local.lineage import MOST_LAYERS
from headstart.backends.spawner.guest import processes
from headstart.backends.spawner.sandbox import SpawnedSandbox
from headstart.errors import BackendError, NotCapturable, TransactionRefused
from headstart.ids import SandboxId

from .driving import ENV, as_zygote, backend_in, output, sandbox_in, shell, template

pytestmark = pytest.mark.anyio

WRITES_TO_WHAT_IT_ONLY_READS = """
import errno, os, sys
os.chdir("/")
log = os.open("/home/sandbox/log", os.O_RDONLY)
print("ready", flush=True)
sys.stdin.readline()
for name, act in {
    "chmod": lambda: os.fchmod(log, 0o777),
    "reopen": lambda: os.open(f"/proc/self/fd/{log}", os.O_WRONLY),
    "times": lambda: os.utime(log, (1, 1)),
}.items():
    try:
        act()
        print(name, "worked", flush=True)
    except OSError as error:
        print(name, errno.errorcode[error.errno], flush=True)
"""

HOLDS = {
    "a file open for writing": "f = open('log', 'a'); os.chdir('/')",
    "a shared mapping": (
        "f = open('log', 'r+b'); m = mmap.mmap(f.fileno(), 0); f.close(); os.chdir('/');"
        "f = type('F', (), {'write': lambda s, t: m.__setitem__(0, ord(t[0])), 'flush': m.flush})()"
    ),
    "a working folder": "f = type('F', (), {'write': lambda s, t: open('log', 'a').write(t), 'flush': lambda s: 0})()",
    "a folder open": (
        "d = os.open('.', os.O_RDONLY); os.chdir('/');"
        "o = lambda p, n: os.open(p, n, 0o644, dir_fd=d);"
        "f = type('F', (), {'write': lambda s, t: open('log', 'a', opener=o).write(t), 'flush': lambda s: 0})()"
    ),
    "a file on its way through a socket": (
        "a, b = socket.socketpair(); g = open('log', 'a'); socket.send_fds(a, [b'x'], [g.fileno()]); g.close();"
        "os.chdir('/');"
        "t = lambda: os.fdopen(socket.recv_fds(b, 9, 1)[1][0], 'a');"
        "f = type('F', (), {'write': lambda s, x: t().write(x), 'flush': lambda s: 0})()"
    ),
}
HOLDER = """
import mmap, os, socket, sys
{hold}
print("ready", flush=True)
sys.stdin.readline()
f.write("x"); f.flush()
print("written", flush=True)
"""


def python(script: str) -> Command:
    return Command(argv=("/usr/bin/python3", "-c", script), env=ENV)


async def line(streams: ByteStreams) -> str:
    with anyio.fail_after(20):
        return (await streams.stdout.receive()).decode()


@asynccontextmanager
async def forked(sandbox: RunningSandbox, at: Checkpoint, name: str = "fork") -> AsyncGenerator[RunningSandbox]:
    fork = await sandbox.fork(at, Identity(sandbox=SandboxId(name)))
    try:
        yield fork
    finally:
        await fork.aclose()


@pytest.mark.parametrize("hold", HOLDS)
async def test_whoever_could_go_on_writing_does_so_on_the_live_side(hold: str, tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        await sandbox.files.write("log", b"1\n")
        async with sandbox.start(python(HOLDER.format(hold=HOLDS[hold]))) as holder:
            assert await line(holder) == "ready\n"
            kept = await sandbox.checkpoint(files_only=True)
            assert kept.capture is Capture.COPIED
            await holder.stdin.send(b"go on\n")
            assert await line(holder) == "written\n"
            live = await sandbox.files.read("log")
            assert b"x" in live
            async with forked(sandbox, kept) as fork:
                assert await fork.files.read("log") == b"1\n"


async def test_who_only_reads_cannot_change_what_was_sealed_by_any_way_back_to_it(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        await sandbox.files.write("log", b"1\n")
        async with sandbox.start(python(WRITES_TO_WHAT_IT_ONLY_READS)) as reader:
            assert await line(reader) == "ready\n"
            kept = await sandbox.checkpoint(files_only=True)
            assert kept.capture is Capture.SEALED
            await reader.stdin.send(b"now\n")
            with anyio.fail_after(20):
                told = b""
                while told.count(b"\n") < 3:
                    told += await reader.stdout.receive()
        assert told.decode().splitlines() == ["chmod EROFS", "reopen EROFS", "times EROFS"]
        await sandbox.files.write("log", b"2\n")
        assert await sandbox.files.read("log") == b"2\n"


async def test_layers_cannot_be_reached_from_inside(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        await sandbox.files.write("secret", b"before")
        await sandbox.checkpoint()
        for attack in (
            "ls /.headstart/closed",
            "ls /.headstart/closed/scratch/0",
            "chmod 777 /.headstart/closed",
            "mv /.headstart /tmp/x",
            "rmdir /.headstart/closed",
            "mount --bind /.headstart/closed /tmp",
        ):
            told = (await sandbox.run(shell(attack))).stderr.decode()
            assert any(
                words in told for words in ("ermission denied", "Read-only file system", "not permitted", "superuser")
            ), told


async def test_a_folder_from_before_can_be_moved(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        await output(sandbox, "mkdir -p a/b; echo 1 > a/b/c")
        kept = await sandbox.checkpoint()
        assert await output(sandbox, "mv a z; echo 2 > z/b/c; cat z/b/c; ls") == "2\nz"
        async with forked(sandbox, kept) as fork:
            assert await output(fork, "cat a/b/c; ls") == "1\na"


async def test_a_project_in_an_overlay_is_part_of_the_state(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir(mode=0o755)
    (project / "main.py").write_text("print(1)\n")
    (project / "main.py").chmod(0o666)  # where ids cannot be mapped, it is nobody's
    (project / "old.py").write_text("")
    for each in (tmp_path, project):
        each.chmod(0o755)
    mount = Mount(source=project, target=Path("/home/sandbox/project"), mode=MountMode.OVERLAY)
    async with sandbox_in(tmp_path / "state", template(mount)) as sandbox:
        await output(sandbox, "set -e; cd project; echo 'print(2)' > main.py; rm old.py; echo > new.py")
        kept = await sandbox.checkpoint()
        await output(sandbox, "cd project; rm -rf *; echo > other")
        async with forked(sandbox, kept) as fork:
            assert await output(fork, "cd project; ls; cat main.py; echo > mine") == "main.py\nnew.py\nprint(2)"
        assert await output(sandbox, "ls project") == "other"
    assert sorted(each.name for each in project.iterdir()) == ["main.py", "old.py"]


async def test_a_fork_of_a_zygote_says_that_it_has_no_layers(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path, as_zygote(template())) as sandbox:
        with pytest.raises(BackendError, match="has no layers"):
            await sandbox.checkpoint()


async def test_a_full_disk_fails_a_copy_and_leaves_the_sandbox_as_it_was(tmp_path: Path) -> None:
    small = replace(template(), limits=Limits(scratch_bytes=8_000_000))
    async with sandbox_in(tmp_path, small) as sandbox:
        await output(sandbox, "head -c 5000000 /dev/zero > big")
        async with sandbox.start(
            python("import sys; f = open('big', 'a'); print('ready', flush=True); input()")
        ) as held:
            await line(held)
            with pytest.raises(BackendError, match="No space left"):
                await sandbox.checkpoint(files_only=True)
        assert await output(sandbox, "stat -c %s big; head -c 2000000 /dev/zero > more && echo fits") == "5000000\nfits"
        kept = await sandbox.checkpoint()
        assert kept.capture is Capture.SEALED


async def test_a_helper_that_is_killed_over_a_copy_leaves_nothing_standing_still(tmp_path: Path) -> None:
    async with backend_in(tmp_path) as backend:
        prepared = await backend.prepare(template())
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("one")))
        await output(sandbox, "head -c 400000000 /dev/zero > big")
        ticking = "f = open('big', 'a')\nimport time\nwhile True: print('tick', flush=True); time.sleep(0.01)"
        async with sandbox.start(python(ticking)) as ticks:
            await line(ticks)
            keeping = asyncio.create_task(sandbox.checkpoint(files_only=True))
            with anyio.fail_after(20):
                while not (helpers := busy_helpers(spawner_of(backend), beside=sandbox)):  # noqa: ASYNC110
                    await anyio.sleep(0.002)
            [helper] = helpers
            os.kill(helper, signal.SIGKILL)
            with pytest.raises(BackendError, match="was killed"):
                await keeping
            with anyio.fail_after(20):
                for _ in range(50):
                    await ticks.stdout.receive()
        await output(sandbox, "rm big; echo 1 > n")
        kept = await sandbox.checkpoint()
        assert kept.capture is Capture.SEALED
        await sandbox.aclose()
        await prepared.aclose()


MOVED = {
    "a link in its place": "mv {way} {way}.moved; ln -s /home/sandbox {way}",
    "a link to where the layers are": "mv {way} {way}.moved; ln -s /.headstart/closed/scratch/0/w/upper/0 {way}",
    "a file in its place": "mv {way} {way}.moved; echo > {way}",
    "nothing in its place": "mv {way} {way}.moved",
}


@pytest.mark.parametrize("moved", MOVED)
async def test_no_link_leads_a_mount_to_another_place(moved: str, tmp_path: Path) -> None:
    """What leads to a mount is the sandbox's own; a checkpoint that followed links there would write anywhere."""
    folder = tmp_path / "shown"
    folder.mkdir(mode=0o755)
    for each in (tmp_path, folder):
        each.chmod(0o755)
    way = "/home/sandbox/way"
    async with sandbox_in(tmp_path / "state", template(Mount(source=folder, target=Path(way, "shown")))) as sandbox:
        await output(sandbox, MOVED[moved].format(way=way))
        with pytest.raises(BackendError, match="put it back"):
            await sandbox.checkpoint()
        assert await output(sandbox, f"rm -f {way}; mv {way}.moved {way}; ls; ls {way}") == "way\nshown"
        kept = await sandbox.checkpoint()
        assert kept.capture is Capture.SEALED
        async with forked(sandbox, kept) as fork:
            assert await output(fork, "ls; ls way") == "way\nshown"


NAMES = ["\\xff\\xfe", "a b", "x\\x1b[31m", "(1) R 1", "new\\nline"]


@pytest.mark.parametrize("name", NAMES)
async def test_names_from_inside_are_told_and_break_nothing(name: str, tmp_path: Path) -> None:
    script = (
        "import ctypes, mmap, os, sys\n"
        f"ctypes.CDLL(None).prctl(15, b'{name}')\n"
        f"p = b'/home/sandbox/m{name}'\n"
        "f = open(p, 'w+b'); f.write(b'x' * 4096); f.flush(); m = mmap.mmap(f.fileno(), 0); os.chdir('/')\n"
        "print('ready', flush=True); input()"
    )
    async with sandbox_in(tmp_path) as sandbox, sandbox.start(python(script)) as held:
        assert await line(held) == "ready\n"
        with pytest.raises(NotCapturable) as refusal:
            await sandbox.checkpoint()
        assert str(refusal.value).isprintable()
        kept = await sandbox.checkpoint(files_only=True)
        assert kept.capture is Capture.COPIED
        assert kept.left_out


@pytest.mark.parametrize(
    ("held", "counts"),
    [
        ("os.chdir('/')", False),
        ("os.chdir('/'); f = open('/etc/passwd')", False),
        ("pass", True),
        ("f = open('f', 'w'); os.chdir('/')", True),
        ("f = os.open('.', 0); os.chdir('/')", True),
        ("os.mkfifo('p'); f = os.open('p', os.O_RDWR); os.chdir('/')", True),
        ("import subprocess; os.chdir('/'); subprocess.Popen(['sleep', '1000'])", True),
    ],
)
async def test_a_command_that_is_kept_otherwise_counts_as_running_if_it_holds_something(
    held: str,
    counts: bool,
    tmp_path: Path,
) -> None:
    script = f"import os, sys\n{held}\nprint('ready', flush=True); input(); print(open('/home/sandbox/g').read())"
    async with sandbox_in(tmp_path) as sandbox, sandbox.start(python(script)) as waits:
        assert await line(waits) == "ready\n"
        await sandbox.files.write("g", b"before")
        with pytest.raises(NotCapturable):
            await sandbox.checkpoint()
        if counts:
            with pytest.raises(NotCapturable):
                await sandbox.checkpoint(beside=[waits])
        else:
            kept = await sandbox.checkpoint(beside=[waits])
            assert (kept.capture, kept.left_out) == (Capture.SEALED, ())
        await sandbox.files.write("g", b"after")
        await waits.stdin.send(b"\n")
        assert await line(waits) == "after\n", "it sees the files as they are now"


async def test_a_thread_that_its_first_one_has_left_behind_is_seen(tmp_path: Path) -> None:
    script = (
        "import ctypes, os, threading, time\n"
        "def go():\n time.sleep(0.05)\n print('ready', flush=True)\n time.sleep(1000)\n"
        "threading.Thread(target=go).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    async with sandbox_in(tmp_path) as sandbox, sandbox.start(python(script)) as held:
        assert await line(held) == "ready\n"
        with pytest.raises(NotCapturable, match="python"):
            await sandbox.checkpoint()


async def test_deep_folders_are_deleted_and_a_copy_of_them_is_refused(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        kept = await sandbox.checkpoint()
        deep = "for _ in $(seq 1500); do mkdir d; cd d; done; echo x > f"
        async with forked(sandbox, kept) as fork:
            await output(fork, f"{deep}; head -c 5000000 /dev/zero > ~/big")
        with anyio.fail_after(10):
            while int(await output(sandbox, "df --output=used -B1 /tmp | tail -1")) > 1_000_000:  # noqa: ASYNC110
                await anyio.sleep(0.02)
        await output(sandbox, deep)
        async with sandbox.start(python("f = open('log', 'a'); print('ready', flush=True); input()")) as held:
            await line(held)
            with pytest.raises(BackendError, match="too deeply"):
                await sandbox.checkpoint(files_only=True)
        assert (await sandbox.checkpoint()).capture is Capture.SEALED


async def test_the_top_of_an_overlay_keeps_what_it_has(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir(mode=0o755)
    for each in (tmp_path, project):
        each.chmod(0o755)
    os.utime(project, (1_000_000_000, 1_000_000_000))
    mount = Mount(source=project, target=Path("/home/sandbox/project"), mode=MountMode.OVERLAY)
    async with sandbox_in(tmp_path / "state", template(mount)) as sandbox:
        await sandbox.checkpoint()
        assert await output(sandbox, "stat -c %Y project") == "1000000000"
        await output(sandbox, "chmod 701 project")
        kept = await sandbox.checkpoint()
        assert kept.capture is Capture.SEALED
        async with forked(sandbox, kept) as fork:
            assert await output(fork, "stat -c '%a %Y' project") == "701 1000000000"


async def test_layers_of_forks_that_end_together_are_all_deleted(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        kept = await sandbox.checkpoint()
        forks = [await sandbox.fork(kept, Identity(sandbox=SandboxId(f"fork{number}"))) for number in range(4)]
        for fork in forks:
            await output(fork, "head -c 5000000 /dev/zero > big")
        async with anyio.create_task_group() as tasks:
            for fork in forks:
                tasks.start_soon(fork.aclose)
        with anyio.fail_after(10):
            while int(await output(sandbox, "df --output=used -B1 /tmp | tail -1")) > 1_000_000:  # noqa: ASYNC110
                await anyio.sleep(0.02)


async def test_what_nobody_needs_any_more_is_deleted(tmp_path: Path) -> None:
    small = replace(template(), limits=Limits(scratch_bytes=20_000_000))
    async with sandbox_in(tmp_path, small) as sandbox:
        current = sandbox
        start = await current.checkpoint()
        for number in range(12):  # 60 MB in all
            kept = await current.checkpoint()
            async with forked(current, kept, f"fork{number}") as fork:
                await output(fork, "head -c 5000000 /dev/zero > big")
            await output(current, "head -c 5000000 /dev/zero > big")
            again = await current.checkpoint()
            back = await current.fork(start, Identity(sandbox=SandboxId(f"back{number}")))
            await current.aclose()
            await back.forget(kept)
            await back.forget(again)
            current = back
            with anyio.fail_after(10):
                while int(await output(current, "df --output=used -B1 /tmp | tail -1")) > 6_000_000:  # noqa: ASYNC110
                    await anyio.sleep(0.02)
        await current.aclose()


async def test_too_many_layers_are_refused_with_the_cure(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        for number in range(MOST_LAYERS - 1):
            await sandbox.files.write("n", b"%d" % number)
            await sandbox.checkpoint()
        await sandbox.files.write("n", b"last")
        with pytest.raises(TransactionRefused, match="layers") as refused:
            await sandbox.checkpoint()
        assert refused.value.hint
        assert refused.value.hint.startswith("drop checkpoints")
        assert await sandbox.files.read("n") == b"last"


@pytest.mark.parametrize("times", range(3))
async def test_who_cancels_a_checkpoint_finds_the_sandbox_as_it_was_or_is(times: int, tmp_path: Path) -> None:
    """Whatever asyncio cancels meanwhile, the next checkpoint knows what this one has done."""
    async with sandbox_in(tmp_path) as sandbox:
        for number in range(6):
            await sandbox.files.write("n", b"%d" % number)
            checkpoint = asyncio.create_task(sandbox.checkpoint())
            for _ in range(number + times * 3):
                await asyncio.sleep(0)
            checkpoint.cancel()
            with pytest.raises(asyncio.CancelledError):
                await checkpoint
            assert await sandbox.files.read("n") == b"%d" % number
        kept = await sandbox.checkpoint()
        await sandbox.files.write("n", b"else")
        async with forked(sandbox, kept) as fork:
            assert await fork.files.read("n") == b"5"


async def test_files_that_are_being_written_are_waited_for(tmp_path: Path) -> None:
    content = b"x" * 20_000_000
    async with sandbox_in(tmp_path) as sandbox, anyio.create_task_group() as tasks:
        tasks.start_soon(sandbox.files.write, "big", content)
        while not (await output(sandbox, "ls -A")):
            await anyio.lowlevel.checkpoint()
        kept = await sandbox.checkpoint()
        async with forked(sandbox, kept) as fork:
            assert await fork.files.read("big") == content


async def test_terminals_and_processes_files_are_where_they_were(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        await sandbox.checkpoint()
        told = await output(
            sandbox, "python3 -c 'import pty; pty.openpty(); print(1)'; cat /proc/1/comm; ls /proc | grep -c '^[0-9]'"
        )
        terminal, init, processes = told.splitlines()
        assert (terminal, init) == ("1", "python")
        assert int(processes) <= 5


async def test_nothing_is_left_of_checkpoints_and_forks(tmp_path: Path) -> None:
    async with backend_in(tmp_path) as backend:
        prepared = await backend.prepare(template())
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("one")))
        await prepared.aclose()
        kept = await sandbox.checkpoint()
        fork = await sandbox.fork(kept, Identity(sandbox=SandboxId("two")))
        await sandbox.aclose()
        await fork.checkpoint()
        await fork.aclose()
        left = await backend.leftovers()
        assert (left.processes, left.cgroups, left.directories) == (0, 0, 0)
        assert mounts_below(backend) == 0


def spawner_of(backend: LocalBackend) -> int:
    return backend._client.pid  # pyright: ignore[reportPrivateUsage]


def busy_helpers(spawner: int, beside: RunningSandbox) -> list[int]:
    """Children of the spawner that have copied a lot already."""
    assert isinstance(beside, SpawnedSandbox)
    found: list[int] = []
    for pid in set(processes.children(spawner)) - {beside.pid}:
        try:
            counted = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        except OSError:
            continue  # it has ended
        if int(counted["wchar"]) > 20_000_000:
            found.append(pid)
    return found


def mounts_below(backend: LocalBackend) -> int:
    """Count mounts of ours in the spawner's own namespace."""
    spawner = spawner_of(backend)
    lines = Path(f"/proc/{spawner}/mountinfo").read_text().splitlines()
    own = Path(f"/proc/{os.getpid()}/mountinfo").read_text().splitlines()
    return max(0, len(lines) - len(own)) if os.geteuid() == 0 else 0
