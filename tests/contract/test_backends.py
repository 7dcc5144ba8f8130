"""Every backend there is, against the one contract."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from headstart.backends.contract import Backend, Mount, Preload, Template
from headstart.backends.local import open_local_backend
from headstart.backends.process import open_process_backend
from headstart.errors import BackendUnavailable
from headstart.testing.contract import CHECKS, Check, NotClaimed, Subject

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def process(state: Path) -> AsyncGenerator[Backend]:
    async with open_process_backend(state) as backend:
        yield backend


@asynccontextmanager
async def local(state: Path) -> AsyncGenerator[Backend]:
    async with open_local_backend(state) as backend:
        yield backend


def as_zygote(template: Template) -> Template:
    """The same template, forked from a preloaded Python that then becomes its command."""
    become = Path(__file__).with_name("become.py")
    argv = template.command.argv
    return replace(
        template,
        command=replace(template.command, argv=(PYTHON, str(become), *argv)),
        preload=Preload(interpreter=PYTHON, modules=("json",), entry=(str(become),), args=argv),
        mounts=(*template.mounts, Mount(source=become, target=become)),
    )


PYTHON = "/usr/bin/python3"
BACKENDS = {
    "process": Subject(open=process),
    "process, forked": Subject(open=process, adapt=as_zygote),
    "local": Subject(open=local),
    "local, forked": Subject(open=local, adapt=as_zygote),
}


@pytest.mark.parametrize("check", CHECKS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
async def test_the_contract_is_kept(backend: str, check: Check, tmp_path: Path) -> None:
    try:
        await check(BACKENDS[backend], tmp_path)
    except BackendUnavailable as gap:
        pytest.skip(f"the {backend} backend cannot run here: {gap}")
    except NotClaimed as gap:
        pytest.skip(str(gap))
