"""A session's waterfall, drawn as text.

Each step is one block: a line per span, a bar where it lay in the step, its seconds; what
was prepared during it, when and why; what the agent still waited for. The end says what
it came to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

__all__ = ["waterfall"]

_BAR = 48
_STYLES = {
    "context": "blue",
    "decode": "cyan",
    "env_prep": "red",
    "data_io": "magenta",
    "sandbox_exec": "green",
    "unattributed": "bright_black",
    "prepared": "yellow",
}
_BLOCK = "█"
_SLIVER = "▏"

Json = Mapping[str, Any]


def waterfall(trace: Json) -> Iterator[Text]:
    """Yield the lines of a session's waterfall.

    Args:
        trace: `summary`, `steps` and `preparations`, as the trace route gives them.
    """
    preparations: Sequence[Json] = trace["preparations"]
    yield Text(f"session {trace['session']}", style="bold")
    for step in trace["steps"]:
        yield Text()
        yield from _step(step, [p for p in preparations if _belongs(p, step)])
    yield Text()
    yield from _summary(trace["summary"], preparations)


def _step(step: Json, prepared: Sequence[Json]) -> Iterator[Text]:
    start, end = step["start_s"], step["end_s"]
    calls = {call["call"]: call for call in step["calls"]}
    yield _step_title(step)
    for tile in step["tiles"]:
        owner = calls.get(tile["call"])
        yield _line(_label(tile, owner), tile["part"], tile, within=(start, end))
    for one in prepared:
        yield from _preparation(one, within=(start, end))
    for call in step["calls"]:
        if call["cold"]:
            told = f"      {_named(call)} waited for a start that nothing had prepared"
            yield Text(told, style=_STYLES["env_prep"])


def _step_title(step: Json) -> Text:
    generation = step["generation"]
    model_s = sum(_seconds(span) for span in generation["spans"]) if generation else 0.0
    waited_s = sum(_part_seconds(step["tiles"], "env_prep"))
    number = f"step {step['number']}" if step["number"] else "step"
    told = (
        f"{number}  {step['end_s'] - step['start_s']:.2f} s: model {model_s:.2f}, waited for sandboxes {waited_s:.2f}"
    )
    if generation and not generation["text"]:
        told += "  (no text before its call)"
    return Text(told, style="bold")


def _label(tile: Json, owner: Json | None) -> str:
    return f"{tile['part']} {_named(owner)}" if owner else str(tile["part"])


def _named(call: Json) -> str:
    return f"{call['resource']}.{call['tool']}" if call["tool"] else str(call["resource"])


def _line(label: str, style: str, span: Json, *, within: tuple[float, float]) -> Text:
    line = Text(f"  {label[:38]:<38} ")
    line.append(_bar(span["start_s"], span["end_s"], within), style=_STYLES[style])
    line.append(f" {_seconds(span):7.3f} s")
    return line


def _bar(start: float, end: float, within: tuple[float, float]) -> str:
    first, last = within
    scale = _BAR / max(last - first, 1e-9)
    left = min(_BAR - 1, max(0, round((start - first) * scale)))
    width = max(0, min(_BAR - left, round((end - start) * scale)))
    return (" " * left + (_BLOCK * width or _SLIVER)).ljust(_BAR)


def _preparation(one: Json, *, within: tuple[float, float]) -> Iterator[Text]:
    started, ready = one["started_s"], one["ready_s"]
    if started is None:
        return
    shown_end = ready if ready is not None else one["ended_s"]
    label = f"prepared {one['resource']} by {one['predictor']}"
    span = {"start_s": max(started, within[0]), "end_s": min(shown_end, within[1])}
    yield _line(label, "prepared", span, within=within)
    because = f": {one['because']}" if one["because"] else ""
    yield Text(
        f"      at +{started - within[0]:.2f} s, p = {one['probability']:.2f}{because}; {_fate(one)}", style="dim"
    )


def _fate(one: Json) -> str:
    if one["won"]:
        return f"hid {one['hidden_s']:.2f} s, the call still waited {one['waited_s']:.3f} s"
    if one["void"]:
        return "void: it ended for another reason"
    return f"wasted: {one['wasted_cpu_s']:.2f} CPU-s and {one['wasted_byte_s'] / 1e9:.2f} GB-s"


def _belongs(preparation: Json, step: Json) -> bool:
    began = preparation["started_s"]
    return began is not None and step["start_s"] <= began < step["end_s"]


def _summary(summary: Json, preparations: Sequence[Json]) -> Iterator[Text]:
    wall, waited, hidden = summary["wall_s"], summary["waited_s"], summary["hidden_s"]
    share = waited / wall if wall else 0.0
    yield Text(f"{summary['steps']} steps, {summary['calls']} calls, {wall:.2f} s", style="bold")
    yield Text(f"  waited for sandboxes   {waited:.3f} s  ({share:.1%}), {summary['cold_calls']} calls cold")
    saved = hidden / (wall + hidden) if wall + hidden else 0.0
    yield Text(f"  hidden                 {hidden:.3f} s: without it {wall + hidden:.2f} s, so {saved:.1%} saved")
    wasted = [one for one in preparations if not one["won"] and not one["void"]]
    cpu_s, byte_s = summary["wasted_cpu_s"], summary["wasted_byte_s"]
    yield Text(f"  wasted                 {cpu_s:.3f} CPU-s, {byte_s / 1e9:.2f} GB-s in {len(wasted)} wrong guesses")
    parts = ", ".join(f"{part} {seconds:.2f}" for part, seconds in summary["parts"])
    yield Text(f"  where the time went    {parts}")


def _part_seconds(tiles: Iterable[Json], part: str) -> Iterator[float]:
    return (_seconds(tile) for tile in tiles if tile["part"] == part)


def _seconds(span: Json) -> float:
    return float(span["end_s"]) - float(span["start_s"])
