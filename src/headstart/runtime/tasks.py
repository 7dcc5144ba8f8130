"""A task group for resources that run tasks of their own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup

__all__ = ["open_tasks"]


@asynccontextmanager
async def open_tasks() -> AsyncGenerator[TaskGroup]:
    """Run tasks while the context is open; what the body raises comes out as it is.

    A bare task group would hand the body's error on inside an `ExceptionGroup`, and whoever
    opens a service need not know that it is made of tasks. What a *task* raises still comes
    as a group. The body's owner ends the tasks; nothing is cancelled here.
    """
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except Exception as exc:  # noqa: BLE001 raised again below, outside of the group
            failure = exc
    if failure is not None:
        raise failure
