"""What cannot be, how a lineage is closed, and how it is told."""

from __future__ import annotations

import doctest
from importlib import import_module
from typing import get_args

import pytest

from headstart.core.transaction import (
    BranchForked,
    BranchState,
    CheckpointCaptured,
    GarbageCollected,
    LineageClosed,
    LineageOpened,
    RequestId,
    RuntimeRestarted,
    StateStaged,
    StateSwapped,
    StateVersion,
    TransactionEvent,
    TransactionInstruction,
    TransactionRefusal,
)
from headstart.errors import InvalidTransition
from headstart.ids import SandboxId
from headstart.runtime.codec import RecordCodec

from .driving import ME, YOU, collect, driven, failure, refusal, with_branch, with_checkpoint

# ---------------------------------------------------------------- what cannot be


def test_an_event_without_a_row_raises_with_the_story_and_changes_nothing() -> None:
    d = with_checkpoint()
    d.rollback()
    before = d.lineage.view()
    with pytest.raises(InvalidTransition) as raised:
        d.swapped()
    assert d.lineage.view() == before
    assert (raised.value.subject, raised.value.state, raised.value.event) == ("lin_me", "staging", "StateSwapped")
    assert raised.value.story == (
        "0.000 opened: sbx is canonical at v0",
        "0.000 idle → capturing (capture begun: checkpoint ckp)",
        "0.000 capturing → idle (captured: checkpoint ckp)",
        "0.000 idle → staging (stage begun: rollback to ckp)",
    )


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (LineageOpened(at_s=0.0, lineage=ME, sandbox=SandboxId("x"), version=StateVersion("x")), "LineageOpened"),
        (LineageClosed(at_s=0.0, lineage=YOU), "LineageClosed of lin_you"),
        (StateStaged(at_s=0.0, lineage=ME, request=RequestId("r9")), "StateStaged for r9, which is not in flight"),
        (StateSwapped(at_s=0.0, lineage=ME, request=RequestId("r9")), "StateSwapped for r9, which is not in flight"),
        (CheckpointCaptured(at_s=0.0, lineage=ME, request=RequestId("r9")), "without a capture in flight"),
        (BranchForked(at_s=0.0, lineage=ME, request=RequestId("r9")), "BranchForked for r9, which forks nothing"),
        (GarbageCollected(at_s=0.0, lineage=ME, sandboxes=(SandboxId("sbx"),)), "not all of it is garbage"),
        (RuntimeRestarted(at_s=0.0, lineage=ME, version=StateVersion("v0")), "with v0, which is not new"),
    ],
)
def test_events_that_contradict_what_went_before_are_our_bugs(event: TransactionEvent, message: str) -> None:
    d = driven()
    with pytest.raises(InvalidTransition, match=message):
        d.tell(event)


def test_names_that_came_before_cannot_come_again() -> None:
    d = with_checkpoint()
    d.fork()
    d.forked()
    d.ran()
    with pytest.raises(InvalidTransition, match="with bra, which is not new"):
        d.fork()
    with pytest.raises(InvalidTransition, match="with bra, which is not new"):
        d.rollback(staged="bra")
    with pytest.raises(InvalidTransition, match="with ckp, which is not new"):
        d.checkpoint()
    d.versions = 0
    with pytest.raises(InvalidTransition, match="with v1, which is not new"):
        d.run()


def test_a_request_that_is_in_flight_cannot_be_made_again() -> None:
    d = driven()
    d.run()
    d.requests = 0
    with pytest.raises(InvalidTransition, match="RunRequested for r1, which is in flight already"):
        d.run()


def test_a_broken_invariant_is_told_with_the_story() -> None:
    d = with_branch()
    state = d.lineage._state  # pyright: ignore[reportPrivateUsage] nothing else can break it
    state.branches[SandboxId("bra")].state = BranchState.COMMITTING
    with pytest.raises(AssertionError, match=r"no commit is in flight\n  0.000 opened: sbx is canonical at v0"):
        d.lineage.check_invariants()


# ---------------------------------------------------------------- closing


def test_closing_answers_whoever_waits_and_collects_everything_once() -> None:
    d = with_checkpoint()
    d.fork("a")
    d.forked()
    d.discard("a")
    d.fork("b")
    d.forked()
    d.run(branch="b")
    d.rollback()
    assert d.closes() == [
        failure("r6", "lin_me was closed"),
        failure("r5", "lin_me was closed"),
        collect("new", "b", "sbx", checkpoints=("ckp",)),
    ]
    assert d.lineage.view().sandbox is None


def test_a_closed_lineage_refuses_requests_and_takes_late_events() -> None:
    d = driven()
    d.fork()
    d.closes()
    assert d.forked() == []
    assert d.closes() == []
    told = refusal(d.run())
    assert (told.refusal, told.message) == (TransactionRefusal.CLOSED, "lin_me was closed")
    assert d.collected("bra", "sbx") == []
    assert d.lineage.view().garbage_sandboxes == ()
    with pytest.raises(InvalidTransition):
        d.tell(d.journal[0])


# ---------------------------------------------------------------- journal and examples


def test_every_event_and_instruction_can_be_journalled() -> None:
    codec = RecordCodec([*get_args(TransactionEvent), *get_args(TransactionInstruction)])
    d = with_branch()
    d.ran(branch="bra", action="a")
    d.commit(actions="a")
    d.staged()
    d.verified()
    d.swapped()
    d.collected("sbx")
    assert [codec.decode(codec.encode(event)) for event in d.journal] == d.journal


@pytest.mark.parametrize("module", ["lineage", "stages"])
def test_the_examples_in_docstrings_are_true(module: str) -> None:
    result = doctest.testmod(import_module(f"headstart.core.transaction.{module}"))
    assert (result.failed, result.attempted > 0) == (0, True)
