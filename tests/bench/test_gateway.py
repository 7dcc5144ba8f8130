"""The gateway bench, in small."""

import pytest

from headstart.bench.gateway import Plan, measure

pytestmark = pytest.mark.anyio


async def test_every_way_is_called_as_often_and_the_differences_are_reported() -> None:
    result = await measure(Plan(rounds=5, within_s=60.0))
    ways = [sample["way"] for sample in result.samples]
    assert {way: ways.count(way) for way in ways} == {"direct": 5, "headstart": 5, "fastmcp": 5, "relay": 5}
    assert set(result.summary) == {"call_added_ms_p50", "fastmcp_call_added_ms_p50"}
    assert "a relay that only passes bodies on" in result.notes[0]
    assert "p50 (p10)" in result.notes[1]
