"""What a cell makes of the service's answers."""

from __future__ import annotations

from typing import Any

from headstart.bench.demo.cells import wrong_guesses


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
