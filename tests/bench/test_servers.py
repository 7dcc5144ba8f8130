"""Bench servers are installed once, by one, and what was interrupted is made anew."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest

from headstart.bench import servers
from headstart.bench.servers import InstalledServer, ServerSpec, ensure_installed, load_specs
from headstart.errors import HeadstartError

pytestmark = pytest.mark.anyio


@pytest.fixture
def installs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the installers by one that makes an empty script, and note whom it is called for."""
    done: list[str] = []

    async def install(spec: ServerSpec, prefix: Path) -> None:
        done.append(spec.name)
        if spec.name == "fetch":
            raise HeadstartError("fetch could not be installed")
        script = anyio.Path(prefix) / "bin" / spec.command
        await script.parent.mkdir(parents=True)
        await script.write_text("#!/bin/sh\n")

    monkeypatch.setattr(servers, "_install_pip", install)
    return done


def test_every_server_is_pinned_and_most_have_a_call_that_works_offline() -> None:
    specs = load_specs()
    assert len([spec for spec in specs.values() if spec.kind == "pip"]) >= 10
    assert len([spec for spec in specs.values() if spec.kind == "npm"]) >= 4
    for spec in specs.values():
        assert all("==" in pin or "<" in pin or "@20" in pin or "@0" in pin for pin in spec.pins), spec.name
    assert [spec.name for spec in specs.values() if spec.call is None] == ["fetch"]


async def test_a_server_is_installed_once_and_its_placeholders_are_filled_in(
    tmp_path: Path, installs: list[str]
) -> None:
    first = await ensure_installed(["git"], root=tmp_path)
    second = await ensure_installed(["git"], root=tmp_path)
    assert installs == ["git"]
    assert first == second
    server = first["git"]
    assert isinstance(server, InstalledServer)
    assert server.command == str(tmp_path / "git/bin/mcp-server-git")
    assert server.args == ("--repository", str(tmp_path / "samples/repository"))
    assert server.arguments["repo_path"] == str(tmp_path / "samples/repository")
    assert (tmp_path / "samples/repository/.git").is_dir()


async def test_many_that_ask_at_once_wait_for_one_installation(tmp_path: Path, installs: list[str]) -> None:
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(lambda: ensure_installed(["time", "git"], root=tmp_path))
    assert sorted(installs) == ["git", "time"]


async def test_what_was_left_unfinished_is_made_anew(tmp_path: Path, installs: list[str]) -> None:
    leftover = tmp_path / "time" / "bin"
    leftover.mkdir(parents=True)
    (leftover / "half").touch()
    await ensure_installed(["time"], root=tmp_path)
    assert [path.name async for path in anyio.Path(leftover).iterdir()] == ["mcp-server-time"]


async def test_other_pins_or_another_python_mean_another_installation(
    tmp_path: Path, installs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await ensure_installed(["time"], root=tmp_path)
    monkeypatch.setattr(sys, "version", "another")
    await ensure_installed(["time"], root=tmp_path)
    assert installs == ["time", "time"]


async def test_a_failure_is_told_and_the_others_are_kept(tmp_path: Path, installs: list[str]) -> None:
    with pytest.raises(HeadstartError, match="fetch could not be installed"):
        await ensure_installed(["fetch", "time"], root=tmp_path)
    await ensure_installed(["time"], root=tmp_path)
    assert sorted(installs) == ["fetch", "time"]


async def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(HeadstartError) as raised:
        await ensure_installed(["tim"], root=tmp_path)
    assert str(raised.value) == "no such bench server: tim"
    assert "time" in (raised.value.hint or "")
