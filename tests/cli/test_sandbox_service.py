"""`headstart sandbox …` with a running service, as a user types it."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.running import wait_until
from tests.machine import may_make_namespaces

from headstart.backends.spawner.guest.processes import descendants, is_alive

pytestmark = pytest.mark.skipif(
    not may_make_namespaces(), reason="the local backend cannot run here: this user may make no namespaces"
)

SOON_S = 30.0
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command that has ended."""

    status: int
    out: bytes
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def told(self) -> tuple[int, str, list[str]]:
        return self.status, self.out.decode(), self.err.splitlines()


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service that runs, and the commands that are typed at it."""

    process: subprocess.Popen[bytes]
    folder: Path
    log: Path

    def start(
        self,
        *words: str | bytes,
        stdin: int = subprocess.DEVNULL,
        out: int = subprocess.PIPE,
        new_session: bool = False,
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "headstart", "sandbox", *words]
        return subprocess.Popen(
            command,
            env=self.env,
            cwd=self.folder,
            stdin=stdin,
            stdout=out,
            stderr=out,
            start_new_session=new_session,
        )

    @contextmanager
    def running(self, *words: str | bytes, stdin: int = subprocess.DEVNULL) -> Generator[subprocess.Popen[bytes]]:
        """Run a command that need not end by itself."""
        with self.start(*words, stdin=stdin) as process:
            try:
                yield process
            finally:
                process.kill()

    def do(self, *words: str | bytes, given: bytes | None = None) -> Done:
        stdin = subprocess.DEVNULL if given is None else subprocess.PIPE
        with self.running(*words, stdin=stdin) as process:
            out, err = process.communicate(given, timeout=60)
        return Done(status=process.returncode, out=out, err=err.decode())

    def create(self, *words: str) -> str:
        """Make a sandbox and return its name."""
        name = f"box-{next(_numbers)}"
        done = self.do("create", "--name", name, *words)
        assert done.status == 0, done.err
        return name

    def id_of(self, name: str) -> str:
        found: str = self.do("show", name).json["id"]
        return found

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "HEADSTART_STATE_DIR": str(self.folder / "state"), "XDG_CONFIG_HOME": str(self.folder)}


@contextmanager
def serving(folder: Path) -> Generator[Service]:
    log = folder / "log"
    (folder / "home").mkdir()
    with log.open("wb") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", "headstart", "serve", "--port", "0", "--state-dir", str(folder / "state")],
            cwd=folder,
            env={**os.environ, "XDG_CONFIG_HOME": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=told,
        )
    try:
        wait_until((folder / "state" / "service.json").exists, within_s=SOON_S, what="the service serves")
        yield Service(process=process, folder=folder, log=log)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Generator[Service]:
    with serving(tmp_path_factory.mktemp("service")) as running:
        yield running
        told = running.log.read_text()
        assert "Traceback" not in told, told


# ---------------------------------------------------------------- a terminal


@dataclass(slots=True)
class Terminal:
    """A command on a pty of ours."""

    process: subprocess.Popen[bytes]
    descriptor: int
    shown: bytes = b""
    modes: list[Any] = field(default_factory=list[Any])

    def type(self, text: bytes) -> None:
        os.write(self.descriptor, text)

    def until(self, expected: bytes) -> bytes:
        """Return what is shown up to this, which is taken."""
        deadline = time.monotonic() + SOON_S
        while expected not in self.shown:
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"{expected!r} was not shown, but {self.shown!r}"
            if select.select([self.descriptor], [], [], left_s)[0]:
                try:
                    self.shown += os.read(self.descriptor, 65_536)
                except OSError:
                    raise AssertionError(f"{expected!r} was not shown, but {self.shown!r}") from None
        before, _, self.shown = self.shown.partition(expected)
        return before + expected

    def ends(self) -> int:
        """Return the exit status."""
        deadline = time.monotonic() + SOON_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown
            if select.select([self.descriptor], [], [], 0.05)[0]:
                with suppress(OSError):
                    self.shown += os.read(self.descriptor, 65_536)
        while select.select([self.descriptor], [], [], 0)[0]:
            try:
                self.shown += os.read(self.descriptor, 65_536)
            except OSError:
                break
        return self.process.returncode


@contextmanager
def on_terminal(service: Service, *words: str, rows: int = 24, columns: int = 80) -> Generator[Terminal]:
    ours, theirs = pty.openpty()
    resize(ours, rows, columns)
    modes = termios.tcgetattr(theirs)
    process = service.start(*words, stdin=theirs, out=theirs, new_session=True)
    terminal = Terminal(process, ours, modes=modes)
    try:
        yield terminal
        assert termios.tcgetattr(theirs) == modes, "the terminal's modes are what they were"
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def resize(descriptor: int, rows: int, columns: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))


# ---------------------------------------------------------------- create, list, show, kill


def test_the_service_starts_without_a_config_and_says_what_it_does(service: Service) -> None:
    told = service.log.read_text()
    assert "hosts sandboxes (headstart sandbox create)" in told
    assert "Traceback" not in told


def test_what_is_created_is_listed_shown_and_killed_as_json_when_piped(service: Service) -> None:
    made = service.do("create", "--name", "mine", "--idle", "1000", "--env", "WHO=me")
    assert (made.status, made.err) == (0, "")
    assert made.json["name"] == "mine"
    box = made.json["id"]
    (listed,) = [each for each in service.do("list").json["sandboxes"] if each["id"] == box]
    assert (listed["name"], listed["state"], listed["ends_after_idle_s"]) == ("mine", "running", 1000)
    assert service.do("show", box[:10]).json["id"] == box
    assert service.do("kill", "mine").told == (0, "", [])
    assert box not in [each["id"] for each in service.do("list").json["sandboxes"]]
    ended = service.do("show", box)
    assert ended.told == (
        1,
        "",
        [f"error: {box} has ended: it was killed", "hint: headstart sandbox list shows who lives"],
    )


def test_the_id_alone_is_printed_when_that_is_wanted(service: Service) -> None:
    box = service.do("create", "-q").out.decode().strip()
    assert re.fullmatch(r"box_[0-9a-f]{24}", box)
    kept = service.do("checkpoint", box, "-q").out.decode().strip()
    assert kept.startswith("chk_")
    branch = service.do("fork", box, "-q").out.decode().strip()
    assert branch.startswith("box_")
    assert service.do("kill", box).status == 0


def test_all_are_killed_only_if_all_are_there(service: Service) -> None:
    one, other = service.create(), service.create()
    refused = service.do("kill", one, "nonesuch", other)
    assert (refused.status, refused.err.splitlines()[0]) == (1, "error: there is no sandbox 'nonesuch'")
    names = {each["name"] for each in service.do("list").json["sandboxes"]}
    assert {one, other} <= names
    assert service.do("kill", one, other, one).told == (0, "", [])
    assert service.do("kill").told[::2] == (
        2,
        ["error: headstart sandbox kill: say which", "hint: give ids or names, or --all"],
    )


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("show", "nonesuch"), 1, "error: there is no sandbox 'nonesuch'"),
        (("pause", "nonesuch"), 1, "error: there is no sandbox 'nonesuch'"),
        (("run", "--in", "nonesuch", "true"), 125, "error: there is no sandbox 'nonesuch'"),
        (("create", "--name", "no way"), 2, "error: name: 'no way' cannot be a sandbox's name"),
        (("create", "--idle", "nan"), 2, "error: ends_after_idle_s: nan is no time"),
        (("create", "--idle", "-3"), 2, "error: ends_after_idle_s: -3 is no time"),
        (("create", "--memory", "-3"), 2, "error: memory_mb: -3 is not possible"),
        (("create", "--network", "all"), 2, "error: network: there is no network 'all'"),
        (("create", "--mount", "/nonesuch"), 1, "error: sandbox: /nonesuch is to be mounted, but does not exist"),
        (("ls", "nonesuch"), 1, "error: there is no sandbox 'nonesuch'"),
        (("cp", "a", "b"), 2, "error: headstart sandbox cp: one of the two must be in a sandbox"),
        (("cp", "x:a", "y:b"), 2, "error: headstart sandbox cp: one of the two must be in a sandbox"),
        (("commit", "nonesuch"), 1, "error: there is no sandbox 'nonesuch'"),
        (("shell",), 2, "error: headstart sandbox shell: this is no terminal"),
        (("lst",), 2, "error: headstart sandbox: no such command 'lst'"),
    ],
)
def test_what_cannot_be_is_told_in_one_line_and_a_hint(
    words: Sequence[str], status: int, told: str, service: Service
) -> None:
    before = len(service.do("list").json["sandboxes"])
    done = service.do(*words)
    assert (done.status, done.out) == (status, b"")
    assert done.err.splitlines()[0].startswith(told)
    assert [line.partition(":")[0] for line in done.err.splitlines()] == ["error", "hint"]
    assert len(service.do("list").json["sandboxes"]) == before


@pytest.mark.parametrize(
    "words", [("list",), ("create",), ("kill", "--all"), ("run", "--in", "x", "true"), ("events",)]
)
def test_without_a_service_each_command_says_how_to_start_one(words: Sequence[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headstart", "sandbox", words[0], "--state-dir", str(tmp_path / "none"), *words[1:]],
        capture_output=True,
        timeout=60,
        check=False,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr.splitlines()) == (
        125 if words[0] == "run" else 1,
        "",
        [f"error: no headstart service hosts sandboxes in {tmp_path / 'none'}", "hint: start one: headstart serve"],
    )
    assert not (tmp_path / "none").exists()


def test_on_a_terminal_there_is_a_table_that_fits_it(service: Service) -> None:
    name = service.create()
    branch = service.do("fork", name, "-q").out.decode().strip()
    service.do("checkpoint", name)
    for words in (("list",), ("show", name)):
        with on_terminal(service, *words) as terminal:
            assert terminal.ends() == 0
            lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.shown.decode()).splitlines()
            assert max(len(line) for line in lines) <= 80, terminal.shown.decode()
            assert any(f"  {branch[:12]}  -  " in line for line in lines), "what is enough of an id is one word"
            assert not any(line.startswith("{") for line in lines)
    with on_terminal(service, "list", "--json") as terminal:
        assert terminal.ends() == 0
        assert json.loads(terminal.shown)["sandboxes"]
    service.do("kill", name)


# ---------------------------------------------------------------- run


def test_a_command_runs_in_a_sandbox_that_lives_and_finds_what_others_have_left(service: Service) -> None:
    name = service.create("--env", "WHO=me")
    first = service.do("run", "--in", name, 'echo "$WHO" | tee f; echo err >&2; exit 3')
    assert first.told == (3, "me\n", ["err"])
    assert service.do("run", "--in", name, "--cwd", "/usr", "--env", "X=y", 'cat ~/f; pwd; echo "$X"').out == (
        b"me\n/usr\ny\n"
    )
    assert service.do("run", "--in", name, "cat", given=b"given\xff").out == b"given\xff"
    assert service.do("run", "--in", name, "--", "printf", "%s", "--in").out == b"--in"
    assert service.do("run", "--in", name, "kill -9 $$").status == 137
    late = service.do("run", "--in", name, "--timeout", "0.2", "sleep", "60")
    assert late.told == (124, "", ["error: 'sleep 60' had not ended after 0.2 s, and was killed"])
    refused = service.do("run", "--in", name, "--network", "host", "true")
    assert refused.told == (
        125,
        "",
        [
            f"error: --network: {name} has been made already",
            "hint: say it when you create one: headstart sandbox create",
        ],
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_when_a_run_is_ended_its_command_is_and_its_sandbox_is_not(number: signal.Signals, service: Service) -> None:
    name = service.create()
    with service.running("run", "--in", name, "echo up; sleep 1000 & sleep 1000") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(number)
        assert process.wait(30) in {130, -number}
        assert process.stderr is not None
        assert process.stderr.read() == b""
    wait_until(
        lambda: service.do("run", "--in", name, "grep -lsx sleep /proc/[0-9]*/comm | wc -l").out == b"0\n",
        what="the command has ended",
    )


def test_who_does_not_want_more_output_ends_the_command(service: Service) -> None:
    name = service.create()
    with service.running("run", "--in", name, "yes") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        assert process.wait(30) != 0
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    wait_until(
        lambda: service.do("run", "--in", name, "grep -lsx yes /proc/[0-9]*/comm | wc -l").out == b"0\n",
        what="the command has ended",
    )


# ---------------------------------------------------------------- files


def test_files_go_in_and_come_out_with_their_modes(service: Service, tmp_path: Path) -> None:
    name = service.create()
    given = tmp_path / "script"
    given.write_bytes(b"\x00\xff" * 1_000)
    given.chmod(0o750)
    assert service.do("cp", str(given), f"{name}:").told == (0, "", [])
    assert service.do("cp", str(given), f"{name}:other").told == (0, "", [])
    assert service.do("run", "--in", name, "stat -c '%a %s' script other").out == b"750 2000\n750 2000\n"
    assert service.do("cp", f"{name}:script", str(tmp_path / "back")).told == (0, "", [])
    assert service.do("cp", f"{name}:script", str(tmp_path / "folder/")).status in {0, 1}
    assert (tmp_path / "back").read_bytes() == given.read_bytes()
    assert (tmp_path / "back").stat().st_mode & 0o777 == 0o750
    (tmp_path / "into").mkdir()
    assert service.do("cp", f"{name}:/home/sandbox/script", str(tmp_path / "into")).told == (0, "", [])
    assert [each.name for each in (tmp_path / "into").iterdir()] == ["script"]
    (tmp_path / "link").symlink_to(given)
    assert service.do("cp", str(tmp_path / "link"), f"{name}:linked").told == (0, "", [])
    assert service.do("run", "--in", name, "stat -c '%F %s' linked").out == b"regular file 2000\n"


ODD = (b"a b", b"new\nline", b"\xff\xfe", b"-dash", b"a:b", b"\x1b[31mred", "é".encode(), b"'\"$`\\")


def test_folders_go_in_and_come_out_whole_whatever_is_in_them_is_called(service: Service, tmp_path: Path) -> None:
    name = service.create()
    given = tmp_path / "given"
    (given / "below" / "empty").mkdir(parents=True)
    for odd in ODD:
        Path(os.fsdecode(os.fsencode(given / "below") + b"/" + odd)).write_bytes(odd)
    (given / "link").symlink_to("below")
    os.mkfifo(given / "fifo")
    (given / "below").chmod(0o700)
    refused = service.do("cp", str(given), f"{name}:")
    assert refused.told == (2, "", [f"error: {given}: is a folder", "hint: copy it with -r"])
    assert service.do("ls", name).json["files"] == []
    done = service.do("cp", "-r", str(given), f"{name}:")
    assert (done.status, sorted(done.err.splitlines())) == (
        0,
        [f"passed over: {given}/{each} is neither a file nor a folder" for each in ("fifo", "link")],
    )
    listed = service.do("ls", f"{name}:given/below").json["files"]
    assert sorted(os.fsencode(each["name"]) for each in listed) == sorted([*ODD, b"empty"])
    assert service.do("cp", "-r", f"{name}:given", str(tmp_path / "back")).told == (0, "", [])
    for odd in ODD:
        assert Path(os.fsdecode(os.fsencode(tmp_path / "back" / "below") + b"/" + odd)).read_bytes() == odd
    assert (tmp_path / "back" / "below" / "empty").is_dir()
    with on_terminal(service, "ls", f"{name}:given/below") as terminal:
        assert terminal.ends() == 0
        assert len(terminal.shown.splitlines()) == len(listed)
        assert b"\x1b[31m" not in terminal.shown


@pytest.mark.parametrize("odd", ODD)
def test_a_file_of_any_name_can_be_named(odd: bytes, service: Service, tmp_path: Path) -> None:
    name = service.create()
    path = os.fsencode(tmp_path) + b"/" + odd
    Path(os.fsdecode(path)).write_bytes(b"content")
    assert service.do("cp", path, f"{name}:").told == (0, "", [])
    assert service.do("cp", name.encode() + b":" + odd, str(tmp_path / "back")).told == (0, "", [])
    assert (tmp_path / "back").read_bytes() == b"content"


def test_what_cannot_be_copied_is_told_and_leaves_what_was_there(service: Service, tmp_path: Path) -> None:
    name = service.create()
    (tmp_path / "kept").write_text("kept")
    nothing = service.do("cp", f"{name}:nonesuch", str(tmp_path / "kept"))
    assert nothing.told == (1, "", ["error: nonesuch: No such file or directory"])
    assert (tmp_path / "kept").read_text() == "kept"
    assert service.do("cp", str(tmp_path / "none"), f"{name}:").told == (
        1,
        "",
        [f"error: {tmp_path}/none: No such file or directory"],
    )
    done = service.do("cp", f"{name}:/etc/passwd", str(tmp_path / "no" / "such"))
    assert done.told == (1, "", [f"error: {tmp_path}/no: No such file or directory"])
    refused = service.do("cp", str(tmp_path / "kept"), f"{name}:/usr/kept")
    assert (refused.status, refused.err.splitlines()[0][:16]) == (1, "error: /usr/kept")
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]


# ---------------------------------------------------------------- states


def test_a_state_is_kept_gone_back_to_and_dropped(service: Service) -> None:
    name = service.create()
    none = service.do("rollback", name)
    assert none.told[::2] == (
        1,
        [
            f"error: {service.id_of(name)} has no checkpoint to go back to",
            f"hint: make one first: headstart sandbox checkpoint {name}",
        ],
    )
    service.do("run", "--in", name, "echo 1 > f")
    kept = service.do("checkpoint", name).json["id"]
    service.do("run", "--in", name, "echo 2 > f")
    assert service.do("rollback", name).told == (0, "", [])
    assert service.do("run", "--in", name, "cat f").out == b"1\n"
    assert [each["id"] for each in service.do("show", name).json["checkpoints"]] == [kept]
    assert service.do("drop", name, kept).told == (0, "", [])
    assert service.do("rollback", name, kept).status == 1


def test_a_branch_is_committed_or_in_conflict_or_killed(service: Service) -> None:
    name = service.create()
    one, other, third = (service.do("fork", name).json["id"] for _ in range(3))
    assert service.do("show", name).json["branches"] == [one, other, third]
    service.do("run", "--in", one, "echo one > f")
    assert service.do("kill", third).told == (0, "", [])
    assert service.do("commit", one).told == (0, "", [])
    assert service.do("run", "--in", name, "cat f").out == b"one\n"
    stale = service.do("commit", other)
    assert (stale.status, stale.out, len(stale.err.splitlines())) == (1, b"", 2)
    assert stale.err.count("state_") == 2
    assert service.do("run", "--in", other, "true").status == 0, "it stays"
    none = service.do("commit", name)
    assert none.told[::2] == (
        1,
        [f"error: {service.id_of(name)} is no branch, so there is nothing to commit", "hint: fork it first"],
    )


def test_a_paused_sandbox_refuses_and_goes_on_when_resumed(service: Service) -> None:
    name = service.create()
    assert service.do("pause", name).told == (0, "", [])
    refused = service.do("run", "--in", name, "true")
    assert (refused.status, refused.err.splitlines()[1]) == (125, "hint: resume it first")
    assert service.do("show", name).json["state"] == "paused"
    assert service.do("resume", name).told == (0, "", [])
    assert service.do("run", "--in", name, "true").status == 0


def test_events_are_told_a_line_each_until_interrupted(service: Service) -> None:
    with service.running("events") as watching:
        assert watching.stdout is not None
        seen: list[dict[str, Any]] = []
        name = ""
        while not seen:  # it may not watch yet
            name = service.create()
            if select.select([watching.stdout], [], [], 0.5)[0]:
                seen.append(json.loads(watching.stdout.readline()))
        service.do("kill", name)
        seen.append(json.loads(watching.stdout.readline()))
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 130
        assert watching.stderr is not None
        assert watching.stderr.read() == b""
    assert [(each["event"], each["about"]) for each in seen] == [("created", ""), ("ended", "it was killed")]


# ---------------------------------------------------------------- shell


def test_a_shell_is_typed_at_resized_interrupted_and_ends_as_it_says(service: Service) -> None:
    name = service.create()
    with on_terminal(service, "shell", name, rows=11, columns=44) as terminal:
        terminal.type(b"stty size; echo $TERM-$((40+2))\n")
        assert b"11 44" in terminal.until(b"-42\r\n")
        resize(terminal.descriptor, 12, 55)
        os.kill(terminal.process.pid, signal.SIGWINCH)  # as its controlling terminal would
        terminal.type(b"stty size; stty size; stty size; echo =$((1+1))\n")
        terminal.until(b"=2\r\n")
        terminal.type(b"stty size; echo ==$((1+1))\n")
        assert b"12 55" in terminal.until(b"==2\r\n")
        terminal.type(b"echo up$((1+1)); sleep 1000\n")
        terminal.until(b"up2\r\n")
        service.do(
            "run", "--in", name, "until grep -qsx sleep /proc/[0-9]*/comm; do sleep 0.01; done"
        )  # else it is not its to hear
        terminal.type(b"\x03")
        terminal.until(b"^C")
        terminal.type(b"echo status$?; echo left > f\n")
        terminal.until(b"status130\r\n")
        terminal.type(b"exit 7\n")
        assert terminal.ends() == 7
    assert service.do("run", "--in", name, "cat f").out == b"left\n"


def test_a_shell_in_a_sandbox_of_its_own_leaves_nothing(service: Service) -> None:
    with on_terminal(service, "shell", "--env", "WHO=me") as terminal:
        terminal.type(b"echo $WHO-$((1+1))\n")
        terminal.until(b"me-2\r\n")
        below = descendants(terminal.process.pid)
        terminal.type(b"\x04")
        assert terminal.ends() == 0
    assert below
    wait_until(lambda: not any(is_alive(pid) for pid in below), what="all of it is gone")


def test_a_shell_whose_sandbox_is_killed_says_why_and_gives_the_terminal_back(service: Service) -> None:
    name = service.create()
    box = service.id_of(name)
    with on_terminal(service, "shell", name) as terminal:
        terminal.type(b"echo up$((1+1))\n")
        terminal.until(b"up2\r\n")
        service.do("kill", name)
        assert terminal.ends() == 1
        assert b"Traceback" not in terminal.shown
        assert f"error: {box} has ended: it was killed".encode() in terminal.shown


def test_a_shell_whose_client_is_told_to_end_gives_the_terminal_back(service: Service) -> None:
    name = service.create()
    with on_terminal(service, "shell", name) as terminal:
        terminal.type(b"echo up$((1+1)); sleep 1000\n")
        terminal.until(b"up2\r\n")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.ends() in {-signal.SIGTERM, 143}
    wait_until(
        lambda: service.do("run", "--in", name, "grep -lsx sleep /proc/[0-9]*/comm | wc -l").out == b"0\n",
        what="the shell has ended",
    )


# ---------------------------------------------------------------- the service's end


def test_when_the_service_is_stopped_whoever_uses_it_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        name = service.create()
        with (
            on_terminal(service, "shell", name) as terminal,
            service.running("run", "--in", name, "echo up; sleep 1000") as running,
            service.running("events") as watching,
        ):
            terminal.type(b"echo up$((1+1))\n")
            terminal.until(b"up2\r\n")
            assert running.stdout is not None
            assert running.stdout.readline() == b"up\n"
            below = descendants(service.process.pid)
            stopped = subprocess.run(
                [sys.executable, "-m", "headstart", "stop"],
                env=service.env,
                capture_output=True,
                check=False,
                timeout=60,
            )
            assert (stopped.returncode, b"left: 0 processes" in stopped.stdout) == (0, True), stopped
            assert running.wait(30) == 125
            assert running.stderr is not None
            assert running.stderr.read().splitlines() == [
                b"error: the service is gone, and what was asked of it may have been done or not",
                b"hint: headstart serve starts one",
            ]
            assert watching.wait(30) == 1
            assert watching.stderr is not None
            assert watching.stderr.read().startswith(b"error: the service is gone")
            assert terminal.ends() == 1
            assert b"error: the service is gone" in terminal.shown
            assert b"Traceback" not in terminal.shown
        assert service.process.wait(20) == 0
        assert not any(is_alive(pid) for pid in below)
        assert not (tmp_path / "state" / "sandboxes.sock").exists()
        assert "Traceback" not in service.log.read_text()


def test_a_service_that_was_killed_is_followed_by_one_that_serves(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        service.create()
        below = descendants(service.process.pid)
        service.process.kill()
        service.process.wait()
        wait_until(lambda: not any(is_alive(pid) for pid in below), what="its sandboxes are gone")
        assert service.do("list").told[::2] == (
            1,
            [
                f"error: no headstart service hosts sandboxes in {tmp_path / 'state'}",
                "hint: start one: headstart serve",
            ],
        )
    (tmp_path / "home").rmdir()
    (tmp_path / "state" / "service.json").unlink(missing_ok=True)
    with serving(tmp_path) as again:
        assert again.do("run", "--in", again.create(), "echo on").out == b"on\n"


# ---------------------------------------------------------------- the page


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "keep-sandboxes-in-the-service.md"


def test_what_the_page_says_to_type_works(tmp_path: Path) -> None:
    block = re.findall(r"\n\n((?:    headstart .*\n)+)", PAGE.read_text(encoding="utf-8"))[0]
    lines = [line.partition("  #")[0].strip() for line in block.splitlines()]
    typed = [line for line in lines if not line.startswith(("headstart serve", "headstart sandbox shell"))]
    assert len(typed) == len(lines) - 2
    project = tmp_path / "project"
    project.mkdir()
    (project / "test.sh").write_text("echo all is well > report.txt\n")
    with serving(tmp_path) as running:
        for line in typed:
            done = running.do(*shlex.split(line)[2:])
            assert done.status == 0, (line, done)
        assert (tmp_path / "report.txt").read_text() == "all is well\n"
        assert running.do("list").json == {"sandboxes": []}


def test_the_programs_on_the_page_run(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    with serving(tmp_path) as running:
        script = [sys.executable, "-c", program]
        done = subprocess.run(script, env=running.env, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert running.do("list").json == {"sandboxes": []}


def test_a_sandbox_outlives_a_service_that_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        assert first.do("create", "--name", "mine").status == 0
        assert first.do("run", "--in", "mine", "echo 1 > f").status == 0
        assert first.do("checkpoint", "mine").status == 0
        assert first.do("run", "--in", "mine", "echo 2 > f").status == 0
        first.process.kill()
        first.process.wait()
    (tmp_path / "home").rmdir()
    (tmp_path / "state" / "service.json").unlink()  # so that we see when the next one is there
    with serving(tmp_path) as second:
        assert second.do("run", "--in", "mine", "cat f").told == (0, "2\n", [])
        assert second.do("rollback", "mine").status == 0
        assert second.do("run", "--in", "mine", "cat f").told == (0, "1\n", [])
        assert second.do("kill", "mine").status == 0


def test_what_is_no_file_is_not_copied_in_silence(service: Service, tmp_path: Path) -> None:
    name = service.do("create", "--quiet").out.decode().strip()
    assert service.do("run", "--in", name, "ln -s /etc l; mkfifo p").status == 0
    for path, kind in (("l", "link"), ("p", "other")):
        done = service.do("cp", f"{name}:{path}", str(tmp_path))
        assert done.told[:2] == (2, "")
        assert done.err.startswith(f"error: /home/sandbox/{path}: is no file and no folder but a {kind}\nhint: ")
    assert list(tmp_path.iterdir()) == []


def test_too_little_memory_is_refused_before_anything_is_made(service: Service) -> None:
    done = service.do("create", "--memory", "1")
    assert done.told == (
        2,
        "",
        [
            "error: memory_mb: 1 MB are too little",
            "hint: say 16 or more: its first process and a shell need some",
        ],
    )
