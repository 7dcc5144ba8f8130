"""The spans of a step tile it, whatever overlaps."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headstart.core.steps import Activity, CallSpans, GenerationSpans, Part, Span, tile
from headstart.ids import CallId, GenerationId, ResourceId

CALL_PARTS = (Part.ENV_PREP, Part.DATA_IO, Part.SANDBOX_EXEC, Part.DATA_IO)
times = st.floats(0.0, 100.0, allow_nan=False)


def spans_between(cuts: list[float], parts: tuple[Part, ...], call: CallId | None) -> tuple[Span, ...]:
    pieces = zip(parts, pairwise(sorted(cuts)), strict=True)
    return tuple(Span(part=part, start_s=a, end_s=b, call=call) for part, (a, b) in pieces if b > a)


@st.composite
def calls(draw: st.DrawFn) -> Activity:
    cuts = sorted(draw(st.lists(times, min_size=5, max_size=5)))
    call = CallId(str(draw(st.integers(0, 10**6))))
    return CallSpans(
        call=call,
        resource=ResourceId("r"),
        tool="t",
        start_s=cuts[0],
        end_s=cuts[-1],
        spans=spans_between(cuts, CALL_PARTS, call),
    )


@st.composite
def generations(draw: st.DrawFn) -> Activity:
    cuts = sorted(draw(st.lists(times, min_size=3, max_size=3)))
    return GenerationSpans(
        generation=GenerationId("g"),
        start_s=cuts[0],
        end_s=cuts[-1],
        spans=spans_between(cuts, (Part.CONTEXT, Part.DECODE), None),
    )


activities = st.tuples(st.lists(generations(), max_size=1), st.lists(calls(), max_size=6)).map(
    lambda both: [*both[0], *both[1]]
)


@given(activities=activities, ends=st.tuples(times, times))
def test_tiles_are_contiguous_and_cover_the_step_exactly(activities: list[Activity], ends: tuple[float, float]) -> None:
    start_s, end_s = sorted(ends)
    tiles = tile(activities, start_s=start_s, end_s=end_s)
    if start_s == end_s:
        assert tiles == ()
        return
    assert tiles[0].start_s == start_s
    assert tiles[-1].end_s == end_s
    assert all(before.end_s == after.start_s for before, after in pairwise(tiles))
    assert all(each.end_s > each.start_s for each in tiles)


@given(activities=activities)
def test_time_is_unattributed_exactly_where_nothing_was_going_on(activities: list[Activity]) -> None:
    start_s = min((each.start_s for each in activities), default=0.0)
    end_s = max((each.end_s for each in activities), default=0.0)
    for span in tile(activities, start_s=start_s, end_s=end_s):
        middle_s = (span.start_s + span.end_s) / 2
        going_on = [each for each in activities if each.start_s < middle_s < each.end_s]
        assert (span.part is Part.UNATTRIBUTED) == (not going_on) or middle_s in {span.start_s, span.end_s}


@given(activities=activities)
def test_the_call_that_came_back_last_is_on_the_path_to_its_very_end(activities: list[Activity]) -> None:
    found = [each for each in activities if isinstance(each, CallSpans) and each.spans]
    if not found or len(found) != len(activities):
        return
    last = max(found, key=lambda each: (each.end_s, -each.start_s))
    tiles = tile(activities, start_s=min(each.start_s for each in found), end_s=last.end_s)
    assert tiles[-1].part is last.spans[-1].part
