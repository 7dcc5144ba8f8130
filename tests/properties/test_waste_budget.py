"""The waste budget keeps its bounds, whatever is asked of it in whatever order.

Who uses no more than was reserved for it never has any stretch of time waste more than it may.
What is used beyond that is a debt: whenever something more is admitted or allowed, no stretch of
time up to then has wasted more than it may, overruns and all that is open included; in between,
only overruns can exceed it.
"""

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from headstart.core.bets import BetId
from headstart.core.policy import Refusal
from headstart.core.waste import WasteBudget, WasteLimits

_LIMITS = WasteLimits(memory_bytes=1_000, cpu_share=0.25, cpu_burst_s=4.0)
_SLACK = 1e-6


class WasteMachine(RuleBasedStateMachine):
    """The budget beside a model that keeps every reservation, and every waste and overrun with its time."""

    bets = Bundle("bets")

    def __init__(self) -> None:
        super().__init__()
        self.budget = WasteBudget(_LIMITS)
        self.now_s = 0.0
        self.made = 0
        self.open: dict[BetId, tuple[int, float]] = {}
        self.wasted: list[tuple[float, float]] = []
        self.overrun: list[tuple[float, float]] = []
        self.open_overrun_s: dict[BetId, float] = {}
        self.overrun_since_admission_s = 0.0

    @rule(seconds=st.floats(0.0, 30.0))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(target=bets, memory=st.integers(0, 1_200), cpu=st.floats(0.0, 5.0))
    def reserve(self, memory: int, cpu: float) -> BetId:
        self.made += 1
        bet = BetId(f"b{self.made}")
        if self.budget.reserve(bet, at_s=self.now_s, memory_bytes=memory, cpu_s=cpu) is None:
            self.open[bet] = (memory, cpu)
            self.expect_room_for(cpu)
        return bet

    @rule(bet=bets, memory=st.integers(0, 1_200), share=st.floats(0.0, 1.0), ahead=st.floats(0.0, 5.0))
    def revise(self, bet: BetId, memory: int, share: float, ahead: float) -> None:
        if bet in self.open:
            self.measure(bet, memory, spent_s=self.open[bet][1] * share, ahead_s=ahead)

    @rule(bet=bets, over=st.floats(0.0, 10.0), ahead=st.floats(0.0, 5.0))
    def revise_what_has_used_more_than_was_reserved(self, bet: BetId, over: float, ahead: float) -> None:
        if bet in self.open:
            memory, reserved_s = self.open[bet]
            self.overran(bet, over)
            self.measure(bet, memory, spent_s=reserved_s + over, ahead_s=ahead)

    def measure(self, bet: BetId, memory: int, *, spent_s: float, ahead_s: float) -> None:
        allowed = self.budget.revise(
            bet, at_s=self.now_s, memory_bytes=memory, spent_cpu_s=spent_s, ahead_cpu_s=ahead_s
        )
        if not isinstance(allowed, Refusal):
            more_s = allowed - max(spent_s, self.open[bet][1])
            self.open[bet] = (memory, allowed)
            self.expect_room_for(more_s)

    @rule(bet=consumes(bets))
    def hit(self, bet: BetId) -> None:
        self.budget.settle_hit(bet)
        self.open.pop(bet, None)
        self.open_overrun_s.pop(bet, None)

    @rule(bet=consumes(bets), share=st.floats(0.0, 1.0))
    def miss(self, bet: BetId, share: float) -> None:
        if bet in self.open:
            self.settle(bet, wasted_cpu_s=self.open[bet][1] * share)

    @rule(bet=consumes(bets), over=st.floats(0.0, 10.0))
    def miss_that_cost_more_than_was_reserved(self, bet: BetId, over: float) -> None:
        if bet in self.open:
            self.overran(bet, over)
            self.settle(bet, wasted_cpu_s=self.open[bet][1] + over)

    def overran(self, bet: BetId, cpu_s: float) -> None:
        self.open_overrun_s[bet] = self.open_overrun_s.get(bet, 0.0) + cpu_s
        self.overrun_since_admission_s += cpu_s

    def settle(self, bet: BetId, *, wasted_cpu_s: float) -> None:
        del self.open[bet]
        self.budget.settle_miss(bet, at_s=self.now_s, cpu_s=wasted_cpu_s)
        self.wasted.append((self.now_s, wasted_cpu_s))
        self.overrun.append((self.now_s, self.open_overrun_s.pop(bet, 0.0)))

    def expect_room_for(self, admitted_cpu_s: float) -> None:
        """Require that a debt was paid before anything more that may waste CPU was admitted."""
        if admitted_cpu_s > 0.0:
            self.overrun_since_admission_s = 0.0
            for start_s, in_window in self.windows():
                assert in_window <= _allowed(self.now_s - start_s) + _SLACK

    def windows(self) -> list[tuple[float, float]]:
        """Every time that something was wasted at, and what is wasted from then on if all open bets miss now."""
        wasted = [*self.wasted, (self.now_s, sum(cpu for _, cpu in self.open.values()))]
        return [(start_s, _since(start_s, wasted)) for start_s in {at_s for at_s, _ in wasted}]

    @invariant()
    def unclaimed_bets_never_hold_more_memory_than_they_may(self) -> None:
        held = sum(memory for memory, _ in self.open.values())
        assert held <= _LIMITS.memory_bytes
        assert self.budget.statistics(at_s=self.now_s).reserved_memory_bytes == held

    @invariant()
    def no_window_of_time_wastes_more_than_it_may_and_what_overran_in_it(self) -> None:
        """So none at all does as long as nothing overran."""
        for start_s, in_window in self.windows():
            overrun_s = _since(start_s, self.overrun) + sum(self.open_overrun_s.values())
            assert in_window <= _allowed(self.now_s - start_s) + overrun_s + _SLACK

    @invariant()
    def a_debt_is_never_more_than_what_overran_since_something_was_admitted(self) -> None:
        available_cpu_s = self.budget.statistics(at_s=self.now_s).available_cpu_s
        assert available_cpu_s >= -self.overrun_since_admission_s - _SLACK


def _allowed(length_s: float) -> float:
    return _LIMITS.cpu_burst_s + _LIMITS.cpu_share * length_s


def _since(start_s: float, amounts: list[tuple[float, float]]) -> float:
    return sum(amount for at_s, amount in amounts if at_s >= start_s)


TestWasteBudget = WasteMachine.TestCase
