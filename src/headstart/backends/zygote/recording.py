"""Ask a recorded program what it has imported."""

from __future__ import annotations

import socket

from headstart.backends.zygote.control import Control
from headstart.backends.zygote.report import Recording

__all__ = ["take_recording"]

DUMP_TIMEOUT_S = 20.0


async def take_recording(sock: socket.socket) -> Recording:
    """Return what the program at the other end has imported by now; closes the socket, the program goes on.

    Raises:
        BackendError: It has ended, or did not answer.
    """
    with Control(sock, name="the recorder") as control:
        await control.send({"op": "dump"})
        return Recording.parse(await control.receive(timeout_s=DUMP_TIMEOUT_S))
