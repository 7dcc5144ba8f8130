"""How long an idle sandbox is worth its memory.

The longer a sandbox has been idle, the less likely is its next call in the next second.
So the life of an idle period is cut into ages, and for each age two things are counted:
the seconds that idle periods spent there and the calls that ended them there. Their
quotient is the hazard of a return at that age. Walking through the ages, each adds

    P(still idle) · P(returns in this age) · start_s   −   price · bytes · seconds held

and the sandbox is kept to the end of the age where the sum was highest; if it never rises
above 0, it is stopped at once. Counting seconds *spent* treats periods that were cut short
(the session ended, memory was needed) correctly: they are no returns and no refusals.

Rejected: one mean gap. Agents' gaps are heavy-tailed: a mean keeps dead sandboxes for
minutes because of a few long pauses.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from headstart.ids import PrincipalId, ResourceId

__all__ = ["Keeping", "Stay"]

_AGES_S: Final = (0.0, 3.0, 10.0, 30.0, 90.0, 270.0, 600.0)
"""Where the ages begin and the last one ends."""

_BINS: Final = len(_AGES_S) - 1
_FADE_AT: Final = 200.0
"""Returns after which all counts are halved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """How long to keep, and how likely the keeping is of use.

    Attributes:
        seconds: 0: stop now.
        probability: That a call comes before they are over.
    """

    seconds: float
    probability: float


def _prior() -> list[float]:
    """One return each at a hazard that falls with age: 1 / (2 · (age + 15 s))."""
    return [2.0 * ((begin + end) / 2.0 + 15.0) for begin, end in pairwise(_AGES_S)]


@dataclass(slots=True, kw_only=True)
class _Ages:
    returns: list[float] = field(default_factory=lambda: [1.0] * _BINS)
    spent_s: list[float] = field(default_factory=_prior)


class Keeping:
    """Learned per principal and server; bounded by what is registered."""

    def __init__(self) -> None:
        self._ages: dict[tuple[PrincipalId, ResourceId], _Ages] = {}

    def idle_ended(self, principal: PrincipalId, resource: ResourceId, *, after_s: float, returned: bool) -> None:
        """An idle period is over: a call came, or it was cut short."""
        ages = self._ages.setdefault((principal, resource), _Ages())
        after_s = max(0.0, after_s)
        for index in range(_BINS):
            ages.spent_s[index] += min(max(0.0, after_s - _AGES_S[index]), _AGES_S[index + 1] - _AGES_S[index])
        if returned and after_s < _AGES_S[-1]:
            ages.returns[bisect_right(_AGES_S, after_s) - 1] += 1.0
        if sum(ages.returns) > _FADE_AT:
            ages.returns = [count / 2.0 for count in ages.returns]
            ages.spent_s = [seconds / 2.0 for seconds in ages.spent_s]

    def stay(
        self, principal: PrincipalId, resource: ResourceId, *, start_s: float, cost_s_per_s: float, most_s: float
    ) -> Stay:
        """Return how long to keep.

        Args:
            principal: Whose habits.
            resource: Which server.
            start_s: What is spared if a call comes.
            cost_s_per_s: What keeping costs: seconds of waiting that a second of it is worth.
            most_s: Never longer.
        """
        ages = self._ages.get((principal, resource)) or _Ages()
        idle, total, best = 1.0, 0.0, Stay(seconds=0.0, probability=0.0)
        highest = 0.0
        for index in range(_BINS):
            width_s = min(_AGES_S[index + 1], most_s) - _AGES_S[index]
            if width_s <= 0.0:
                break
            hazard = ages.returns[index] / ages.spent_s[index]
            stays = math.exp(-hazard * width_s)
            total += idle * (1.0 - stays) * (start_s - cost_s_per_s / hazard)
            idle *= stays
            if total > highest:
                highest = total
                best = Stay(seconds=_AGES_S[index] + width_s, probability=1.0 - idle)
        return best

    def export(self, principal: PrincipalId) -> dict[str, list[float]]:
        """Return the counts as plain data: returns, then seconds spent."""
        return {
            resource: [*ages.returns, *ages.spent_s]
            for (owner, resource), ages in self._ages.items()
            if owner == principal
        }

    def load(self, principal: PrincipalId, data: Mapping[str, list[float]]) -> None:
        """Take back what `export` gave; what has another shape is left out."""
        for resource, numbers in data.items():
            if len(numbers) == 2 * _BINS and all(number > 0.0 for number in numbers):
                ages = _Ages(returns=list(numbers[:_BINS]), spent_s=list(numbers[_BINS:]))
                self._ages[principal, ResourceId(resource)] = ages

    def forget(self, principal: PrincipalId) -> None:
        """Erase a principal's."""
        self._ages = {key: ages for key, ages in self._ages.items() if key[0] != principal}
