"""A host of sandboxes on the real local backend."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from headstart.backends.local import open_local_backend
from headstart.clock import SystemClock
from headstart.ids import IdSource, RandomIds
from headstart.sandbox.hosted import SandboxHost
from headstart.sandbox.templates import TemplateStore

__all__ = ["on_disk", "open_host"]


@asynccontextmanager
async def open_host(
    tmp_path: Path, *, ids: IdSource | None = None, node: str | None = None
) -> AsyncGenerator[SandboxHost]:
    """Host sandboxes of the local backend, those of an earlier host in this folder first."""
    async with (
        open_local_backend(tmp_path / "backend") as backend,
        SandboxHost.open(
            backend,
            templates=TemplateStore(tmp_path / "templates"),
            folder=tmp_path / "hosted",
            clock=SystemClock(),
            ids=ids or RandomIds(),
            node=node,
        ) as opened,
    ):
        yield opened


def on_disk(state: Path) -> tuple[set[str], set[str]]:
    """Return what is remembered, and the stores that there are."""
    stores = [path for path in state.rglob("stores/*") if path.is_dir() and not path.name.startswith(".")]
    return {path.name for path in (state / "hosted").iterdir()}, {path.name for path in stores}
