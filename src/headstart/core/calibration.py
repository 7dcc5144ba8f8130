"""What a predictor's word is worth, learned from what became of it.

*Probability.* `Calibration` maps what a predictor says to how often it then happened.
The range is cut into ten bins; each counts outcomes. In a bin, the answer is the mean of
a Beta posterior whose prior is what the predictor said, worth `prior_strength` outcomes::

    calibrated(p) = (hits + s · p) / (trials + s)

Bins that together would make the map fall somewhere (they do by chance, while there are
few outcomes) are pooled until it rises everywhere, so that a surer word is never worth
less. Old outcomes fade: when a bin is full both its counts are halved.

Feed it the outcome of *every* proposal whose outcome is known, refused ones too ("did a
call for this server come in time?"): else a predictor that was wrong early on is never
admitted again and never gets to show that it has become right.

*Lead.* `LeadTimes` remembers how long before its claim a predictor proposed, because
only that much of a start can be hidden. The mean of `min(start, lead)` over remembered
leads is the expectation wanted; `min(start, mean lead)` would flatter it.

Rejected: isotonic regression over raw outcomes (unbounded memory), Platt scaling (one
curve for all shapes of wrongness).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

__all__ = ["BINS", "Calibration", "CalibrationData", "LeadTimes"]

BINS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationData:
    """A calibration as plain data: per bin, outcomes that came true and all outcomes."""

    hits: tuple[float, ...] = (0.0,) * BINS
    trials: tuple[float, ...] = (0.0,) * BINS


class Calibration:
    """One predictor's map from said to true probabilities.

    >>> calibration = Calibration()
    >>> calibration.calibrated(0.75)
    0.75
    >>> for _ in range(12):
    ...     calibration.update(0.75, came_true=False)
    >>> calibration.calibrated(0.75)
    0.1875

    Args:
        prior_strength: Outcomes that the predictor's own word is worth.
        bin_capacity: Outcomes after which a bin's counts are halved.
    """

    def __init__(self, *, prior_strength: float = 4.0, bin_capacity: float = 200.0) -> None:
        self._strength = prior_strength
        self._capacity = bin_capacity
        self._hits = [0.0] * BINS
        self._trials = [0.0] * BINS
        self._pooled: tuple[tuple[float, float], ...] = ((0.0, 0.0),) * BINS

    def calibrated(self, said: float) -> float:
        """Return the probability to use where the predictor said `said`; both in [0, 1]."""
        said = min(1.0, max(0.0, said))
        hits, trials = self._pooled[_bin(said)]
        return (hits + self._strength * said) / (trials + self._strength)

    def update(self, said: float, *, came_true: bool) -> None:
        """Count an outcome of something the predictor gave probability `said`."""
        index = _bin(min(1.0, max(0.0, said)))
        self._hits[index] += came_true
        self._trials[index] += 1.0
        if self._trials[index] >= self._capacity:
            self._hits[index] /= 2.0
            self._trials[index] /= 2.0
        self._pooled = _pool(self._hits, self._trials, self._strength)

    def export(self) -> CalibrationData:
        return CalibrationData(hits=tuple(self._hits), trials=tuple(self._trials))

    def restore(self, data: CalibrationData) -> None:
        """Continue from exported counts.

        Raises:
            ValueError: They are not counts of this kind.
        """
        pairs = list(zip(data.hits, data.trials, strict=False))
        if len(data.hits) != BINS or len(data.trials) != BINS or not all(0 <= h <= t < inf for h, t in pairs):
            raise ValueError(f"not a calibration: {data}")
        self._hits, self._trials = list(data.hits), list(data.trials)
        self._pooled = _pool(self._hits, self._trials, self._strength)


def _bin(said: float) -> int:
    return min(BINS - 1, int(said * BINS))


def _pool(hits: Sequence[float], trials: Sequence[float], strength: float) -> tuple[tuple[float, float], ...]:
    """Join neighbouring bins until the map rises across every border between them."""
    blocks: list[tuple[float, float, int]] = []
    for index in range(BINS):
        block = (hits[index], trials[index], 1)
        while blocks and _falls(blocks[-1], block, border=_border(index + 1 - block[2]), strength=strength):
            before = blocks.pop()
            block = (before[0] + block[0], before[1] + block[1], before[2] + block[2])
        blocks.append(block)
    return tuple((hit, trial) for hit, trial, width in blocks for _ in range(width))


def _border(index: int) -> float:
    return index / BINS


def _falls(left: tuple[float, float, int], right: tuple[float, float, int], *, border: float, strength: float) -> bool:
    here = strength * border
    return (left[0] + here) / (left[1] + strength) > (right[0] + here) / (right[1] + strength)


class LeadTimes:
    """How long before their claims one predictor's proposals came, seconds.

    >>> leads = LeadTimes(prior_s=2.0)
    >>> leads.hidden_s(0.5), leads.hidden_s(3.0)
    (0.5, 2.0)

    Args:
        prior_s: The lead assumed until there is anything to remember.
        remembered: How many of the newest leads count.
    """

    def __init__(self, *, prior_s: float = 2.0, remembered: int = 32) -> None:
        self._leads: deque[float] = deque([prior_s], maxlen=remembered)

    def record(self, lead_s: float) -> None:
        """Remember that a claim came `lead_s` seconds after the proposal."""
        self._leads.append(max(0.0, lead_s))

    def hidden_s(self, start_s: float) -> float:
        """Expect this much of a start to be hidden: the mean of `min(start_s, lead)`."""
        return sum(min(start_s, lead) for lead in self._leads) / len(self._leads)

    def export(self) -> tuple[float, ...]:
        return tuple(self._leads)

    def restore(self, leads_s: Sequence[float]) -> None:
        """Continue from exported leads; none leaves the prior in place.

        Raises:
            ValueError: One is not a number of seconds.
        """
        if not all(0.0 <= lead < inf for lead in leads_s):
            raise ValueError(f"not lead times: {leads_s}")
        if leads_s:
            self._leads = deque(leads_s, maxlen=self._leads.maxlen)
