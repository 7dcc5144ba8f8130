"""The process that keeps programs' shadows and images: a helper of the spawner, from their first use on.

Whoever traces must be the one that waits, and may have to for milliseconds: so it is not the spawner.
If it is killed, its shadows and images are killed by the kernel; programs go on, and cannot be kept any more.

An image is in control groups of its own, which hold what it has been copied to until that has been moved to
those of its sandbox (`moving`).

Orders, each answered with one line of JSON through the first descriptor that comes with it:
    `start`, with the descriptors of a sandbox's namespaces and the program's own: `{"pid"}`
    `revive`, likewise, of an `image`
    `keep`: expect a program to send itself SIGTRAP and fork: `{"outcome": "watched"}`. The rest is told through another
        descriptor: `{"stands": true}`, it is about to, and its memory will not change any more; then `{"outcome": "kept"}`,
        and there is `image`. Or only `busy` (with its `threads`), `withdrawn` (`withdraw` was ordered, or it took too
        long), or `ended`
    `withdraw`: expect nothing any more: `{}`
    `signal`: send a `signal` to its process group: `{}`
    `kill`: kill it and what carries its mark: `{}`
    `wait`: answered when it has ended: `{"code"}` or `{"signal"}`
    `forget`: let go of an `image`: `{}`
    `weigh`: how much memory the images of a `lineage` hold, shared pages in part: `{"bytes"}`
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from headstart.backends.local.guest import shadows
from headstart.backends.local.guest.moving import Mover
from headstart.backends.local.guest.shadows import Image, Shadow
from headstart.backends.spawner.guest import commands, processes, syscalls
from headstart.backends.spawner.guest.tracing import Tracee
from headstart.backends.spawner.guest.wire import PeerGone, Wire

__all__ = ["ORDERS", "Tracer", "TracerProcess"]

ORDERS = {"start", "revive", "keep", "withdraw", "signal", "kill", "wait", "forget"}

_PATIENCE_S = 10.0
_WALL = 0x40000000


class TracerProcess:
    """The spawner's hold on it; it is forked when it is first needed, and again if somebody has killed it."""

    def __init__(self) -> None:
        self.pid = 0
        """Its pid; 0 if none was needed yet."""
        self._mover: Mover | None = None
        self._wire: Wire | None = None

    def order(self, message: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Have it do something; return where it will tell its answer."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            self._send(message, [write_end, *descriptors])
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        return read_end

    def _send(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if self._wire is not None:
            try:
                self._wire.send_with(message, descriptors)
            except PeerGone:
                self._wire.close()
            else:
                return
        self._wire = self._fork()
        self._wire.send_with(message, descriptors)

    def owns(self, pid: int) -> bool:
        """Whether a process is it, its mover, or a shadow or image."""
        if self._mover is None:
            return False
        return pid in (self.pid, self._mover.pid) or processes.tracer_of(pid) == self.pid

    def is_in_one_of(self, groups: Sequence[str]) -> bool:
        """Whether shadows or images are in one of these control groups."""
        return self.pid != 0 and any(self.owns(pid) for group in groups for pid in processes.in_group(group))

    def _fork(self) -> Wire:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        spawner = os.getpid()
        self._mover = mover = Mover()
        self.pid = syscalls.clone(0)
        if self.pid == 0:
            _serve(theirs, mover, spawner)
        theirs.close()
        mover.close()
        return Wire(ours)


@dataclass(kw_only=True)
class _Program:
    """One that was started or revived here.

    Attributes:
        mark: What its tree is marked with.
        shadow: None if somebody has killed it.
        waiting: Where its end will be told.
        traced: While it is expected to fork.
        keeping: Meanwhile, where what comes of that will be told, and what was ordered.
        due_s: Until when.
    """

    pid: int
    mark: int
    shadow: Shadow | None
    waiting: list[int] = field(default_factory=list[int])
    traced: Tracee | None = None
    keeping: tuple[int, dict[str, Any]] | None = None
    due_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """An image, its lineage, and folders of control groups: its own, those of the sandbox that it was made in, its lineage's."""

    image: Image
    homes: list[str]
    origin: list[str]
    lineages: list[str]
    lineage: str


class Tracer:
    """The loop."""

    def __init__(self, wire: Wire, mover: Mover) -> None:
        self._wire = wire
        self._mover = mover
        self._programs: dict[str, _Program] = {}
        self._images: dict[str, _Kept] = {}
        self._left: dict[int, list[str]] = {}
        """Pids of images that were killed, and where they were."""
        self._ended: dict[str, dict[str, int]] = {}
        """How those have ended that nobody has asked about yet."""
        self._wake, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, _do_nothing)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Run until the spawner is gone.

        Raises:
            PeerGone: It is.
        """
        while True:
            poll = select.poll()
            poll.register(self._wire, select.POLLIN)
            poll.register(self._wake, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll(self._timeout_ms())}
            if self._wake in ready:
                os.read(self._wake, 4096)
            self._reap()
            self._withdraw_overdue()
            if self._wire.fileno() in ready:
                received = self._wire.receive()
                if received is not None:
                    self._take(*received)

    def _timeout_ms(self) -> float | None:
        dues = [program.due_s for program in self._programs.values() if program.traced is not None]
        return max(0.0, min(dues) - time.monotonic()) * 1000 + 1 if dues else None

    def _take(self, message: dict[str, Any], descriptors: list[int]) -> None:
        told, *others = descriptors
        after: Shadow | None = None
        try:
            match message["do"]:
                case "start" | "revive":
                    after = self._start(message, others)
                    _tell(told, {"pid": after.program})
                case "keep":
                    self._watch(message, others)
                    _tell(told, {"outcome": "watched"})
                case "weigh":
                    _tell(told, {"bytes": self._weight(message["lineage"])})
                case "wait":
                    self._wait(message["program"], told)
                case _:
                    self._obey(message)
                    _tell(told, {})
        except KeyError:
            _tell(told, {"outcome": "ended"})
        except OSError as error:
            _tell(told, {"error": str(error.strerror or error), "errno": error.errno})
        finally:
            for descriptor in others:
                os.close(descriptor)
        if after is not None:
            self._tidy(after, message)

    def _weight(self, lineage: str) -> int:
        images = [kept.image.tracee.pid for kept in self._images.values() if kept.lineage == lineage]
        return sum(map(processes.pss_bytes, images))

    def _wait(self, program: str, told: int) -> None:
        if program in self._ended:
            _tell(told, self._ended.pop(program))
        else:
            self._programs[program].waiting.append(told)

    def _start(self, message: dict[str, Any], descriptors: list[int]) -> Shadow:
        namespaces, own = descriptors[: len(shadows.NAMESPACES)], descriptors[len(shadows.NAMESPACES) :]
        if message["do"] == "start":
            shadow = shadows.start(message["order"], namespaces, own)
        else:
            shadow = shadows.revive(self._images[message["image"]].image, message["order"], namespaces, own)
        self._programs[message["program"]] = _Program(pid=shadow.program, mark=message["order"]["mark"], shadow=shadow)
        return shadow

    def _tidy(self, shadow: Shadow, message: dict[str, Any]) -> None:
        """Do what nobody waits for."""
        try:
            shadows.go_home(shadow)
        except OSError:
            shadows.kill(shadow.tracee.pid)  # its program cannot be kept, and that will be told
        if message["do"] == "revive":
            kept, order = self._images[message["image"]], message["order"]
            left = [number for number, group in enumerate(order["groups"]) if group not in order["counted_in"]]
            if left:
                born_in = [kept.homes[left[0]], kept.origin[left[0]]]
                groups = [order["groups"][number] for number in left]
                self._mover.move_out(shadow.tracee.pid, shadow.program, born_in, groups)

    def _obey(self, message: dict[str, Any]) -> None:
        if message["do"] == "forget":
            kept = self._images.pop(message["image"], None)
            if kept is not None:
                self._left[kept.image.tracee.pid] = [*kept.homes, *kept.lineages]
                shadows.kill(kept.image.tracee.pid)
            return
        program = self._programs[message["program"]]
        match message["do"]:
            case "withdraw":
                self._withdraw(program)
            case "signal":
                with suppress(ProcessLookupError):
                    os.killpg(program.pid, message["signal"])
            case "kill":
                commands.kill_tree(program.pid, mark=program.mark, among=lambda: _members(message, program.pid))
            case _:
                raise OSError(errno.EINVAL, f"unknown order {message['do']!r}")

    # ------------------------------------------------------------ keeping

    def _watch(self, message: dict[str, Any], descriptors: list[int]) -> None:
        program = self._programs[message["program"]]
        self._withdraw(program)  # somebody else has given up, say
        program.traced = Tracee.seize(program.pid)
        program.keeping = (descriptors.pop(), message)
        program.due_s = time.monotonic() + _PATIENCE_S

    def _keep(self, program: _Program) -> None:
        if program.traced is None or program.keeping is None:
            return
        traced, (told, order) = program.traced, program.keeping
        program.traced, program.keeping = None, None
        try:
            kept = shadows.keep(program.shadow, traced, lambda: _write(told, {"stands": True}))
        except OSError as error:
            shadows.kill(program.pid)  # nobody knows where it stands
            _tell(told, {"error": f"it was killed: {error.strerror or error}", "errno": error.errno})
            return
        match kept:
            case Image():
                homes = [f"{os.path.dirname(group)}/{order['home']}" for group in order["groups"]]
                self._images[order["image"]] = _Kept(
                    image=kept,
                    homes=homes,
                    origin=order["groups"],
                    lineages=order["lineages"],
                    lineage=order["lineage"],
                )
                _tell(told, {"outcome": "kept"})
                if homes:
                    settings = [(f"{folder}/{order['home']}", name, value) for folder, name, value in order["settings"]]
                    self._mover.take_home(kept.tracee.pid, homes, settings)
            case OSError():
                _tell(told, {"error": f"it cannot be kept: {kept.strerror or kept}", "errno": kept.errno})
            case threads:
                _tell(told, {"outcome": "busy", "threads": threads})

    def _withdraw(self, program: _Program) -> None:
        traced, program.traced = program.traced, None
        if traced is None:
            return
        try:
            traced.interrupt()
            traced.let_go()
        except OSError:
            shadows.kill(program.pid)  # nobody knows where it stands
        if program.keeping is not None:
            _tell(program.keeping[0], {"outcome": "withdrawn"})
            program.keeping = None

    def _withdraw_overdue(self) -> None:
        now = time.monotonic()
        for program in self._programs.values():
            if program.traced is not None and program.due_s <= now:
                self._withdraw(program)

    # ------------------------------------------------------------ what has changed

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | _WALL)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                self._note_stopped(pid, status)
            else:
                self._note_ended(pid, status)

    def _note_stopped(self, pid: int, status: int) -> None:
        program = next((each for each in self._programs.values() if each.pid == pid), None)
        if program is None or program.traced is None:
            return
        if status >> 16 == 0 and os.WSTOPSIG(status) == signal.SIGTRAP:
            self._keep(program)
        else:
            with suppress(ProcessLookupError):
                program.traced.pass_by(status)

    def _note_ended(self, pid: int, status: int) -> None:
        for name, program in list(self._programs.items()):
            if program.pid == pid:
                del self._programs[name]
                self._let_go_of(name, program, status)
            elif program.shadow is not None and program.shadow.tracee.pid == pid:
                program.shadow = None
        for name in [name for name, kept in self._images.items() if kept.image.tracee.pid == pid]:
            del self._images[name]
        self._remove_homes(pid)

    def _remove_homes(self, pid: int) -> None:
        """Remove the control groups that images have left."""
        homes = self._left.pop(pid, [])
        if homes:
            self._mover.remove(homes)

    def _let_go_of(self, name: str, program: _Program, status: int) -> None:
        if program.shadow is not None:
            shadows.kill(program.shadow.tracee.pid)
        if program.keeping is not None:
            _tell(program.keeping[0], {"outcome": "ended"})
        for told in program.waiting:
            _tell(told, processes.exit_facts(status))
        if not program.waiting:
            self._ended[name] = processes.exit_facts(status)


def _members(message: dict[str, Any], program: int) -> Iterable[int]:
    """Return what is in a sandbox as a program is: not its image, nor what goes on elsewhere and was not moved yet."""
    inside = processes.pid_namespace(program)
    return [
        pid for pid in processes.members(message["init"], message["groups"]) if processes.pid_namespace(pid) == inside
    ]


def _tell(told: int, answer: dict[str, Any]) -> None:
    _write(told, answer)
    os.close(told)


def _write(told: int, answer: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):  # nobody wants to know
        os.write(told, json.dumps(answer).encode() + b"\n")


def _serve(sock: socket.socket, mover: Mover, spawner: int) -> NoReturn:
    """As a fork of the spawner: serve until that is gone."""
    try:
        syscalls.be_a_helper_of(spawner, [sock.fileno(), mover.orders])
        Tracer(Wire(sock), mover).serve()
    except PeerGone:
        pass
    finally:
        os._exit(0)


def _do_nothing(number: int, frame: object) -> None:
    """Be a handler, so that the wake-up descriptor is written."""
