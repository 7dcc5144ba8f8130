"""A bench without isolation says so, once and loudly."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headstart.backends.contract import Backend
from headstart.bench.isolation import best_backend_name
from headstart.errors import BackendUnavailable

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def unavailable(folder: Path) -> AsyncGenerator[Backend]:
    raise BackendUnavailable("no namespaces")
    yield


async def test_where_nothing_can_be_isolated_a_bench_tells_it_in_one_line_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("headstart.bench.isolation.open_local_backend", unavailable)
    told: list[str] = []
    assert await best_backend_name(told.append) == "process"
    assert told == ["NO ISOLATION: servers run in the process backend, because no namespaces"]


async def test_where_servers_are_isolated_there_is_nothing_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told: list[str] = []
    if await best_backend_name(told.append) == "process":
        pytest.skip(f"the local backend cannot run here: {told[0].partition('because ')[2]}")
    assert told == []
