"""The helpers that do something to a running sandbox, or to a store, for the spawner, which must not wait for anything.

Forking one takes a millisecond or two, and its first steps are slow while it copies the pages that
it touches. So once errands have begun, one helper stands ready; it does one and ends.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from headstart.backends.local.guest.holders import holders
from headstart.backends.local.guest.layers import Errand
from headstart.backends.local.guest.stores import StoreErrand
from headstart.backends.spawner.guest import processes, syscalls
from headstart.backends.spawner.guest.wire import PeerGone, Wire

__all__ = ["Errands"]


_REFILL_S = 0.01
"""Forking the next one at once would hold up whoever waits for the end of this one's work, and the next request."""


class Errands:
    """Helpers of this process."""

    def __init__(self) -> None:
        self._pids: set[int] = set()
        self._ready: Wire | None = None
        self._refill_at: float | None = None

    def begin(self, order: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Have a helper do it; return where it will tell its answer, one line of JSON.

        Args:
            order: `sandbox` (`init`, `groups`, `owner` and `tracer`, as `Errand` takes them; None for an errand to a store),
                and the `message` for it.
            descriptors: For a sandbox, those of its mount namespace and of its template's; for a store, what
                `StoreErrand` takes.
        """
        self._refill_at = time.monotonic() + _REFILL_S
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            self._send(order, [write_end, *descriptors])
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        return read_end

    def _send(self, order: dict[str, Any], descriptors: list[int]) -> None:
        """Give an order to the helper that stands ready, or to a new one if somebody has killed that."""
        for wire in (self._ready, None):
            helper = wire or self._fork()
            self._ready = None
            try:
                helper.send_with(order, descriptors)
            except PeerGone:
                if wire is None:
                    raise OSError("a helper ended at once") from None
            else:
                return
            finally:
                helper.close()

    def tend(self) -> float | None:
        """Have a helper ready, once one was needed; return in how many seconds there is something to do, or None."""
        if self._ready is not None or self._refill_at is None:
            return None
        wait_s = self._refill_at - time.monotonic()
        if wait_s <= 0:
            self._ready = self._fork()
            return None
        return wait_s

    def owns(self, pid: int) -> bool:
        return pid in self._pids

    def ended(self, pid: int) -> None:
        """A child was reaped: it may have been a helper."""
        self._pids.discard(pid)

    def _fork(self) -> Wire:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        spawner = os.getpid()
        pid = syscalls.clone(0)
        if pid == 0:
            _help(theirs, spawner)
        theirs.close()
        self._pids.add(pid)
        return Wire(ours)


def _help(sock: socket.socket, spawner: int) -> NoReturn:
    """As a fork of the spawner: wait for an errand, do it, tell, tidy up and end."""
    try:
        syscalls.be_a_helper_of(spawner, [sock.fileno()])
        processes.is_alive(spawner)  # touch what will be needed
        holders([os.getpid()], set())
        order, (told, *descriptors) = Wire(sock).wait()
        errand = _errand(order["sandbox"], descriptors)
        try:
            outcome = errand.do(order["message"])
        except OSError as error:
            outcome = {"error": str(error.strerror or error), "errno": error.errno}
        except Exception as error:  # noqa: BLE001 a bug of ours, or something that we have not thought of: tell it
            outcome = {"error": f"{type(error).__name__}: {error}"}
        os.write(told, json.dumps(outcome).encode() + b"\n")
        os.close(told)
        _tidy_up(errand)
    except PeerGone:
        pass  # the spawner has ended, or has no errand
    finally:
        os._exit(0)


def _errand(sandbox: dict[str, Any] | None, descriptors: list[int]) -> Errand | StoreErrand:
    if sandbox is None:
        return StoreErrand(*descriptors)
    mounts, template = descriptors
    owner = sandbox["owner"]
    return Errand(
        init=sandbox["init"],
        mounts=mounts,
        template=template,
        groups=sandbox["groups"],
        tracer=sandbox["tracer"],
        owner=None if owner is None else (owner[0], owner[1]),
    )


def _tidy_up(errand: Errand | StoreErrand) -> None:
    try:
        errand.tidy_up()
    except FileNotFoundError:
        pass  # it went with its store
    except OSError as error:
        sys.stderr.write(f"headstart: what an errand has replaced or deleted stays for a while: {error}\n")
        sys.stderr.flush()
