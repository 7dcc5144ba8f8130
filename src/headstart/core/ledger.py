"""What became of every bet, per predictor: always the numerator *and* the denominator.

Of `proposals`, some were `admitted`, the rest `refused` for a reason. Of the admitted,
some are still open, the rest ended as `hits` (claimed), `misses` (nobody came) or
`voided` (ended for a reason that says nothing about the prediction: the start failed,
the session closed before its step was over). Two identities always hold::

    proposals = admitted + refused           admitted = hits + misses + voided + open

so every rate printed from here has both of its numbers. Waste is counted whatever the
ending: the CPU of a voided bet is as gone as that of a missed one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from headstart.core.bets import Bet, BetId, PredictorName
from headstart.core.policy import Refusal

__all__ = ["Ledger", "LedgerStatistics", "PredictorRecord"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorRecord:
    """One predictor's record.

    Attributes:
        expected_hits: Sum of the calibrated probabilities of the bets that ended as hit or
            miss; beside `hits` it shows whether the calibration is right.
        hidden_s: Seconds that agents did not wait, as measured at the claims.
        wasted_cpu_s / wasted_byte_s: What missed and voided bets cost.
    """

    predictor: PredictorName
    proposals: int = 0
    admitted: int = 0
    refused: tuple[tuple[Refusal, int], ...] = ()
    hits: int = 0
    misses: int = 0
    voided: int = 0
    expected_hits: float = 0.0
    hidden_s: float = 0.0
    wasted_cpu_s: float = 0.0
    wasted_byte_s: float = 0.0

    @property
    def open(self) -> int:
        return self.admitted - self.hits - self.misses - self.voided

    @property
    def decided(self) -> int:
        """The denominator of the hit rate."""
        return self.hits + self.misses


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStatistics:
    """All records, by predictor name."""

    records: tuple[PredictorRecord, ...] = ()

    def of(self, predictor: PredictorName) -> PredictorRecord:
        """Return one predictor's record, an empty one if it never proposed."""
        return next((r for r in self.records if r.predictor == predictor), PredictorRecord(predictor=predictor))


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenBet:
    predictor: PredictorName
    probability: float


@dataclass(slots=True, kw_only=True)
class _Tally:
    proposals: int = 0
    admitted: int = 0
    refused: Counter[Refusal] = field(default_factory=Counter[Refusal])
    hits: int = 0
    misses: int = 0
    voided: int = 0
    expected_hits: float = 0.0
    hidden_s: float = 0.0
    wasted_cpu_s: float = 0.0
    wasted_byte_s: float = 0.0


class Ledger:
    """Counts what became of bets.

    >>> from headstart.core.bets import BetKind
    >>> bet = Bet(
    ...     kind=BetKind.PREWARM, predictor="keyword", principal="local", session=None, resource="excel",
    ...     probability=0.5, hidden_s=0.8, expires_s=30.0,
    ... )
    >>> ledger = Ledger()
    >>> ledger.refused(bet, Refusal.ALREADY_THERE)
    >>> ledger.admitted(BetId("b1"), bet, probability=0.4)
    >>> ledger.hit(BetId("b1"), hidden_s=0.7)
    >>> record = ledger.statistics().of("keyword")
    >>> record.hits, record.decided, record.admitted, record.proposals, record.hidden_s
    (1, 1, 1, 2, 0.7)
    """

    def __init__(self) -> None:
        self._tallies: dict[PredictorName, _Tally] = {}
        self._open: dict[BetId, _OpenBet] = {}

    def refused(self, bet: Bet, reason: Refusal) -> None:
        """Count a proposal that was not taken."""
        tally = self._tally(bet.predictor)
        tally.proposals += 1
        tally.refused[reason] += 1

    def admitted(self, bet_id: BetId, bet: Bet, *, probability: float) -> None:
        """Count a proposal that was taken, at its calibrated probability.

        Raises:
            ValueError: A bet of this id is open already.
        """
        if bet_id in self._open:
            raise ValueError(f"bet {bet_id} is open already")
        tally = self._tally(bet.predictor)
        tally.proposals += 1
        tally.admitted += 1
        self._open[bet_id] = _OpenBet(predictor=bet.predictor, probability=probability)

    def hit(self, bet_id: BetId, *, hidden_s: float) -> None:
        """A claim used it; `hidden_s` is what the agent was spared.

        Raises:
            KeyError: No such open bet: it was settled before, or never admitted.
        """
        bet = self._open.pop(bet_id)
        tally = self._tally(bet.predictor)
        tally.hits += 1
        tally.expected_hits += bet.probability
        tally.hidden_s += max(0.0, hidden_s)

    def missed(self, bet_id: BetId, *, wasted_cpu_s: float = 0.0, wasted_byte_s: float = 0.0) -> None:
        """Nobody came for it.

        Raises:
            KeyError: No such open bet.
        """
        bet = self._open.pop(bet_id)
        tally = self._tally(bet.predictor)
        tally.misses += 1
        tally.expected_hits += bet.probability
        tally.wasted_cpu_s += wasted_cpu_s
        tally.wasted_byte_s += wasted_byte_s

    def voided(self, bet_id: BetId, *, wasted_cpu_s: float = 0.0, wasted_byte_s: float = 0.0) -> None:
        """It ended without saying anything about the prediction.

        Raises:
            KeyError: No such open bet.
        """
        tally = self._tally(self._open.pop(bet_id).predictor)
        tally.voided += 1
        tally.wasted_cpu_s += wasted_cpu_s
        tally.wasted_byte_s += wasted_byte_s

    def statistics(self) -> LedgerStatistics:
        """Return all records as they stand, in the order in which predictors first proposed."""
        return LedgerStatistics(
            records=tuple(
                PredictorRecord(
                    predictor=predictor,
                    proposals=tally.proposals,
                    admitted=tally.admitted,
                    refused=tuple(sorted(tally.refused.items(), key=lambda item: item[0].name)),
                    hits=tally.hits,
                    misses=tally.misses,
                    voided=tally.voided,
                    expected_hits=tally.expected_hits,
                    hidden_s=tally.hidden_s,
                    wasted_cpu_s=tally.wasted_cpu_s,
                    wasted_byte_s=tally.wasted_byte_s,
                )
                for predictor, tally in self._tallies.items()
            )
        )

    def _tally(self, predictor: PredictorName) -> _Tally:
        return self._tallies.setdefault(predictor, _Tally())
