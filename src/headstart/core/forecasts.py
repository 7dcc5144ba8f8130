"""What predictors said, until it is known whether it came true.

Every proposal is a forecast, also one that was refused: "this server will be called for
this backer before then". A call for it makes it true and tells how early it was said; time
and the session's end make it false. Both teach the calibration, so that a predictor that was refused can still
show that it has become right.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from headstart.core.bets import PredictorName
from headstart.ids import PrincipalId, ResourceId

__all__ = ["Forecast", "Forecasts"]

_MOST: Final = 16_384
"""Open forecasts; the oldest is dropped unjudged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One predictor's word on one server for one backer.

    Attributes:
        said: The probability it gave.
        at_s: When it first said so.
        until_s: When it is false.
    """

    principal: PrincipalId
    backer: str
    resource: ResourceId
    predictor: PredictorName
    said: float
    at_s: float
    until_s: float


_Key = tuple[str, ResourceId, PredictorName]


class Forecasts:
    """The open forecasts: one per backer, server and predictor, the surest word kept."""

    def __init__(self) -> None:
        self._open: OrderedDict[_Key, Forecast] = OrderedDict()
        self._of_backer: dict[str, dict[_Key, None]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, forecast: Forecast) -> None:
        """Take in a forecast; a repeated one keeps its times, and the surer word.

        Its end does not move, or a word repeated at every step would never be judged.
        """
        key = (forecast.backer, forecast.resource, forecast.predictor)
        known = self._open.get(key)
        if known is not None:
            self._open[key] = replace(known, said=max(known.said, forecast.said))
            return
        self._open[key] = forecast
        self._of_backer.setdefault(forecast.backer, {})[key] = None
        if len(self._open) > _MOST:
            self._remove(next(iter(self._open)))

    def came_true(self, backer: str, resource: ResourceId) -> list[Forecast]:
        """A call came: take out what was said about it."""
        keys = [key for key in self._of_backer.get(backer, ()) if key[1] == resource]
        return [self._remove(key) for key in keys]

    def expired(self, now_s: float) -> Iterator[Forecast]:
        """Take out what is false by now, as far as it stands first in line."""
        while self._open:
            key, forecast = next(iter(self._open.items()))
            if forecast.until_s > now_s:
                return
            yield self._remove(key)

    def rebind(self, backer: str, session: str) -> None:
        """What was said of a conversation is the session's."""
        for key in list(self._of_backer.get(backer, ())):
            self.add(replace(self._remove(key), backer=session))

    def close(self, backer: str) -> list[Forecast]:
        """A session ended: take out what was said of it and has not come true."""
        return [self._remove(key) for key in list(self._of_backer.get(backer, ()))]

    def _remove(self, key: _Key) -> Forecast:
        entries = self._of_backer[key[0]]
        del entries[key]
        if not entries:
            del self._of_backer[key[0]]
        return self._open.pop(key)
