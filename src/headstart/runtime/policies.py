"""The user's settings as the core's policy."""

from __future__ import annotations

import os

from headstart.config.model import Settings
from headstart.core.broker import BrokerPolicy
from headstart.core.pool import Mode, PoolPolicy
from headstart.runtime.forms import ZYGOTE_SHARE

__all__ = ["broker_policy"]

BYTES_PER_MB = 1_000_000


def broker_policy(settings: Settings, *, zygotes: bool) -> BrokerPolicy:
    """Map `[pool]` and the learning switch to what the broker is made from.

    With `zygotes`, their share of the memory budget is not the pool's to give.
    """
    pool = settings.pool
    memory_bytes = pool.memory_mb * BYTES_PER_MB
    set_aside_bytes = int(memory_bytes * ZYGOTE_SHARE) if zygotes else 0
    learn_text = settings.service.learn_text
    return BrokerPolicy(
        pool=PoolPolicy(
            mode=Mode(pool.mode.value),
            memory_bytes=memory_bytes - set_aside_bytes,
            set_aside_bytes=set_aside_bytes,
            starts_at_once=pool.starts_at_once if pool.starts_at_once is not None else os.cpu_count() or 1,
            reserved_sets=pool.reserved_sets,
            idle_stop_s=pool.idle_stop_s,
        ),
        gamma=pool.gamma,
        prefetch=pool.prefetch,
        waste_price=pool.waste_price,
        waste_cpu_share=pool.waste_cpu_share,
        waste_cpu_burst_s=pool.waste_cpu_burst_s,
        waste_memory_bytes=pool.waste_memory_mb * BYTES_PER_MB,
        learn=settings.service.learn,
        learn_text=learn_text if learn_text is not None else len(settings.service.keys) <= 1,
    )
