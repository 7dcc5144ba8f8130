"""Programs of backends that can keep none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headstart.backends.contract import ByteStreams, ProcessImage
from headstart.errors import NotCapturable

__all__ = ["Unkept"]


@dataclass(frozen=True, slots=True)
class Unkept:
    """Implements `ForkableProcess`: it runs, and its state is nobody's."""

    streams: ByteStreams
    pid: int | None = None

    async def keep(self, ask: Callable[[], Awaitable[bool]]) -> ProcessImage | None:  # noqa: ARG002
        raise NotCapturable("this backend keeps no programs", hint="end it first, or ask for the files only")
