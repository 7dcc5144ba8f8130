"""Where clients come in: a socket in the state directory, for the service's own user.

Each connection is a task, and each thing that is asked on it is one below: a client that goes
takes what it has begun with it, and nothing else.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from headstart.runtime.state_files import unusable
from headstart.runtime.tasks import open_tasks
from headstart.sandbox.hosted.host import SandboxHost
from headstart.sandbox.hosted.line import SOCKET_NAME, Line, near
from headstart.sandbox.hosted.visit import Visit

__all__ = ["open_door"]

_BACKLOG = 128
_CREDENTIALS = struct.Struct("iII")
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RETRY_S = 0.1

_log = logging.getLogger(__name__)


@asynccontextmanager
async def open_door(host: SandboxHost, state_dir: Path) -> AsyncGenerator[None]:
    """Let clients in while the block runs; then they are let go.

    Raises:
        ConfigError: The socket cannot be made in the state directory.
    """
    with _listening(state_dir) as listener:
        async with open_tasks() as tasks:
            tasks.start_soon(_let_in, listener, host, tasks)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()


@contextmanager
def _listening(state_dir: Path) -> Generator[socket.socket]:
    path = state_dir / SOCKET_NAME
    try:
        with near(state_dir) as close_by, suppress(FileNotFoundError):
            Path(close_by).unlink()  # of a service that was killed: nobody else may serve this state directory
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        with near(state_dir) as close_by:
            listener.bind(close_by)
            Path(close_by).chmod(0o600)
        listener.listen(_BACKLOG)
    except OSError as error:
        raise unusable(path, error) from error
    try:
        yield listener
    finally:
        listener.close()
        path.unlink(missing_ok=True)


async def _let_in(listener: socket.socket, host: SandboxHost, tasks: TaskGroup) -> None:
    while True:
        await anyio.wait_readable(listener)
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            continue  # who knocked has gone
        except OSError as error:
            if error.errno not in _PASSING:
                raise
            _log.warning("a client cannot be let in now: %s", error.strerror)
            await anyio.sleep(_RETRY_S)
            continue
        if _user_of(sock) in {os.geteuid(), 0}:
            tasks.start_soon(_be_visited, Visit(host, Line(sock)))
        else:
            sock.close()  # the socket's mode lets nobody else in, but what is checked twice is checked


async def _be_visited(visit: Visit) -> None:
    try:
        await visit.serve()
    except Exception:  # noqa: BLE001 one client's connection must not end everybody's
        _log.exception("the service failed at a client of sandboxes, and let it go")


def _user_of(sock: socket.socket) -> int:
    """Return who is at the other end, as the kernel says."""
    told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(told)[1])
