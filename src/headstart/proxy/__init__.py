"""In front of the model servers: bytes pass at once, and a copy is read off the path.

Above it are `bench` and `cli`, which serve the app; below it is `core.stream`, the
vocabulary that the copies are read into. A new wire format is a module in `formats/`.
"""

from headstart.proxy.app import ModelProxy, ProxyLimits, open_proxy
from headstart.proxy.statistics import ProxyStatistics, UnreadCount

__all__ = ["ModelProxy", "ProxyLimits", "ProxyStatistics", "UnreadCount", "open_proxy"]
