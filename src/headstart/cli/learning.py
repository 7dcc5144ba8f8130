"""Starting every server once, and telling what came of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import anyio
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from headstart.backends.contract import Backend, Network
from headstart.cli.backends import open_backend
from headstart.cli.terminal import say, table
from headstart.cli.weaker import by_usefulness, without_network
from headstart.clock import SystemClock
from headstart.config.model import ServerSettings, Settings
from headstart.errors import HeadstartError
from headstart.ids import LOCAL_PRINCIPAL, RandomIds, SessionId
from headstart.runtime.contract import SessionScope
from headstart.runtime.service import Service

__all__ = ["learn_all", "report"]


def learn_all(settings: Settings) -> list[dict[str, Any]]:
    """Learn every server, one after the other; what cannot be learned has a `problem`."""
    for noting in ("headstart.backends", "headstart.runtime.learning"):  # what they note is told below, once
        logging.getLogger(noting).setLevel(logging.ERROR)
    return anyio.run(_learn_each, settings)


async def _learn_each(settings: Settings) -> list[dict[str, Any]]:
    async with (
        open_backend(settings) as backend,
        Service.open(settings=settings, backend=backend, clock=SystemClock(), ids=RandomIds()) as service,
    ):
        found: list[dict[str, Any]] = []
        for server in settings.servers:
            say(f"learning {server.name}")
            found.append(await _learn(service, server))
        _tell_weaker(backend)
        if Network.NONE in backend.capabilities.network:
            _tell_offline(settings.servers)
        return found


def _tell_offline(servers: Sequence[ServerSettings]) -> None:
    if told := without_network([server.name for server in servers if server.offline]):
        say(f"no network: {told}")


def _tell_weaker(backend: Backend) -> None:
    lines = by_usefulness(backend.capabilities.weaker)
    if lines:
        say(f"isolation: {backend.capabilities.isolation}. Weaker here than it can be:")
    for line in lines:
        say(f"  - {line}")


async def _learn(service: Service, server: ServerSettings) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": server.name, "tools": 0, "form": "", "reason": "", "problem": "", "hint": ""}
    try:
        status = await service.learn(server.name, LOCAL_PRINCIPAL)
        scope = SessionScope(session=SessionId("init"), principal=LOCAL_PRINCIPAL)
        catalogue = await service.catalogue(server.name, scope)
    except HeadstartError as error:
        return {**entry, "problem": error.in_full, "hint": error.hint or ""}
    form = "remote" if status.remote else status.form.value
    return {**entry, "tools": len(catalogue.tools), "form": form, "reason": status.reason}


def report(learned: Sequence[dict[str, Any]]) -> Iterator[RenderableType]:
    """Yield a table of all servers, then what is wrong with those that cannot start."""
    yield _table(learned)
    yield from _failures(learned)


def _table(learned: Sequence[dict[str, Any]]) -> RenderableType:
    made = table("server", "tools", "starts from", "because")
    for one in learned:
        if one["problem"]:
            made.add_row(one["name"], "-", "does not start", "told below", style="red")
        else:
            made.add_row(one["name"], str(one["tools"]), one["form"], one["reason"])
    return made


def _failures(learned: Sequence[dict[str, Any]]) -> Iterator[RenderableType]:
    """What is wrong with each server that cannot start, each with its cure; outside of the table, for it is long."""
    for one in learned:
        if one["problem"]:
            yield ""
            yield Text(f"{one['name']} does not start", style="bold red")
            yield Padding(one["problem"], (0, 0, 0, 2))
            if one["hint"]:
                yield Padding(f"hint: {one['hint']}", (0, 0, 0, 2))
