"""What a start takes: as configured, then as measured."""

from __future__ import annotations

import json

import pytest

from headstart.core.events import PrepareForm, ResourceRegistered
from headstart.core.pool.estimates import Estimate, Estimates
from headstart.ids import PrincipalId, ResourceId

ME, GIT = PrincipalId("me"), ResourceId("git")
COLD = PrepareForm.COLD


def registered(start_s: float = 9.0, *, form: PrepareForm = COLD) -> ResourceRegistered:
    return ResourceRegistered(at_s=0.0, principal=ME, resource=GIT, start_s=start_s, memory_bytes=500, form=form)


def measured(start_s: float) -> Estimate:
    return Estimate(start_s=start_s, cpu_s=start_s, memory_bytes=100)


def test_the_first_measurement_replaces_the_guess_and_later_ones_move_the_mean() -> None:
    estimates = Estimates()
    estimates.registered(registered())
    assert estimates.of(ME, GIT, COLD).start_s == 9.0
    estimates.started(ME, GIT, COLD, start=measured(1.0))
    assert (estimates.of(ME, GIT, COLD).start_s, estimates.of(ME, GIT, COLD).memory_bytes) == (1.0, 100)
    estimates.started(ME, GIT, COLD, start=measured(2.0))
    assert estimates.of(ME, GIT, COLD).start_s == pytest.approx(1.3)


def test_registering_again_does_not_undo_what_was_measured() -> None:
    estimates = Estimates()
    estimates.registered(registered())
    estimates.started(ME, GIT, COLD, start=measured(1.0))
    estimates.registered(registered(start_s=7.0))
    assert estimates.of(ME, GIT, COLD).start_s == 1.0


def test_each_prepared_form_has_its_own() -> None:
    estimates = Estimates()
    estimates.registered(registered())
    estimates.registered(registered(0.05, form=PrepareForm.ZYGOTE))
    assert estimates.of(ME, GIT, PrepareForm.ZYGOTE).start_s == 0.05
    assert estimates.of(ME, GIT, COLD).start_s == 9.0


def test_measurements_survive_as_plain_data_and_guesses_are_not_written() -> None:
    estimates = Estimates()
    estimates.registered(registered())
    assert estimates.export(ME) == {}
    estimates.started(ME, GIT, COLD, start=measured(1.0))
    data = json.loads(json.dumps(estimates.export(ME)))
    other = Estimates()
    other.load(ME, data | {"git/unknown-form": [1, 2, 3, 4], "git/cold-short": [1]})
    assert other.of(ME, GIT, COLD) == estimates.of(ME, GIT, COLD)
    assert list(other.export(ME)) == ["git/cold"]
    other.forget(ME)
    assert other.export(ME) == {}
