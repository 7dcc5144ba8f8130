"""What deciding costs: keywords per delta, transitions per step; and how often keywords are right.

Speed is measured on a thousand tools of about a hundred servers: the twelve real-shaped
ones of `labelled` and made-up ones whose words come from the same pool, so that words are
shared as they are in life. Text is the labelled requests and plans, cut into deltas of
about four characters (what one token brings) and into words. The transition step is what
a call costs: learn it, then name the successors, in a graph of a thousand states.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from time import perf_counter_ns
from typing import Any

from headstart.bench.labelled import examples, servers
from headstart.bench.result import BenchResult, percentile
from headstart.core.events import ResourceRegistered, ToolProfile
from headstart.core.intent import KeywordRouter, default_router
from headstart.core.intent.candidates import KEYWORD_HINT
from headstart.core.stream import GenerationEnded, GenerationOutcome, GenerationStarted, TextArrived
from headstart.core.transitions import TransitionPredictor
from headstart.ids import GenerationId, PrincipalId, ResourceId, SessionId

__all__ = ["run"]

_ME = PrincipalId("bench")
_TOOLS = 1_000
_STATES = 1_000
_SEED = 20


def run(*, quick: bool) -> BenchResult:
    """Measure both, and the router's precision and recall on the held-out examples."""
    streams, steps = (40, 4_000) if quick else (400, 40_000)
    registrations = thousand_tools()
    deltas = list(_measure_deltas(registrations, streams))
    prefetch = list(_measure_steps(steps))
    quality = [_judge(gamma=gamma, request_only=only) for only in (True, False) for gamma in (1, 2, 3)]
    quality += [_judge(gamma=2, request_only=only, hints=True) for only in (True, False)]
    by_cut = {cut: [s["us"] for s in deltas if s["cut"] == cut] for cut in ("token", "word")}
    summary: dict[str, Any] = {
        "keyword_us_per_delta_p50": _percentile(by_cut["token"], 50),
        "keyword_us_per_delta_p99": _percentile(by_cut["token"], 99),
        "keyword_us_per_word_p50": _percentile(by_cut["word"], 50),
        "keyword_us_per_word_p99": _percentile(by_cut["word"], 99),
        "prefetch_us_per_step_p50": _percentile([s["us"] for s in prefetch], 50),
        "prefetch_us_per_step_p99": _percentile([s["us"] for s in prefetch], 99),
        "keyword_rebuild_ms": _measure_rebuild(registrations),
        "servers": len(registrations),
        "tools": sum(len(registration.tools) for registration in registrations),
        "states": _STATES,
        "keyword_quality": quality,
    }
    return BenchResult(
        summary=summary,
        samples=[*deltas, *prefetch, *quality],
        notes=("keyword_quality: sentences held out from tuning; written for this bench, twelve servers",),
    )


def thousand_tools() -> tuple[ResourceRegistered, ...]:
    """Return about a hundred servers with a thousand tools together; the same every time."""
    chance = random.Random(_SEED)  # noqa: S311  the same servers every time
    real = servers(_ME)
    pool = sorted({word for server in real for word in server.description.lower().replace(",", " ").split()})
    invented = [_word(chance) for _ in range(2_000)]
    made: list[ResourceRegistered] = list(real)
    missing = _TOOLS - sum(len(server.tools) for server in real)
    while missing > 0:
        count = min(missing, chance.randint(3, 11))
        missing -= count
        own = chance.sample(invented, 30)
        tools = tuple(
            ToolProfile(
                name=f"{chance.choice(('get', 'list', 'create', 'update'))}_{chance.choice(own)}_{chance.choice(own)}",
                description=" ".join([*chance.sample(own, 6), *chance.sample(pool, 6)]),
                argument_names=tuple(chance.sample(own, 3)),
            )
            for _ in range(count)
        )
        name = ResourceId(f"{chance.choice(own)}{len(made)}")
        made.append(ResourceRegistered(at_s=0.0, principal=_ME, resource=name, tools=tools))
    return tuple(made)


def _measure_deltas(registrations: Sequence[ResourceRegistered], streams: int) -> Iterator[dict[str, Any]]:
    router = default_router()
    for registration in registrations:
        router.register(registration)
    texts = [example.plan for example in examples(held_out=True)] + [
        example.plan for example in examples(held_out=False)
    ]
    for number in range(streams):
        text = " ".join(texts[(number + offset) % len(texts)] for offset in range(5))
        for cut in ("token", "word"):
            generation = GenerationId(f"{cut}{number}")
            router.observe(
                GenerationStarted(at_s=0.0, generation=generation, principal=_ME, text=texts[number % len(texts)])
            )
            for piece in _cut(text, cut):
                event = TextArrived(at_s=0.0, generation=generation, text=piece)
                began_ns = perf_counter_ns()
                router.observe(event)
                yield {"kind": "delta", "cut": cut, "us": (perf_counter_ns() - began_ns) / 1e3}
            router.observe(GenerationEnded(at_s=0.0, generation=generation, outcome=GenerationOutcome.COMPLETED))


def _cut(text: str, cut: str) -> list[str]:
    if cut == "word":
        return [f"{word} " for word in text.split()]
    return [text[at : at + 4] for at in range(0, len(text), 4)]


def _measure_steps(steps: int) -> Iterator[dict[str, Any]]:
    chance = random.Random(_SEED)  # noqa: S311  the same calls every time
    states = [ResourceId(f"server{number}") for number in range(_STATES)]
    start_s = dict.fromkeys(states, 1.0)
    predictor = TransitionPredictor()
    sessions = [SessionId(f"session{number}") for number in range(50)]
    # Half of the calls go to one of a few usual successors, half anywhere: rows fill up.
    position = dict.fromkeys(sessions, 0)
    for number in range(20_000 + steps):
        session = sessions[number % len(sessions)]
        at = position[session]
        at = (at * 7 + chance.randint(1, 5)) % _STATES if chance.random() < 0.5 else chance.randrange(_STATES)
        position[session] = at
        began_ns = perf_counter_ns()
        predictor.observe_call(principal=_ME, session=session, resource=states[at])
        predictor.propose(principal=_ME, session=session, start_s=start_s)
        if number >= 20_000:
            yield {"kind": "step", "us": (perf_counter_ns() - began_ns) / 1e3}


def _measure_rebuild(registrations: Sequence[ResourceRegistered]) -> float:
    """Return the milliseconds of the first generation after a change, the best of three: it compiles the keywords."""
    return round(min(_rebuild_ms(registrations) for _ in range(3)), 2)


def _rebuild_ms(registrations: Sequence[ResourceRegistered]) -> float:
    router = KeywordRouter()
    for registration in registrations:
        router.register(registration)
    began_ns = perf_counter_ns()
    router.observe(GenerationStarted(at_s=0.0, generation=GenerationId("first"), principal=_ME))
    return (perf_counter_ns() - began_ns) / 1e6


def _judge(*, gamma: int, request_only: bool, hints: bool = False) -> dict[str, Any]:
    router = KeywordRouter(gamma=gamma)
    for registration in servers(_ME):
        router.register(registration)
    named = right = wanted = 0
    for number, example in enumerate(examples(held_out=True)):
        generation = GenerationId(f"g{number}")
        found = {
            candidate.resource
            for event in (
                GenerationStarted(at_s=0.0, generation=generation, principal=_ME, text=example.request),
                TextArrived(at_s=0.0, generation=generation, text="" if request_only else example.plan),
                GenerationEnded(at_s=0.0, generation=generation, outcome=GenerationOutcome.COMPLETED),
            )
            for candidate in router.observe(event)
            if hints or candidate.predictor != KEYWORD_HINT
        }
        named += len(found)
        wanted += bool(example.server)
        right += example.server in found
    return {
        "kind": "quality",
        "gamma": gamma,
        "hints": hints,
        "text": "request" if request_only else "request and plan",
        "right": right,
        "named": named,
        "wanted": wanted,
        "precision": round(right / named, 3) if named else None,
        "recall": round(right / wanted, 3),
    }


def _percentile(values: Sequence[float], percent: int) -> float:
    return round(percentile(values, percent), 2)


def _word(chance: random.Random) -> str:
    return "".join(chance.choice("bcdfgklmnprstvz") + chance.choice("aeiou") for _ in range(chance.randint(2, 4)))
