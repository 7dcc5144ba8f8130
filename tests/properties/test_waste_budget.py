"""The waste budget is never exceeded, whatever is asked of it in whatever order."""

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from headstart.core.bets import BetId
from headstart.core.waste import WasteBudget, WasteLimits

_LIMITS = WasteLimits(memory_bytes=1_000, cpu_share=0.25, cpu_burst_s=4.0)
_SLACK = 1e-6


class WasteMachine(RuleBasedStateMachine):
    """The budget beside a model that keeps every reservation and every waste with its time."""

    bets = Bundle("bets")

    def __init__(self) -> None:
        super().__init__()
        self.budget = WasteBudget(_LIMITS)
        self.now_s = 0.0
        self.made = 0
        self.open: dict[BetId, tuple[int, float]] = {}
        self.wasted: list[tuple[float, float]] = []

    @rule(seconds=st.floats(0.0, 30.0))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(target=bets, memory=st.integers(0, 1_200), cpu=st.floats(0.0, 5.0))
    def reserve(self, memory: int, cpu: float) -> BetId:
        self.made += 1
        bet = BetId(f"b{self.made}")
        if self.budget.reserve(bet, at_s=self.now_s, memory_bytes=memory, cpu_s=cpu) is None:
            self.open[bet] = (memory, cpu)
        return bet

    @rule(bet=bets, memory=st.integers(0, 1_200), cpu=st.floats(0.0, 5.0))
    def revise(self, bet: BetId, memory: int, cpu: float) -> None:
        if bet in self.open and self.budget.revise(bet, at_s=self.now_s, memory_bytes=memory, cpu_s=cpu) is None:
            self.open[bet] = (memory, cpu)

    @rule(bet=consumes(bets))
    def hit(self, bet: BetId) -> None:
        self.budget.settle_hit(bet)
        self.open.pop(bet, None)

    @rule(bet=consumes(bets), share=st.floats(0.0, 1.0))
    def miss(self, bet: BetId, share: float) -> None:
        if bet in self.open:
            wasted_cpu_s = self.open.pop(bet)[1] * share
            self.budget.settle_miss(bet, at_s=self.now_s, cpu_s=wasted_cpu_s)
            self.wasted.append((self.now_s, wasted_cpu_s))

    @invariant()
    def unclaimed_bets_never_hold_more_memory_than_they_may(self) -> None:
        held = sum(memory for memory, _ in self.open.values())
        assert held <= _LIMITS.memory_bytes
        assert self.budget.statistics(at_s=self.now_s).reserved_memory_bytes == held

    @invariant()
    def no_window_of_time_wastes_more_than_it_may_even_if_all_open_bets_miss_now(self) -> None:
        wasted = [*self.wasted, (self.now_s, sum(cpu for _, cpu in self.open.values()))]
        for start_s in {at_s for at_s, _ in wasted}:
            in_window = sum(cpu for at_s, cpu in wasted if at_s >= start_s)
            allowed = _LIMITS.cpu_burst_s + _LIMITS.cpu_share * (self.now_s - start_s)
            assert in_window <= allowed + _SLACK

    @invariant()
    def reservations_are_always_covered(self) -> None:
        assert self.budget.statistics(at_s=self.now_s).available_cpu_s >= -_SLACK


TestWasteBudget = WasteMachine.TestCase
