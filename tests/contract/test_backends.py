"""Every backend there is, against the one contract."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headstart.backends.contract import Backend
from headstart.backends.process import open_process_backend
from headstart.testing.contract import CHECKS, Check, NotClaimed, Subject

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def process(state: Path) -> AsyncGenerator[Backend]:
    async with open_process_backend(state) as backend:
        yield backend


BACKENDS = {"process": Subject(open=process)}


@pytest.mark.parametrize("check", CHECKS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
async def test_the_contract_is_kept(backend: str, check: Check, tmp_path: Path) -> None:
    try:
        await check(BACKENDS[backend], tmp_path)
    except NotClaimed as gap:
        pytest.skip(str(gap))
