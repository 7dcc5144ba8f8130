"""Run the program's own code in the zygote, up to the moment when it makes its event loop.

Importing is not all that a server does before it answers: many build their tools in
`main`, for longer than the imports of others take. What comes before the event loop is the
same in every copy, has no threads and has read nothing from its client. So the zygote
executes the program's entry, is stopped in the depth of the program's call stack where the
first loop is about to be made, and forks there; each fork returns from that call and goes on.

Standard input is a pipe on which nothing ever comes, so that a program that reads before it
has a loop is found out (it never arrives) instead of reading an end of file that no client
has sent.

Both ways to a loop are watched: the policy's `new_event_loop` (also uvloop's, which inherits
it) and `asyncio.Runner`, which may be given a factory of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

POLICIES = ("BaseDefaultEventLoopPolicy", "_BaseDefaultEventLoopPolicy")


def possible() -> bool:
    """Tell whether what was imported could make an event loop that is watched."""
    return "asyncio" in sys.modules


def stop_at_event_loop(arrived: Callable[[], None]) -> None:
    """Call `arrived` once, instead of the first making of an event loop; when it returns, the loop is made."""
    asyncio: Any = sys.modules["asyncio"]
    doors: list[tuple[Any, str, Any]] = [
        (owner, name, getattr(owner, name))
        for owner, name in (
            *((getattr(asyncio.events, policy, None), "new_event_loop") for policy in POLICIES),
            (getattr(asyncio.runners, "Runner", None), "_lazy_init"),
        )
        if owner is not None
    ]

    def watched(plain: Callable[..., Any]) -> Callable[..., Any]:
        def make(*args: Any) -> Any:
            for owner, name, before in doors:
                setattr(owner, name, before)
            arrived()
            return plain(*args)

        return make

    for owner, name, plain in doors:
        setattr(owner, name, watched(plain))


def silence_input() -> None:
    """Make standard input a pipe that stays open and empty for as long as this process lives."""
    reading, _writing = os.pipe()
    os.dup2(reading, 0)
    os.close(reading)
