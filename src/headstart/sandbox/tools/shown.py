"""How much of what is said a model is shown."""

from __future__ import annotations

import codecs
from typing import Literal

__all__ = ["Shown"]

_FIRST = 10_000
_LAST = 20_000


class Shown:
    """Output as it comes, of both streams together: its beginning and its end, and how much was between.

    Bytes that are no UTF-8 show as U+FFFD.
    """

    def __init__(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": decoder("replace"), "stderr": decoder("replace")}
        self._first = self._last = ""
        self._length = 0

    async def take(self, stream: Literal["stdout", "stderr"], chunk: bytes) -> None:
        """Take a chunk; an `OnOutput`."""
        self.add(self._decoders[stream].decode(chunk))

    def add(self, text: str) -> None:
        """Take what comes after all that was said."""
        self._length += len(text)
        room = _FIRST - len(self._first)
        self._first += text[:room]
        self._last += text[room:]
        if len(self._last) > 2 * _LAST:  # not at each chunk: it is copied
            self._last = self._last[-_LAST:]

    def add_line(self, text: str) -> None:
        """Take what is to stand on a line of its own."""
        said = self._last or self._first
        self.add(text if not said or said.endswith("\n") else f"\n{text}")

    def text(self) -> str:
        """Return what there is to show."""
        last = self._last[-_LAST:]
        left_out = self._length - len(self._first) - len(last)
        if not left_out:
            return self._first + last
        hint = "write long output to a file, and read the parts that matter"
        return f"{self._first}\n[… {left_out:,} characters are left out here; {hint} …]\n{last}"
