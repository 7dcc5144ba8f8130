"""What guests tell, as plain values."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headstart.errors import BackendError

__all__ = ["Facts", "PreloadReport", "Recording"]


@contextmanager
def _expecting(what: str) -> Generator[None]:
    """Translate what reading a stranger's words may raise: they come from inside a sandbox."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BackendError(f"a guest answered with something else than {what}: {error!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A guest's interpreter and surroundings.

    Attributes:
        version: `3.11.7`.
        environ: Digests of the environment's values, by name.
    """

    implementation: str
    version: tuple[int, ...]
    prefix: str
    home: str
    cwd: str
    environ: Mapping[str, str]

    @classmethod
    def parse(cls, told: Mapping[str, Any]) -> Facts:
        return cls(
            implementation=told["implementation"],
            version=tuple(told["version"]),
            prefix=told["prefix"],
            home=told["home"],
            cwd=told["cwd"],
            environ=told["environ"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a cold start had imported when it was ready.

    Attributes:
        modules: Names in import order, only those that can be imported by name.
        files: The files they came from.
        environ_changed: Environment variables that the program itself has changed since its start.
    """

    modules: tuple[str, ...]
    files: tuple[str, ...]
    environ_changed: frozenset[str]
    facts: Facts

    @classmethod
    def parse(cls, told: Mapping[str, Any]) -> Recording:
        """Read what a recorder said.

        Raises:
            BackendError: It is no recording.
        """
        with _expecting("a recording"):
            return cls._parse(told)

    @classmethod
    def _parse(cls, told: Mapping[str, Any]) -> Recording:
        return cls(
            modules=tuple(module["name"] for module in told["modules"]),
            files=tuple(sorted({module["file"] for module in told["modules"] if module["file"].startswith("/")})),
            environ_changed=frozenset(told["environ_changed"]),
            facts=Facts.parse(told["facts"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreloadReport:
    """What a preload did; the second half is known only after an audit.

    Attributes:
        failed: Modules that could not be imported, with their errors.
        cpu_s: CPU-seconds that it took.
        threads: Names of threads that run besides the main one ("native" for those Python does not know).
        thread_starters: After an audit: the modules that started them, with those that import them.
        draws: After an audit: what bodies of modules took that is another at every start (`random bytes`), by body.
        drawing: After an audit: those modules, and all that import them.
        files: What is open that was not open before.
        children: Child processes.
        timers: Whether an alarm is set, which a fork would not have.
        native_generators: Modules whose random state cannot be renewed.
        pools_restorable: False if a native library's thread pool stays at one thread.
        reads: What importing read (`env:NAME`, `cwd`, `pid`, `user database`), and which module did.
        retained: After a read of the whole environment (`env:*`): variables whose values were kept.
        environ_written: Environment variables that importing has set; forks set them too.
        written / connected / programs: Files left behind, addresses, programs run; and which module did.
        drew: What the program's own code took that is another at every start (random bytes, its PID); by whom.
        looked_at: Paths outside its own and the system's places that it looked at before its event loop; by whom.
    """

    failed: Mapping[str, str]
    cpu_s: float
    threads: tuple[str, ...]
    thread_starters: frozenset[str]
    draws: Mapping[str, str]
    drawing: frozenset[str]
    files: tuple[str, ...]
    children: int
    timers: bool
    native_generators: tuple[str, ...]
    pools_restorable: bool
    facts: Facts
    reads: Mapping[str, str]
    retained: frozenset[str]
    environ_written: frozenset[str]
    written: Mapping[str, str]
    connected: Mapping[str, str]
    programs: Mapping[str, str]
    drew: Mapping[str, str]
    looked_at: Mapping[str, str]

    @classmethod
    def parse(cls, told: Mapping[str, Any]) -> PreloadReport:
        """Read what a preloader said.

        Raises:
            BackendError: It is no report.
        """
        with _expecting("a preload's report"):
            return cls._parse(told)

    @classmethod
    def _parse(cls, told: Mapping[str, Any]) -> PreloadReport:
        threads = tuple(told["threads"])
        return cls(
            failed={entry["name"]: entry["error"] for entry in told["failed"]},
            cpu_s=told["cpu_s"],
            threads=threads + ("native",) * (told["thread_count"] - 1 - len(threads)),
            thread_starters=frozenset(told["thread_starters"]),
            draws=told["draws"],
            drawing=frozenset(told["drawing"]),
            files=tuple(told["files"]),
            children=told["children"],
            timers=told["timers"],
            native_generators=tuple(told["native_generators"]),
            pools_restorable=told["pools_restorable"],
            facts=Facts.parse(told["facts"]),
            reads=told["reads"],
            retained=frozenset(told["retained"]),
            environ_written=frozenset(told["environ_written"]),
            written=told["written"],
            connected=told["connected"],
            programs=told["programs"],
            drew=told["drew"],
            looked_at=told["looked_at"],
        )

    def unforkable(self) -> str | None:
        """Return why this process must not be forked at all, in plain words; None if it may."""
        if self.threads:
            return f"it starts threads before it could fork ({', '.join(self.threads[:3])})"
        if self.files:
            return f"it leaves files or sockets open before it could fork ({', '.join(self.files[:3])})"
        if self.children:
            return "it leaves child processes running before it could fork"
        if self.timers:
            return "it sets an alarm before it could fork"
        if self.native_generators:
            return f"{self.native_generators[0]} keeps random state that a fork would share"
        return None
