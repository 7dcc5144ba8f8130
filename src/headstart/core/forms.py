"""From what a sandbox is started; apart from `events`, which a client of the service need not load."""

from __future__ import annotations

from enum import Enum

__all__ = ["PrepareForm"]


class PrepareForm(Enum):
    """The prepared form: from what a sandbox is started."""

    COLD = "cold"
    ZYGOTE = "zygote"
