"""Wire formats: each reads one provider's requests and responses into `core.stream`.

A format is a module with one class that follows `WireFormat`; `FORMATS` lists them. What
no format matches passes through unread.
"""

from headstart.proxy.formats.chat import ChatCompletions
from headstart.proxy.formats.contract import RequestFacts, ResponseReader, Unreadable, WireFormat

__all__ = ["FORMATS", "RequestFacts", "ResponseReader", "Unreadable", "WireFormat"]

FORMATS: tuple[WireFormat, ...] = (ChatCompletions(),)
