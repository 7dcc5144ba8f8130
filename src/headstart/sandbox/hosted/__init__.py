"""Sandboxes that live in the service and outlive whoever made them.

`host` owns them, `door` and `visit` let clients of this machine use them, `client` is such a one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headstart.sandbox.hosted.door import open_door
    from headstart.sandbox.hosted.host import SandboxHost
    from headstart.sandbox.hosted.messages import HostedInfo
    from headstart.sandbox.hosted.record import OfSession

__all__ = ["HostedInfo", "OfSession", "SandboxHost", "open_door"]

_WHERE = {
    "HostedInfo": "headstart.sandbox.hosted.messages",
    "OfSession": "headstart.sandbox.hosted.record",
    "SandboxHost": "headstart.sandbox.hosted.host",
    "open_door": "headstart.sandbox.hosted.door",
}


def __getattr__(name: str) -> object:
    """Import what is asked for when it is: a client must not wait for what the service needs."""
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
