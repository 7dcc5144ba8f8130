"""How the demo's services are configured, and how they fail to start."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.bench.demo.models import Pace
from headstart.bench.demo.service import ServiceConfig, serving, session_name
from headstart.bench.replay_model import RecordedStep, Recording
from headstart.config.load import load_settings
from headstart.config.model import PoolMode
from headstart.errors import HeadstartError

PACES = (
    Pace(tpot_s=0.005, model_url="http://127.0.0.1:1/v1"),
    Pace(tpot_s=0.020, model_url="http://127.0.0.1:2/v1"),
)


def config(folder: Path, **changed: bool) -> ServiceConfig:
    mcp_file = folder / "mcp.json"
    mcp_file.write_text('{"mcpServers": {"git": {"command": "git-server"}}}')
    return ServiceConfig(
        state_dir=folder / "state",
        mcp_file=mcp_file,
        paces=PACES,
        backend="process",
        mode="reserved",
        zygotes=False,
        **changed,
    )


def test_a_service_has_an_upstream_for_each_pace_and_learns_nothing_unless_told(tmp_path: Path) -> None:
    file = tmp_path / "headstart.toml"
    file.write_text(config(tmp_path).toml())
    settings = load_settings(config=file, variables={}, state_dir=tmp_path)
    assert {each.prefix: each.base_url for each in settings.upstreams} == {
        "5ms": "http://127.0.0.1:1/v1",
        "20ms": "http://127.0.0.1:2/v1",
    }
    assert (settings.pool.mode, settings.pool.zygotes, settings.service.learn) == (PoolMode.RESERVED, False, False)
    file.write_text(config(tmp_path, learn=True).toml())
    assert load_settings(config=file, variables={}, state_dir=tmp_path).service.learn


def test_a_session_is_named_after_its_recording_and_its_pace() -> None:
    recording = Recording(session="review", user="u", steps=(RecordedStep(text="x"),))
    assert [session_name(recording, pace) for pace in PACES] == ["review-5ms", "review-20ms"]


@pytest.mark.anyio
async def test_a_service_that_does_not_start_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    broken = config(tmp_path)
    broken.mcp_file.write_text("{")
    with pytest.raises(HeadstartError, match=r"did not start; the end of its log:\n.*mcp\.json"):
        async with serving(broken):
            pytest.fail("it cannot have started")
