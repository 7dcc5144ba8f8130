"""What a cell makes of the service's answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from headstart.bench import demo
from headstart.bench.demo.cells import Stage, wrong_guesses
from headstart.bench.demo.models import MAIN_TPOT_S, Pace
from headstart.bench.demo.world import World
from headstart.bench.replay_model import load_recordings

HERE = Path(demo.__file__).parent


def prepared(**changed: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "resource": "excel",
        "kind": "prewarm",
        "predictor": "keyword",
        "because": "keywords: rows",
        "won": False,
        "started_s": 1.0,
        "wasted_cpu_s": 0.5,
        "wasted_byte_s": 3.0,
    }
    return usual | changed


def standing(predictor: str | None, *, served: int = 0) -> dict[str, Any]:
    cause = {"predictor": predictor, "because": "after git"}
    numbers = {"cpu_s": 0.25, "memory_bytes": 10, "age_s": 2.0, "served": served}
    return {"resource": "word", "session": None, "cause": cause, **numbers}


def test_a_guess_is_wrong_if_it_was_started_and_no_call_came_for_it() -> None:
    used, kept, never_begun = prepared(won=True), prepared(kind="keep"), prepared(started_s=None)
    trace = {"session": "s", "preparations": [prepared(), used, kept, never_begun]}
    sandboxes = [standing("transitions"), standing("transitions", served=1), standing(None)]
    first, second = wrong_guesses([trace], {"sandboxes": sandboxes})
    assert (first.resource, first.session, first.cpu_s, first.byte_s) == ("excel", "s", 0.5, 3.0)
    assert (second.resource, second.session, second.cpu_s, second.byte_s) == ("word", "nobody yet", 0.25, 20.0)


def test_the_first_conversations_are_played_at_other_paces_and_the_rest_at_the_main_one() -> None:
    first, second = load_recordings(HERE / "sessions.toml")[:2]
    paces = tuple(Pace(tpot_s=tpot_s, model_url="http://127.0.0.1:1/v1") for tpot_s in (0.005, MAIN_TPOT_S))
    stage = Stage(
        world=World(
            folder=HERE,
            mcp_file=HERE,
            sessions_file=HERE,
            training_file=HERE,
            sessions=(first, second),
            training=(),
            servers=("time",),
        ),
        recordings=(first, second),
        paces=paces,
        backend="process",
        learned=Path("learned"),
        scratch=Path("scratch"),
        gap_s=0.0,
        aside=1,
    )
    assert [stage.played_at(pace) for pace in paces] == [(first,), (second,)]
    assert replace(stage, paces=paces[:1]).played_at(paces[0]) == (second,), "a single pace is the main one"
    assert [replace(stage, aside=0).played_at(pace) for pace in paces] == [(first, second)] * 2
    assert replace(stage, recordings=(first,)).played_at(paces[1]) == (first,), "no pace is without one"
