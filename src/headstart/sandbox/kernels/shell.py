"""A bash session: commands that find the folder, variables, functions and options of those before.

It is an interactive bash, because only that gives up a loop of its own when it is interrupted, and goes
on. A command is code that it evaluates, inside of a file that it reads ("."), because in there
even an interactive bash says nothing of its own (about jobs, signals, prompts).

Each command is three of bash's: the code, as a quoted word; what runs it, which an interrupt may end; and
the report, which is always reached, unless bash itself has ended.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from headstart.backends.contract import ByteStreams, Command, RunningSandbox
from headstart.errors import BackendError, ConfigError
from headstart.sandbox.kernels.interpreter import GRACE_S, Interpreter, Turn
from headstart.sandbox.kernels.keeper import Changing, Keeper
from headstart.sandbox.kernels.result import ShellResult
from headstart.sandbox.output import OnOutput, Taken

__all__ = ["Shell"]

_PROGRAM = Path(__file__).parent / "guest" / "bash_session.bash"
_COMMAND = Command(argv=("bash", "--noprofile", "--norc", "--noediting", "-i"))
_STEP = rb"""__headstart_come_back
__headstart_status= __headstart_code=%s
{ \builtin printf '%d +\0' >&59; { \. /dev/fd/55 55<<<'\builtin eval "$__headstart_options$__headstart_code"'
{ __headstart_status=$? __headstart_flags=$-; \builtin set +xv; } >/dev/null 2>&1
\exec 57>&1 58>&2; } </dev/null >&57 2>&58 59>&-; }
__headstart_report %d
"""
"""Words are quoted, so that they are no aliases. `exec` keeps redirections that the code has made for good."""
_LOOK = b"__headstart_look %d >&59\n"
_CAPTURE = rb"""__headstart_variables=(%s) __headstart_functions=(%s)
__headstart_begin %d "$@" >&59
\builtin trap -p >&59
__headstart_leave
__headstart_end >&59
"""
_CAPTURE_S = 60.0
_HEADER = "# headstart shell state 1\n"
_RANDOM = re.compile(re.escape(_HEADER) + r"(?:RANDOM=\d+\n)?")
_FUNCTION = re.compile(rb"declare -f\S* (?!__headstart_).+")
_VARIABLE = re.compile(rb"declare -([^f\s]+) ([A-Za-z_]\w*)(?:=.*)?")
"""What is there, if it is no line in the middle of another's value."""
_BASHS_OWN = re.compile(
    rb"__headstart_\w*|BASH|BASHOPTS|BASHPID|BASH_(ALIASES|ARG[CV]|ARGV0|CMDS|COMMAND|LINENO|SOURCE|SUBSHELL|VERSINFO|VERSION)"
    rb"|COMP_WORDBREAKS|DIRSTACK|EPOCH\w*|EUID|FUNCNAME|GROUPS|HISTCMD|LINENO|PIPESTATUS|PPID|RANDOM|SHELLOPTS|SRANDOM|UID|_"
)
"""Variables that every bash has of its own; it looks after HOSTNAME itself, unless that has been given attributes."""
_REPORT = re.compile(rb"(\d{1,3}) (.*)\n", re.DOTALL)
_SIGNALLED = 128

_Answer = TypeVar("_Answer")


class Shell:
    """A bash that keeps its state between commands; it starts with the first one.

    Args:
        running: Where it runs.
        env: Its environment.
        cwd: Where it starts; the home, unless said.
        grace_s: How long an interrupted command has to end.
    """

    def __init__(
        self,
        changing: Changing,
        *,
        env: Mapping[str, str],
        cwd: str | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        self._command = replace(_COMMAND, env=env, cwd=cwd)
        self._grace_s = grace_s
        self._keeper = Keeper("the shell", changing, self._start)
        self._asleep: str | None = None

    async def _start(self, running: RunningSandbox) -> Interpreter:
        greeting = _PROGRAM.read_bytes() + b"__headstart_report 0\n"
        return await Interpreter.start(running, self._command, greeting=greeting, grace_s=self._grace_s)

    async def run(
        self, command: str, *, timeout_s: float | None = None, on_output: OnOutput | None = None
    ) -> ShellResult:
        """Run a command, when those before have ended. See `Sandbox.run_in_shell`.

        Raises:
            ConfigError: The command is no text.
            BackendError: The sandbox is gone, there is no bash, or the shell was closed.
        """
        _quoted(command)
        async with self._keeper.alone() as running:
            await self._wake(running)
            return await self._run(command, timeout_s=timeout_s, on_output=on_output)

    async def _run(
        self, command: str, *, timeout_s: float | None, on_output: OnOutput | None = None, afresh: bool = False
    ) -> ShellResult:
        word = _quoted(command)
        taken = Taken(on_output)
        done = await self._keeper.turn(
            lambda number: _STEP % (word, number, number),
            _REPORT.fullmatch,
            timeout_s=timeout_s,
            sinks=taken.sinks,
            afresh=afresh,
        )
        report = done.answer
        exit_code = int(report[1]) if report else _code_of(done.turn)
        return ShellResult(
            exit_code=exit_code,
            cwd=report[2].decode(errors="replace") if report else None,
            stdout=taken.stdout,
            stderr=taken.stderr,
            truncated=taken.cut or done.turn.dropped,
            timed_out=done.turn.timed_out,
            lost=None if report else f"the bash session is gone, and its state with it: {done.trouble}",
            restarted=done.restarted,
            out_of_memory=exit_code == _SIGNALLED + signal.SIGKILL and done.memory_kills > 0,
        )

    async def capture(self) -> str:
        """Return the session's state as bash code.

        That is: variables, functions, aliases, options, traps, folder and folder stack, umask, limits.

        From then on, this session and whoever restores it draw the same numbers from `RANDOM`. They follow from those
        that were drawn before, but are not the ones that would have come: where its generator stands, bash does not tell.

        Not among it: jobs, open descriptors, completions. Bytes that are no UTF-8 are lone
        surrogates, as in `os.fsdecode`.

        Raises:
            BackendError: The sandbox or the session is gone.
        """
        async with self._keeper.alone():
            return await self._capture()

    async def _capture(self) -> str:
        if self._asleep is not None:
            return self._asleep
        return await self._state(await self._look())

    async def _look(self) -> _Listing:
        return await self._ask(lambda number: _LOOK % number, _listing_in)

    async def _state(self, listing: _Listing) -> str:
        variables, functions = b" ".join(listing.variables), b" ".join(map(_as_word, listing.functions))
        return await self._ask(lambda number: _CAPTURE % (variables, functions, number), _state_in)

    async def _ask(self, request: Callable[[int], bytes], understand: Callable[[bytes], _Answer | None]) -> _Answer:
        taken = Taken(None)
        done = await self._keeper.turn(request, understand, timeout_s=_CAPTURE_S, sinks=taken.sinks)
        if done.answer is None:
            raise BackendError(f"the bash session is gone, and its state with it: {done.trouble}")
        return done.answer

    async def restore(self, state: str) -> None:
        """Begin a new session, in the place of this one, with a state that `capture` returned.

        Raises:
            ConfigError: This is no such state.
            BackendError: The sandbox is gone, or the state's folder is: the session is in its first one then.
        """
        if not state.startswith(_HEADER):
            raise ConfigError("this is no state of a bash session", where="state", hint="give what capture() returned")
        async with self._keeper.alone():
            self._asleep = None
            await self._restore(state)

    async def _restore(self, state: str) -> None:
        done = await self._run(state, timeout_s=_CAPTURE_S, afresh=True)
        if done.lost:
            raise BackendError(f"a bash session cannot be restored: {done.lost}")
        if not done.ok:
            raise BackendError("a bash session was restored, but its folder is not there", hint="make it first")

    @property
    def asleep(self) -> str | None:
        """The state that the next command will find, as far as it is known; None if it is not, or will begin anew."""
        return self._asleep

    @property
    def resting(self) -> ByteStreams | None:
        """The bash that waits, if `asleep` is the state of one that does."""
        return None if self._asleep is None else self._keeper.streams

    async def put_to_sleep(self) -> None:
        """Keep the session's state, unless it has jobs, which go on. Its bash waits in `/`, and comes back with a command."""
        if not self._keeper.has_one or self._asleep is not None:
            return
        async with self._keeper.alone():
            if not self._keeper.has_one or self._asleep is not None:
                return
            listing = await self._look()
            if not listing.has_jobs:
                self._asleep = await self._state(listing)

    def go_on_as(self, state: str | None, *, seed: int | None = None) -> None:
        """Let the next command find this state (None: that of a new session), whatever there was.

        Args:
            state: What `capture` returned.
            seed: With what `RANDOM` begins; None: it goes on as the state says. (`SRANDOM` is the system's.)
        """
        self._keeper.begin_anew()
        if state is not None and seed is not None:
            state = _RANDOM.sub(f"{_HEADER}RANDOM={seed}\n", state, count=1)
        self._asleep = state

    async def _wake(self, running: RunningSandbox) -> None:
        if self._asleep is not None and not self._keeper.stands_in(running):
            try:
                await self._restore(self._asleep)
            except BackendError:
                self._asleep = None
                raise
        self._asleep = None

    def move_to(self, changing: Changing) -> None:
        """Run commands where this says from now on."""
        self._keeper.move_to(changing)

    @property
    def has_state(self) -> bool:
        """Whether there is something that could be lost."""
        return self._keeper.has_one or self._asleep is not None

    def note_lost(self) -> None:
        """Have the next one told that it is in the place of another, whose state is gone."""
        self._keeper.note_lost()

    async def aclose(self) -> None:
        """End it, with all that it started, whatever it is at. Idempotent."""
        await self._keeper.aclose()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """What a session has, as bash lists it; of variables and functions, some that are not there may be among them."""

    has_jobs: bool
    variables: tuple[bytes, ...]
    functions: tuple[bytes, ...]


def _listing_in(record: bytes) -> _Listing:
    variables, functions = dict[bytes, None](), dict[bytes, None]()
    for line in record.split(b"\n"):
        found = _VARIABLE.fullmatch(line)
        if found and not _BASHS_OWN.fullmatch(found[2]) and found.groups() != (b"-", b"HOSTNAME"):
            variables[found[2]] = None
        elif _FUNCTION.fullmatch(line):
            functions[line] = None
    return _Listing(has_jobs=record[:1].isdigit(), variables=tuple(variables), functions=tuple(functions))


def _state_in(record: bytes) -> str | None:
    state = record.decode(errors="surrogateescape")
    return state if state.startswith(_HEADER) else None


def _quoted(command: str) -> bytes:
    """Return a command as one word of bash.

    Raises:
        ConfigError: It cannot be.
    """
    text = isinstance(command, str) and "\0" not in command  # pyright: ignore[reportUnnecessaryIsInstance] users write it
    try:
        encoded = command.encode(errors="surrogateescape") if text else None
    except UnicodeEncodeError:
        encoded = None
    if encoded is None:
        raise ConfigError(
            f"{repr(command)[:80]} is no text for bash", where="command", hint="give text, without NUL characters"
        )
    if all(not line.strip() or line.lstrip().startswith("#") for line in command.splitlines()):
        return b":"  # it would tell the status of the one before
    return _as_word(encoded)


def _as_word(text: bytes) -> bytes:
    return b"'" + text.replace(b"'", b"'\\''") + b"'"


def _code_of(turn: Turn) -> int:
    """Return how bash ended, as a shell tells it."""
    if turn.status is None:
        return _SIGNALLED + signal.SIGKILL
    return turn.status.code if turn.status.code is not None else _SIGNALLED + (turn.status.signal or 0)
