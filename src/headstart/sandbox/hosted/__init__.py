"""Sandboxes that live in the service and outlive whoever made them.

`host` owns them, `door` and `visit` let clients of this machine use them, `client` is such a one.
"""

from headstart.sandbox.hosted.door import open_door
from headstart.sandbox.hosted.host import SandboxHost
from headstart.sandbox.hosted.messages import HostedInfo

__all__ = ["HostedInfo", "SandboxHost", "open_door"]
