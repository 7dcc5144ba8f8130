"""The pool: who has which sandbox, who gets the next one, and what has to go for it.

Above it, `core.broker` tells it which bets were admitted; below it are the vocabulary
(`core.events`, `core.bets`) and nothing else. `pool.py` is the state machine,
`sandboxes.py` has a sandbox's transition table.
"""

from headstart.core.pool.estimates import Estimate, Estimates
from headstart.core.pool.facts import PoolFact, SandboxFellIdle, StakeLost, StakeWon
from headstart.core.pool.policy import Mode, PoolPolicy
from headstart.core.pool.pool import Pool
from headstart.core.pool.sandboxes import Sandbox, SandboxState, Stake
from headstart.core.pool.statistics import PoolStatistics, SandboxView

__all__ = [
    "Estimate",
    "Estimates",
    "Mode",
    "Pool",
    "PoolFact",
    "PoolPolicy",
    "PoolStatistics",
    "Sandbox",
    "SandboxFellIdle",
    "SandboxState",
    "SandboxView",
    "Stake",
    "StakeLost",
    "StakeWon",
]
