"""How many hosted sandboxes there are and what they use, for whoever plans with the machine's memory.

Looking at one reads the kernel's files, or those of each of its processes: so each time only
some are looked at, those first that were not for the longest time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from headstart.errors import BackendError, TransactionRefused
from headstart.sandbox.hosted.infos import state_of
from headstart.sandbox.hosted.messages import SandboxState
from headstart.sandbox.hosted.register import Broken, Hibernated, Hosted, Register

__all__ = ["HostedSummary", "MemoryCount", "summary_of"]

_MOST_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedSummary:
    """The hosted sandboxes of a service.

    Attributes:
        running / paused / hibernated / broken: How many do that.
        branches: How many branches they have.
        memory_bytes: What they use together, branches too.
    """

    running: int
    paused: int
    hibernated: int
    broken: int
    branches: int
    memory_bytes: int


def summary_of(register: Register, *, memory_bytes: int) -> HostedSummary:
    """Count them."""
    living = [each for each in register.living if each.branch_of is None]
    found: list[Hosted | Hibernated | Broken] = [*living, *register.hibernated, *register.broken]
    states = Counter(map(state_of, found))
    return HostedSummary(
        running=states[SandboxState.RUNNING],
        paused=states[SandboxState.PAUSED],
        hibernated=states[SandboxState.HIBERNATED],
        broken=states[SandboxState.BROKEN],
        branches=len(register.living) - len(living),
        memory_bytes=memory_bytes,
    )


class MemoryCount:
    """What all that live use together, from the last look at each."""

    def __init__(self, register: Register) -> None:
        self._register = register
        self._used: dict[str, int] = {}
        """The longest ago first."""

    async def bytes(self) -> int:
        """Look at some, and return what all use as far as is known."""
        living = {each.id: each for each in self._register.living}
        self._used = {name: used for name, used in self._used.items() if name in living}
        unseen = [name for name in living if name not in self._used]
        for name in [*unseen, *self._used][:_MOST_AT_ONCE]:
            used = await _used_by(living[name])
            self._used.pop(name, None)
            self._used[name] = used
        return sum(self._used.values())


async def _used_by(hosted: Hosted) -> int:
    try:
        return (await hosted.box.usage()).memory_bytes
    except (BackendError, TransactionRefused):  # it is ending
        return 0
