"""Prices bets, admits them within the waste budget, settles them, and learns from how they end.

`core/policy.py` has the rule, `core/calibration.py` what a predictor's word is worth,
`core/waste.py` the bound on what may be lost, `core/ledger.py` the record. This is where
they are asked in turn:

    said → calibrated → priced → within the budget → admitted → hit | missed | voided
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from headstart.core.bets import Bet, BetId, BetKind, PredictorName
from headstart.core.calibration import Calibration, CalibrationData, LeadTimes
from headstart.core.forecasts import Forecast, Forecasts
from headstart.core.ledger import Ledger, LedgerStatistics
from headstart.core.policy import BetRule, Refusal
from headstart.core.pool import Stake, StakeLost, StakeWon
from headstart.core.waste import WasteBudget, WasteLimits, WasteStatistics
from headstart.ids import PrincipalId, ResourceId

__all__ = ["CERTAIN", "Bookmaker"]

_JUDGED_AFTER_S: Final = 120.0
"""How long a word may take to come true: longer than any bet runs, so that a predictor whose
leads are longer than its bets is found out, and its bets run longer from then on."""

CERTAIN: Final = 0.9
"""From this probability on a bet is all but certain: its call is being written."""

_HEADROOM_S: Final = 0.25
"""CPU-seconds that a bet may use beyond what is expected of it: so far apart may those look
who hold its sandbox to its limit."""

_MOST_RECORDS: Final = 4_096
"""Predictors times principals remembered; the one least recently made goes first."""


@dataclass(slots=True, kw_only=True)
class _Record:
    calibration: Calibration
    leads: LeadTimes


class Bookmaker:
    """Keeps the books on all bets.

    Args:
        rule: The bet rule.
        limits: What may be wasted.
        learns: Predictors are judged by what comes of their words; else what was loaded stays as it is.
    """

    def __init__(self, rule: BetRule, limits: WasteLimits, *, learns: bool = True) -> None:
        self._rule = rule
        self._learns = learns
        self._budget = WasteBudget(limits)
        self._ledger = Ledger()
        self._forecasts = Forecasts()
        self._records: dict[tuple[PrincipalId, PredictorName], _Record] = {}
        self._unknown = _Record(calibration=Calibration(), leads=LeadTimes())
        self._made = 0

    @property
    def rule(self) -> BetRule:
        return self._rule

    # ------------------------------------------------------------ before

    def hidden_s(self, principal: PrincipalId, predictor: PredictorName, start_s: float) -> float:
        """Expect this much of a start to be hidden, as early as this predictor speaks."""
        return self._known(principal, predictor).leads.hidden_s(start_s)

    def usual_lead_s(self, principal: PrincipalId, predictor: PredictorName) -> float:
        """Return the time from this predictor's word to the call that three of four calls keep."""
        leads_s = sorted(self._known(principal, predictor).leads.export())
        return leads_s[(len(leads_s) - 1) * 3 // 4]

    def heard(self, bet: Bet, backer: str, now_s: float) -> None:
        """Remember what was said, to judge it later."""
        self._forecasts.add(
            Forecast(
                principal=bet.principal,
                backer=backer,
                resource=bet.resource,
                predictor=bet.predictor,
                said=bet.probability,
                at_s=now_s,
                until_s=now_s + _JUDGED_AFTER_S,
            )
        )

    def price(self, bet: Bet, backer: str, now_s: float, *, always_worth_it: bool = False) -> Stake | Refusal:
        """Price a bet; return the stake to place if it is worth taking."""
        probability = self._known(bet.principal, bet.predictor).calibration.calibrated(bet.probability)
        price = self._rule.price(bet, probability=probability)
        if not price.worth_taking and not always_worth_it:
            return Refusal.NOT_WORTH_IT
        return self.stake(bet, backer, now_s, probability=probability)

    def stake(self, bet: Bet, backer: str, now_s: float, *, probability: float | None = None) -> Stake:
        """Make the stake of a bet whose worth is already decided."""
        price = self._rule.price(bet, probability=probability)
        self._made += 1
        return Stake(
            id=BetId(f"bet_{self._made}"),
            bet=bet,
            probability=price.probability,
            backer=backer,
            worth_s=price.worth_s,
            placed_s=now_s,
            expires_s=bet.expires_s,
            cpu_s=0.0 if bet.kind is BetKind.KEEP else bet.waste_cpu_s + _HEADROOM_S,
        )

    def reserve(self, stake: Stake, now_s: float, *, memory_bytes: int) -> Stake | Refusal:
        """Set aside what the bet may waste, or say what forbids it; return the stake with what it got.

        One that is all but certain is begun with what there is, if only with nothing: it must not
        be shut out by guesses that are still open, and its call will lift the limit.
        """
        certain = stake.probability >= CERTAIN
        cpu_s = 0.0 if certain else stake.cpu_s
        refusal = self._budget.reserve(stake.id, at_s=now_s, memory_bytes=memory_bytes, cpu_s=cpu_s)
        if refusal is not None:
            return refusal
        if not certain:
            return stake
        got = self._budget.revise(
            stake.id, at_s=now_s, memory_bytes=memory_bytes, spent_cpu_s=0.0, ahead_cpu_s=stake.cpu_s
        )
        return got if isinstance(got, Refusal) else replace(stake, cpu_s=got)

    def refused(self, bet: Bet, reason: Refusal) -> None:
        """Count a proposal that was not taken."""
        self._ledger.refused(bet, reason)

    def admitted(self, stake: Stake) -> None:
        """Count a proposal that was taken."""
        self._ledger.admitted(stake.id, stake.bet, probability=stake.probability)

    # ------------------------------------------------------------ after

    def measured(
        self, stake: Stake, now_s: float, *, memory_bytes: int, cpu_s: float, ready: bool
    ) -> float | Refusal | None:
        """A staked start has cost this much so far.

        Returns:
            The CPU-seconds that it may use in all; a refusal if it holds more memory than may be wasted; None if the
            bet is settled, and nothing of this matters.
        """
        if not self._budget.holds(stake.id):
            return None
        return self._budget.revise(
            stake.id,
            at_s=now_s,
            memory_bytes=memory_bytes,
            spent_cpu_s=cpu_s,
            ahead_cpu_s=_HEADROOM_S if ready else max(_HEADROOM_S, stake.cpu_s - cpu_s),
        )

    def won(self, fact: StakeWon) -> None:
        """A call came for it."""
        self._ledger.hit(fact.stake.id, hidden_s=fact.hidden_s)
        self._budget.settle_hit(fact.stake.id)

    def lost(self, fact: StakeLost) -> None:
        """Nobody came."""
        ended = self._ledger.voided if fact.void else self._ledger.missed
        ended(fact.stake.id, wasted_cpu_s=fact.cpu_s, wasted_byte_s=fact.byte_s)
        self._budget.settle_miss(fact.stake.id, at_s=fact.at_s, cpu_s=fact.cpu_s)

    def called(self, backers: Sequence[str], resource: ResourceId, now_s: float) -> None:
        """A call came: whoever said so was right, and was this early."""
        for backer in backers:
            for forecast in self._forecasts.came_true(backer, resource):
                if self._learns:
                    record = self._record(forecast.principal, forecast.predictor)
                    record.calibration.update(forecast.said, came_true=True)
                    record.leads.record(now_s - forecast.at_s)

    def time_passed(self, now_s: float) -> None:
        """What did not come in time was wrong."""
        self._were_wrong(self._forecasts.expired(now_s))

    def rebind(self, backer: str, session: str) -> None:
        """A conversation turned out to be a session's."""
        self._forecasts.rebind(backer, session)

    def session_closed(self, session: str) -> None:
        """What has not come by now never will: a start for it was in vain."""
        self._were_wrong(self._forecasts.close(session))

    def _were_wrong(self, forecasts: Iterable[Forecast]) -> None:
        for forecast in forecasts:
            if self._learns:
                record = self._record(forecast.principal, forecast.predictor)
                record.calibration.update(forecast.said, came_true=False)

    # ------------------------------------------------------------ the record

    def ledger(self) -> LedgerStatistics:
        return self._ledger.statistics()

    def waste(self, at_s: float) -> WasteStatistics:
        return self._budget.statistics(at_s=at_s)

    def export(self, principal: PrincipalId) -> dict[str, Any]:
        """Return what a principal's predictors were worth, as plain data."""
        found: dict[str, Any] = {}
        for (owner, predictor), record in self._records.items():
            if owner == principal:
                data = record.calibration.export()
                found[predictor] = {
                    "hits": list(data.hits),
                    "trials": list(data.trials),
                    "leads_s": list(record.leads.export()),
                }
        return found

    def load(self, principal: PrincipalId, data: Mapping[str, Any]) -> None:
        """Take back what `export` gave.

        Raises:
            ValueError: It holds what `export` never gives.
        """
        for predictor, entry in data.items():
            record = self._record(principal, PredictorName(predictor))
            record.calibration.restore(CalibrationData(hits=tuple(entry["hits"]), trials=tuple(entry["trials"])))
            record.leads.restore(entry["leads_s"])

    def forget(self, principal: PrincipalId) -> None:
        """Erase what was learned of a principal (the counts of the ledger have no content)."""
        self._records = {key: record for key, record in self._records.items() if key[0] != principal}

    def _known(self, principal: PrincipalId, predictor: PredictorName) -> _Record:
        """Return what is known of a predictor, to be read only."""
        return self._records.get((principal, predictor), self._unknown)

    def _record(self, principal: PrincipalId, predictor: PredictorName) -> _Record:
        key = (principal, predictor)
        record = self._records.get(key)
        if record is None:
            record = self._records[key] = _Record(calibration=Calibration(), leads=LeadTimes())
            if len(self._records) > _MOST_RECORDS:
                del self._records[next(iter(self._records))]
        return record
