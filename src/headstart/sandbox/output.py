"""How a user takes output as it comes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

from headstart.backends.output import Kept, Sink

__all__ = ["OnOutput", "Taken"]

OnOutput = Callable[[Literal["stdout", "stderr"], bytes], Awaitable[None]]
"""Takes output as it comes, in chunks; while it is at one, the command's next ones wait."""


class Taken:
    """Output on its way: to a callback, or else kept, the first MiB of each stream."""

    def __init__(self, on_output: OnOutput | None) -> None:
        self._kept = (Kept(), Kept())
        self.sinks: tuple[Sink, Sink] = self._kept
        """Where stdout goes, and stderr."""
        if on_output is not None:
            self.sinks = (_told(on_output, "stdout"), _told(on_output, "stderr"))

    @property
    def stdout(self) -> str:
        return self._kept[0].data.decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self._kept[1].data.decode(errors="replace")

    @property
    def cut(self) -> bool:
        """Whether there was more than was kept."""
        return any(kept.cut for kept in self._kept)


def _told(on_output: OnOutput, name: Literal["stdout", "stderr"]) -> Sink:
    async def tell(chunk: bytes) -> None:
        await on_output(name, chunk)

    return tell
