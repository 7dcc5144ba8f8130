"""How long to wait after a failure, and who may try first."""

from __future__ import annotations

import pytest

from headstart.core.pool.restarts import Restarts
from headstart.ids import PrincipalId, ResourceId, SandboxId

ME, GIT, EXCEL = PrincipalId("me"), ResourceId("git"), ResourceId("excel")


def restarts() -> Restarts:
    return Restarts(first_s=1.0, cap_s=60.0, forgiven_after_s=120.0)


def test_each_failure_doubles_the_wait_up_to_the_cap() -> None:
    after = restarts()
    waits = [after.failed(ME, GIT, "no", now_s=float(n)) for n in range(10)]
    for wait_s, nominal_s in zip(waits, (1, 2, 4, 8, 16, 32, 60, 60, 60, 60), strict=True):
        assert 0.75 * nominal_s <= wait_s < 1.25 * nominal_s


def test_the_jitter_differs_between_servers_and_never_between_runs() -> None:
    assert restarts().failed(ME, GIT, "no", 0.0) == restarts().failed(ME, GIT, "no", 0.0)
    assert restarts().failed(ME, GIT, "no", 0.0) != restarts().failed(ME, EXCEL, "no", 0.0)


def test_time_without_a_failure_forgives() -> None:
    after = restarts()
    first_s = after.failed(ME, GIT, "no", 0.0)
    after.failed(ME, GIT, "no", 10.0)
    assert after.failed(ME, GIT, "no", 130.0) == first_s


def test_becoming_ready_lets_the_others_go_but_does_not_forgive() -> None:
    after = restarts()
    wait_s = after.failed(ME, GIT, "no", 0.0)
    assert not after.may_start(ME, GIT, wait_s / 2)
    assert after.may_start(ME, GIT, wait_s)
    after.started(ME, GIT, SandboxId("probe"))
    assert not after.may_start(ME, GIT, wait_s)
    after.became_ready(ME, GIT, wait_s + 1)
    assert after.may_start(ME, GIT, wait_s + 1)
    assert after.failed(ME, GIT, "again", wait_s + 2) > 1.25


def test_a_probe_that_was_stopped_on_purpose_makes_way_for_the_next() -> None:
    after = restarts()
    wait_s = after.failed(ME, GIT, "no", 0.0)
    after.started(ME, GIT, SandboxId("probe"))
    after.gave_up(ME, GIT, SandboxId("probe"))
    assert after.may_start(ME, GIT, wait_s)


def test_the_first_death_of_a_warm_one_costs_no_wait_and_the_second_does() -> None:
    after = restarts()
    assert after.failed(ME, GIT, "signal 9", 0.0, had_lived=True) == 0.0
    assert after.may_start(ME, GIT, 0.0)
    assert after.failed(ME, GIT, "signal 9", 1.0, had_lived=True) > 0.0


def test_who_is_backing_off_is_told_with_the_seconds_left() -> None:
    after = restarts()
    wait_s = after.failed(ME, GIT, "exit code 1", 0.0)
    assert after.backing_off(0.5) == ((ME, GIT, pytest.approx(wait_s - 0.5)),)
    assert after.message(ME, GIT) == "exit code 1"
