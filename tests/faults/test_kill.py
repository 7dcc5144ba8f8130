"""kill -9 in the middle of a load: within a second nothing runs, and the next start cleans up.

The second is a claim about Headstart, not about whoever else wants the machine's CPUs: it is
counted without the time that the test itself, which only looks on, stood in line for a CPU.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.left_behind import in_line_s, keepers, noted_namespaces

from headstart.backends.contract import Command, Identity, Leftovers, Template
from headstart.backends.local import open_local_backend
from headstart.backends.process import open_process_backend
from headstart.backends.spawner.guest.runs import remove_cgroup
from headstart.cli.remains import Watched, watch
from headstart.errors import BackendUnavailable
from headstart.ids import SandboxId

WITHIN_S = 1.0
WATCHED_S = 30.0
"""How long a test looks on before it gives up; so late, something hangs."""
QUIET_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A running load and where it leaves its traces.

    Attributes:
        watched: The service and all below it, as they were when all sandboxes had started.
    """

    process: subprocess.Popen[str]
    facts: dict[str, Any]
    state: Path
    beats: Path
    watched: Watched

    def hearts(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in self.beats.iterdir()}

    def survivors(self) -> list[str]:
        """Command lines of servers, spawner and helpers: all name our directories, as the host sees them.

        The service itself is none of them: either it was killed, or it may take its time to say what it misses.
        """
        lines = command_lines(but={os.getpid(), self.process.pid})
        return [line for line in lines if str(self.beats) in line or str(self.state) in line]

    def left(self) -> list[str]:
        """What is still there of sandboxes and spawner: processes, until the kernel has torn them down, and mounts."""
        alive = [f"process {pid}" for pid in self.watched.remains().processes if pid != self.process.pid]
        return [*self.survivors(), *alive, *self.mounts()]

    def mounts(self) -> list[str]:
        return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self.state) in line]


def command_lines(*, but: set[int]) -> list[str]:
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in but:
            with suppress(OSError):  # it has ended meanwhile
                found.append((entry / "cmdline").read_text().replace("\0", " "))
    return found


@contextmanager
def load(kind: str, workspace: Path) -> Generator[Load]:
    state, beats = workspace / "state", workspace / "beats"
    state.mkdir(mode=0o700)
    beats.mkdir()
    beats.chmod(0o777)
    log = workspace / "log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("load.py")), kind, str(state), str(beats)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            process.wait(10)
            said = log.read_text()
            if "BackendUnavailable" in said:
                pytest.skip(f"the {kind} backend cannot run here: {said.strip().splitlines()[-1]}")
            raise AssertionError(said[-3000:])
        yield Load(
            process=process,
            facts=json.loads(line),
            state=state,
            beats=beats,
            watched=watch(process.pid, state_dir=state),
        )
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        kill_all_that_name(state)


def kill_all_that_name(state: Path) -> None:
    """Leave nothing on the machine, whatever the test has found."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):  # it has ended meanwhile, or is no process
            if int(entry.name) != os.getpid() and str(state) in (entry / "cmdline").read_text():
                os.kill(int(entry.name), signal.SIGKILL)
    for listing in state.glob("*/run-*/cgroups"):
        for group in reversed(listing.read_text().split()):
            remove_cgroup(group)


def expect_silence(running: Load, killed_s: float) -> None:
    """Require that nothing is left after a second (of a machine that has a CPU for us), and nothing writes any more."""
    queued_s = in_line_s()
    while running.left() and time.monotonic() - killed_s < WATCHED_S:
        time.sleep(0.01)
    took_s, waited_s = time.monotonic() - killed_s, in_line_s() - queued_s
    told = f"the last of it was gone after {took_s:.2f} s, {waited_s:.2f} s of which we stood in line for a CPU"
    sys.stdout.write(told + "\n")  # `pytest -rP` shows it
    assert running.left() == []
    assert took_s - waited_s < WITHIN_S, told
    before = running.hearts()
    time.sleep(QUIET_S)
    assert running.hearts() == before, "something still writes"


def expect_beating(running: Load, count: int) -> None:
    """Require that so many hearts beat once more, however busy the machine is."""
    before, began_s = running.hearts(), time.monotonic()
    grown: set[str] = set()
    while len(grown) < count:
        assert time.monotonic() - began_s < 30, f"only {sorted(grown)} still beat"
        time.sleep(0.05)
        grown = {name for name, size in running.hearts().items() if size > before.get(name, 0)}


def kill(pid: int) -> float:
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


@pytest.fixture(params=["local", "process", "local-forked", "process-forked"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["local", "process"])
def cold(request: pytest.FixtureRequest) -> str:
    """For what does not depend on how sandboxes were started; a load of zygotes takes seconds to prepare."""
    return request.param


def test_without_a_kill_the_load_stays_alive(cold: str, tmp_path: Path) -> None:
    with load(cold, tmp_path) as running, noted_namespaces(running.watched.started) as namespaces:
        assert len(running.survivors()) > 8
        assert len(keepers(namespaces)) > 8 or cold == "process"
        expect_beating(running, 24)  # servers, sessions and daemons of eight sandboxes


def test_nothing_outlives_a_killed_runtime(kind: str, tmp_path: Path) -> None:
    with load(kind, tmp_path) as running, noted_namespaces(running.watched.started) as namespaces:
        expect_silence(running, kill(running.process.pid))
        assert keepers(namespaces) == []


def test_nothing_outlives_a_killed_spawner(cold: str, tmp_path: Path) -> None:
    with load(cold, tmp_path) as running:
        expect_silence(running, kill(running.facts["spawner"]))


def test_nothing_outlives_a_spawner_that_is_killed_while_it_builds_a_file_tree(tmp_path: Path) -> None:
    with load("local", tmp_path) as running:
        stop_with_a_finished_builder(running.facts["spawner"], running)
        expect_silence(running, kill(running.facts["spawner"]))


def stop_with_a_finished_builder(spawner: int, running: Load) -> None:
    """Stop the spawner while it has a child that has built a tree and waits to be ended."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        os.kill(spawner, signal.SIGSTOP)
        builders = [child for child in children(spawner) if bears(child, str(running.state))]
        if builders and sleeps_soon(builders[0]):
            return
        os.kill(spawner, signal.SIGCONT)
        time.sleep(0.001)  # let it get on; every stop finds it somewhere else
    raise AssertionError("the spawner was never seen to build a file tree")


def bears(pid: int, word: str) -> bool:
    """Tell whether a process's command line holds `word`: builders still bear the spawner's."""
    with suppress(OSError):  # it has ended meanwhile
        return word in Path(f"/proc/{pid}/cmdline").read_text()
    return False


def sleeps_soon(pid: int) -> bool:
    """Return whether a process comes to rest: asleep, twenty looks in a row."""
    looks = 0
    for _ in range(400):
        with suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            looks = looks + 1 if state == "S" else 0
        if looks == 20:
            return True
        time.sleep(0.001)
    return False


def test_nothing_outlives_a_runtime_and_a_spawner_killed_together(cold: str, tmp_path: Path) -> None:
    with load(cold, tmp_path) as running:
        os.kill(running.facts["spawner"], signal.SIGSTOP)  # it cannot lend a hand
        killed_s = kill(running.process.pid)
        os.kill(running.facts["spawner"], signal.SIGKILL)
        expect_silence(running, killed_s)


def test_nothing_outlives_a_runtime_a_spawner_and_inits_killed_together(kind: str, tmp_path: Path) -> None:
    with load(kind, tmp_path) as running, noted_namespaces(running.watched.started) as namespaces:
        inits = [init_of(f"server-{index}", running) for index in range(4)]
        os.kill(running.facts["spawner"], signal.SIGSTOP)  # it cannot lend a hand
        os.kill(running.process.pid, signal.SIGSTOP)
        for init in inits:
            os.kill(init, signal.SIGKILL)
        os.kill(running.facts["spawner"], signal.SIGKILL)
        expect_silence(running, kill(running.process.pid))
        assert keepers(namespaces) == []


def test_a_stopped_spawner_goes_with_the_runtime_and_so_does_what_it_started(cold: str, tmp_path: Path) -> None:
    with load(cold, tmp_path) as running:
        os.kill(running.facts["spawner"], signal.SIGSTOP)
        expect_silence(running, kill(running.process.pid))


def test_a_file_tree_that_never_gets_built_does_not_keep_the_spawner_from_going_with_the_runtime(
    tmp_path: Path,
) -> None:
    with load("local", tmp_path) as running:
        stop_a_builder(running.facts["spawner"], running)
        expect_silence(running, kill(running.process.pid))


def stop_a_builder(spawner: int, running: Load) -> None:
    """Stop a child of the spawner that builds a tree, so that the spawner waits for it."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        os.kill(spawner, signal.SIGSTOP)
        builders = [child for child in children(spawner) if is_builder(child, spawner, running)]
        for builder in builders:
            os.kill(builder, signal.SIGSTOP)
        os.kill(spawner, signal.SIGCONT)
        if builders and sleeps_soon(spawner) and builders[0] in children(spawner):
            return
        time.sleep(0.001)  # let it get on; every stop finds it somewhere else
    raise AssertionError("the spawner was never seen to wait for a file tree")


def is_builder(child: int, spawner: int, running: Load) -> bool:
    """Tell builders from processes that are just being parked: those have a PID namespace of their own."""
    with suppress(OSError):  # it has ended meanwhile
        here, there = (Path(f"/proc/{pid}/ns/pid").readlink() for pid in (spawner, child))
        return here == there and bears(child, str(running.state))
    return False


def test_a_killed_init_takes_its_sandbox_along_and_no_other(kind: str, tmp_path: Path) -> None:
    with load(kind, tmp_path) as running:
        kill(init_of("server-3", running))
        time.sleep(WITHIN_S)
        before = running.hearts()
        time.sleep(QUIET_S)
        after = running.hearts()
        alive = {name.rsplit("-", 1)[0] for name, size in after.items() if size > before.get(name, 0)}
        assert "server-3" not in alive
        assert alive >= {f"server-{index}" for index in range(8) if index != 3}


def init_of(name: str, running: Load) -> int:
    """Find the innermost process that has everything of one server below it."""
    candidates = [running.facts["spawner"]]
    found = 0
    while candidates:
        found = candidates[0]
        candidates = [
            child
            for child in children(found)
            if sum(f" {name} " in line + " " for line in below(child)) >= SERVERS_HEARTS
        ]
    assert found != running.facts["spawner"], "no init was found"
    return found


SERVERS_HEARTS = 3


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []  # it has ended meanwhile


def below(pid: int) -> list[str]:
    """Command lines of everything below `pid`."""
    lines: list[str] = []
    for child in children(pid):
        with suppress(OSError):  # it has ended meanwhile
            lines.append(Path(f"/proc/{child}/cmdline").read_text().replace("\0", " "))
        lines.extend(below(child))
    return lines


def cgroups_of(state: Path) -> list[Path]:
    """Groups whose names stand in this state directory's own records."""
    names = {word for file in state.rglob("*") if file.is_file() and file.stat().st_size < 100_000
             for word in file.read_text(errors="ignore").split() if word.startswith("/sys/fs/cgroup")}  # fmt: skip
    return [Path(name) for name in names if Path(name).exists()]


def folders_of(state: Path) -> list[str]:
    return sorted(str(path.relative_to(state)) for path in state.rglob("*") if path.is_dir() and path.parent != state)


@pytest.mark.anyio
async def test_the_next_start_removes_what_a_killed_one_left(kind: str, tmp_path: Path) -> None:
    with load(kind, tmp_path) as running:
        groups = cgroups_of(running.state)
        expect_silence(running, kill(running.process.pid))
    open_backend = open_local_backend if kind.startswith("local") else open_process_backend
    try:
        async with open_backend(running.state) as backend:
            prepared = await backend.prepare(Template(name="next", command=Command(argv=("/bin/cat",))))
            sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("sbx_next")))
            assert (await sandbox.run(Command(argv=("/bin/true",)), timeout_s=10)).status.code == 0
            await sandbox.aclose()
            await prepared.aclose()
            with anyio.fail_after(5):
                while any(group.exists() for group in groups):  # noqa: ASYNC110 - the kernel empties them
                    await anyio.sleep(0.02)
    except BackendUnavailable as gap:
        pytest.skip(f"the {kind} backend cannot run here: {gap}")
    assert await backend.leftovers() == Leftovers()
    assert folders_of(running.state) == []
    assert running.mounts() == []
    if kind.startswith("local") and os.geteuid() == 0:
        assert groups, "the load had groups of its own, which the test knew of"


@pytest.mark.anyio
async def test_nothing_is_left_of_a_check_that_was_killed(
    cold: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with load(f"{cold}-checking", tmp_path) as running:
        expect_silence(running, kill(running.process.pid))
    async with (open_local_backend if cold == "local" else open_process_backend)(running.state):
        pass
    assert list(temporary.iterdir()) == []
    assert folders_of(running.state) == []


@pytest.mark.anyio
async def test_two_services_on_one_machine_do_not_clean_up_each_other(cold: str, tmp_path: Path) -> None:
    open_backend = open_local_backend if cold.startswith("local") else open_process_backend
    with load(cold, tmp_path) as running:
        async with open_backend(running.state) as second:
            await second.prepare(Template(name="second", command=Command(argv=("/bin/cat",))))
        await anyio.to_thread.run_sync(expect_beating, running, 24)  # the first one's sandboxes are alive
