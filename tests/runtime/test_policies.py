"""Every setting of `[pool]` and of learning reaches the core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headstart.config.model import PoolMode, PoolSettings, ServiceSettings, Settings
from headstart.core.broker import BrokerPolicy
from headstart.core.pool import Mode
from headstart.runtime.forms import ZYGOTE_SHARE
from headstart.runtime.policies import broker_policy


def policy_of(
    *, pool: PoolSettings | None = None, zygotes: bool = False, keys: tuple[str, ...] = (), **service: Any
) -> BrokerPolicy:
    settings = Settings(
        servers=(),
        state_dir=Path("/nowhere"),
        pool=pool or PoolSettings(),
        service=ServiceSettings(keys=keys, **service),
    )
    return broker_policy(settings, zygotes=zygotes)


def test_what_is_set_for_guessing_is_what_the_core_guesses_by() -> None:
    told = policy_of(
        pool=PoolSettings(
            gamma=3, prefetch="paper", waste_price=0.7, waste_cpu_share=0.1, waste_cpu_burst_s=2.5, waste_memory_mb=64
        )
    )
    assert (told.gamma, told.prefetch, told.waste_price) == (3, "paper", 0.7)
    assert (told.waste_cpu_share, told.waste_cpu_burst_s) == (0.1, 2.5)
    assert told.waste_memory_bytes == 64_000_000


@pytest.mark.parametrize("mode", PoolMode)
def test_what_is_set_for_the_pool_is_what_it_does(mode: PoolMode) -> None:
    told = policy_of(
        pool=PoolSettings(mode=mode, memory_mb=1_000, starts_at_once=7, reserved_sets=3, idle_stop_s=11.0)
    ).pool
    assert told.mode is Mode(mode.value)
    assert (told.starts_at_once, told.reserved_sets, told.idle_stop_s) == (7, 3, 11.0)
    assert told.memory_bytes == 1_000_000_000


def test_what_zygotes_may_hold_is_not_the_pools_to_give() -> None:
    alone, beside = policy_of(zygotes=False).pool, policy_of(zygotes=True).pool
    assert beside.memory_bytes == pytest.approx(alone.memory_bytes * (1 - ZYGOTE_SHARE))


@pytest.mark.parametrize(
    ("keys", "switch", "learns"),
    [
        ((), None, True),
        (("one",), None, True),
        (("one", "two"), None, False),
        (("one", "two"), True, True),
        ((), False, False),
    ],
    ids=["nobody else", "one key", "two keys", "two keys, switched on", "switched off"],
)
def test_texts_are_learned_from_while_there_is_one_principal_or_if_switched_on(
    *, keys: tuple[str, ...], switch: bool | None, learns: bool
) -> None:
    assert policy_of(keys=keys, learn_text=switch).learn_text is learns


def test_learning_can_be_switched_off() -> None:
    assert policy_of().learn
    assert not policy_of(learn=False).learn
