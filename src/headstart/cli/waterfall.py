"""A session's waterfall, drawn as text.

Each step is one block: when it began, a line per span with a bar where it lay in the step
and its seconds; what was prepared during it (or after it, before the next), when and why;
what went wrong with its calls. The end says what it came to.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.text import Text

__all__ = ["waterfall"]

_LABEL = 30
_SECONDS = 11
_LONGEST_BAR = 60
_SHORTEST_BAR = 16
_SHORT_S = 0.001
"""Spans below this are told in one line: a call has five, and most are of no interest."""

_PARTS = {
    "context": ("model, to first output", "blue"),
    "decode": ("model, writing", "cyan"),
    "env_prep": ("waiting for", "red"),
    "data_io": ("transfer", "magenta"),
    "sandbox_exec": ("running", "green"),
    "unattributed": ("unattributed", "bright_black"),
}
"""Each part of a step in plain words (docs/explanation/traces.md), and its colour."""
_PREPARED = "yellow"
_WRONG = "red"
_BLOCK = "█"
_SLIVER = "▏"

Json = Mapping[str, Any]


def waterfall(trace: Json, *, width: int = 100) -> Iterator[Text]:
    """Yield the lines of a session's waterfall.

    Args:
        trace: `summary`, `steps`, `preparations` and `wall_offset_s`, as the trace route gives them.
        width: Columns that a line may have; bars give way first.
    """
    bar = max(_SHORTEST_BAR, min(_LONGEST_BAR, width - _LABEL - _SECONDS - 4))
    yield from _Drawing(trace, bar=bar).lines()


class _Drawing:
    """One trace, with what all of its lines need."""

    def __init__(self, trace: Json, *, bar: int) -> None:
        self._trace = trace
        self._steps: Sequence[Json] = trace["steps"]
        self._preparations: Sequence[Json] = trace["preparations"]
        self._offset_s: float | None = trace.get("wall_offset_s")
        self._cut_off_s: float | None = trace.get("cut_off_s")
        self._bar = bar

    def lines(self) -> Iterator[Text]:
        yield Text(f"session {self._trace['session']}{self._when()}", style="bold")
        for step, prepared in self._with_preparations():
            yield Text()
            yield from self._step(step, prepared)
        yield Text()
        yield from self._cut_off()
        yield from _summary(self._trace["summary"], self._preparations)
        yield from _cold(self._trace.get("forms", ()))

    def _when(self) -> str:
        if self._offset_s is None or not self._steps:
            return ""
        first = time.localtime(self._steps[0]["start_s"] + self._offset_s)
        last = time.localtime(self._steps[-1]["end_s"] + self._offset_s)
        return f"   {time.strftime('%Y-%m-%d %H:%M:%S', first)} to {time.strftime('%H:%M:%S %Z', last)}"

    def _cut_off(self) -> Iterator[Text]:
        if self._cut_off_s is not None:
            when = self._clock(self._cut_off_s)
            yield Text(
                f"cut off{f' at {when}' if when else ''}: the service was killed; its journal tells no more", _WRONG
            )

    def _clock(self, at_s: float) -> str:
        """Return a moment on the wall clock, "" for records that do not know it."""
        if self._offset_s is None:
            return ""
        wall_ms = round((at_s + self._offset_s) * 1000)
        return f"{time.strftime('%H:%M:%S', time.localtime(wall_ms // 1000))}.{wall_ms % 1000:03}"

    def _with_preparations(self) -> Iterator[tuple[Json, list[Json]]]:
        """Give each step what was begun from its start to the next one's; the first also what was before."""
        starts = [float("-inf"), *(step["start_s"] for step in self._steps[1:]), float("inf")]
        begun = [one for one in self._preparations if one["started_s"] is not None]
        for step, (first, last) in zip(self._steps, pairwise(starts), strict=False):
            yield step, [one for one in begun if first <= one["started_s"] < last]

    def _step(self, step: Json, prepared: Sequence[Json]) -> Iterator[Text]:
        calls = {call["call"]: call for call in step["calls"]}
        yield self._step_title(step)
        long = [tile for tile in step["tiles"] if _seconds(tile) >= _SHORT_S]
        for tile in long:
            label, style = _PARTS[tile["part"]]
            owner = calls.get(tile["call"])
            yield self._line(f"{label} {_named(owner)}" if owner else label, style, tile, step)
        if short := [tile for tile in step["tiles"] if _seconds(tile) < _SHORT_S]:
            label = f"{len(short)} spans under 1 ms, together"
            yield Text(f"  {label:<{_LABEL}} {'':<{self._bar}} {sum(map(_seconds, short)):7.3f} s", style="dim")
        for one in prepared:
            yield from self._preparation(one, step)
        for call in step["calls"]:
            for wrong in _troubles(call, self._cut_off_s):
                yield Text(f"    {_named(call)} {wrong}", style=_WRONG)

    def _step_title(self, step: Json) -> Text:
        generation = step["generation"]
        model_s = sum(map(_seconds, generation["spans"])) if generation else 0.0
        waited_s = sum(_seconds(tile) for tile in step["tiles"] if tile["part"] == "env_prep")
        clock = self._clock(step["start_s"])
        told = f"step {step['number'] or ''}".rstrip() + (f" at {clock}" if clock else "")
        told += f", {_seconds(step):.2f} s: model {model_s:.2f} s, waited for sandboxes {waited_s:.2f} s"
        if generation and not generation["text"]:
            told += "; no text before its call"
        if generation and generation["outcome"] not in ("", "completed"):
            told += f"; the model's answer was {generation['outcome']}"
        return Text(told, style="bold")

    def _preparation(self, one: Json, step: Json) -> Iterator[Text]:
        started, ready = one["started_s"], one["ready_s"]
        yield self._line(
            f"prepared {one['resource']}",
            _PREPARED,
            {"start_s": started, "end_s": ready if ready is not None else one["ended_s"]},
            step,
        )
        because = f" ({one['because']})" if one["because"] else ""
        clock = self._clock(started)
        at = f"at {clock}" if clock else f"at {started - step['start_s']:+.2f} s"
        yield Text(f"    {at} by {one['predictor']}, p = {one['probability']:.2f}{because}", style="dim")
        yield Text(f"    {_fate(one)}", style="dim")

    def _line(self, label: str, style: str, span: Json, step: Json) -> Text:
        line = Text(f"  {_fit(label, _LABEL):<{_LABEL}} ")
        line.append(self._span_bar(span["start_s"], span["end_s"], step), style=style)
        line.append(f" {_seconds(span):7.3f} s")
        return line

    def _span_bar(self, start: float, end: float, step: Json) -> str:
        first, last = step["start_s"], step["end_s"]
        scale = self._bar / max(last - first, 1e-9)
        left = min(self._bar - 1, max(0, round((start - first) * scale)))
        right = min(self._bar, max(0, round((end - first) * scale)))
        return (" " * left + (_BLOCK * (right - left) or _SLIVER)).ljust(self._bar)


def _named(call: Json) -> str:
    return f"{call['resource']}.{call['tool']}" if call["tool"] else str(call["resource"])


def _troubles(call: Json, cut_off_s: float | None) -> Iterator[str]:
    if call["refusal"]:
        yield f"got no sandbox: {call['refusal']}"
    elif call["cold"]:
        yield "waited for a start that nothing had prepared"
    if call["abandoned"] and call["end_s"] == cut_off_s:
        yield "was still going on"
    elif call["abandoned"]:
        yield "was given up by its client"
    elif call["is_error"]:
        yield "answered with an error"


def _fate(one: Json) -> str:
    if one["won"]:
        return f"a call came for it: saved {one['hidden_s']:.2f} s, still waited {one['waited_s']:.3f} s"
    if one["void"]:
        return "it ended for a reason that says nothing about the guess"
    return f"nobody came: wasted {one['wasted_cpu_s']:.2f} CPU-s and {one['wasted_byte_s'] / 1e9:.2f} GB-s"


def _summary(summary: Json, preparations: Sequence[Json]) -> Iterator[Text]:
    wall, waited, hidden = summary["wall_s"], summary["waited_s"], summary["hidden_s"]
    wrong = sum(not one["won"] and not one["void"] for one in preparations)
    void = sum(bool(one["void"]) for one in preparations)
    rows = {
        "waited for sandboxes": f"{waited:.3f} s ({_share(waited, wall)})",
        "nothing was prepared for": f"{summary['cold_calls']} of {_count(summary['calls'], 'call')}",
        "saved by preparing": f"{hidden:.3f} s ({_share(hidden, wall + hidden)}); {wall + hidden:.2f} s without it",
        "wasted": f"{summary['wasted_cpu_s']:.3f} CPU-s, {summary['wasted_byte_s'] / 1e9:.2f} GB-s"
        f" ({wrong} wrong, {void} void)",
    }
    yield Text(
        f"in all: {_count(summary['steps'], 'step')}, {_count(summary['calls'], 'call')}, {wall:.2f} s", style="bold"
    )
    for name, told in rows.items():
        yield Text(f"  {name:<{_LABEL}} {told}")
    for part, seconds in sorted(summary["parts"], key=_longest_first):
        label = _PARTS[part][0] + (" sandboxes" if part == "env_prep" else "")
        yield Text(f"  {label:<{_LABEL}} {seconds:.3f} s ({_share(seconds, wall)})", style="dim")


def _cold(forms: Sequence[Json]) -> Iterator[Text]:
    """Say which servers start cold and why, one line for each reason."""
    because: dict[str, list[str]] = {}
    for one in forms:
        if one["form"] == "cold":
            because.setdefault(one["reason"], []).append(one["server"])
    for reason, servers in because.items():
        yield Text(f"  {'starts cold':<{_LABEL}} {', '.join(servers)}: {reason}", style="dim")


def _longest_first(part: tuple[str, float]) -> float:
    return -part[1]


def _share(part: float, whole: float) -> str:
    return f"{part / whole if whole else 0.0:.1%}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _fit(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _seconds(span: Json) -> float:
    return float(span["end_s"]) - float(span["start_s"])
