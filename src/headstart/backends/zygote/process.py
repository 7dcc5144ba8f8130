"""The host's side of a zygote: preload once, then fork on request.

The backend starts `zygote_command(…)` as an ordinary process inside the zygote's own
sandbox and hands the other end of its control socket to `ZygoteProcess`. What a fork is
confined by, and who watches over it, is the backend's own guest module (`confine`).
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import anyio

from headstart.backends.contract import Preload
from headstart.backends.zygote.control import Control
from headstart.backends.zygote.entry import EntryPlan
from headstart.backends.zygote.report import PreloadReport
from headstart.errors import BackendError

__all__ = ["GUEST_DIR", "ForkRequest", "ZygoteProcess", "audit_command", "record_command", "zygote_command"]

GUEST_DIR = Path(__file__).parent / "guest"
"""What a sandbox must see (read-only, at this very path) to record, audit or preload."""

PRELOAD_TIMEOUT_S = 120.0
FORK_TIMEOUT_S = 20.0


def zygote_command(preload: Preload, *, control: int) -> tuple[str, ...]:
    """Return the argv of a zygote; `control` is its number for the control socket."""
    return _guest_command(preload.interpreter, preload.options, "preload", control)


def audit_command(plan: EntryPlan, *, control: int) -> tuple[str, ...]:
    """Return the argv of a preloader that will only be looked at."""
    return _guest_command(plan.interpreter, plan.options, "preload", control)


def record_command(plan: EntryPlan, *, control: int) -> tuple[str, ...]:
    """Return the argv that runs the program cold, and records what it imports."""
    moved = ("--chdir", plan.cwd) if plan.cwd is not None else ()
    return (*_guest_command(plan.interpreter, plan.options, "record", control), *moved, "--", *plan.entry, *plan.args)


def _guest_command(interpreter: str, options: Sequence[str], mode: str, control: int) -> tuple[str, ...]:
    return (interpreter, *options, str(GUEST_DIR / "boot.py"), mode, "--control", str(control))


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest:
    """One fork.

    Attributes:
        env: The whole environment.
        cwd: As seen from inside the confinement; None leaves it as `enter` does.
        stdio: Descriptors to become 0, 1 and 2; they stay open here.
        plan: For the backend's `enter`, plain JSON data; what equals the plan that forks are made ahead for is quicker.
        plan_fds: Descriptors that go along; `enter` is told their numbers under these keys.
    """

    env: Mapping[str, str]
    cwd: str | None
    stdio: tuple[int, int, int]
    plan: Mapping[str, Any] = field(default_factory=dict[str, Any])
    plan_fds: Mapping[str, int] = field(default_factory=dict[str, int])


class ZygoteProcess:
    """A preloaded process. Owns the control socket; closing it ends the zygote and spares its forks."""

    def __init__(self, control: socket.socket, *, name: str) -> None:
        self._name = f"the zygote of {name}"
        self._control = Control(control, name=self._name)
        self._sending = anyio.Lock()
        self._preload: Preload | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._control.close()

    async def preload(
        self,
        preload: Preload,
        *,
        confine: Path | None = None,
        ahead: Mapping[str, Any] | None = None,
        audit: bool = False,
        timeout_s: float = PRELOAD_TIMEOUT_S,
    ) -> PreloadReport:
        """Import the modules, once.

        Args:
            preload: What to import, and what forks will run.
            confine: The backend's guest module with `fork` and `enter`; None where nothing will be forked.
            ahead: The plan for which one fork is made before it is wanted, and then the next.
            audit: Record what importing reads and does. An audited zygote is slower and not for use.
            timeout_s: How long the imports may take.

        Raises:
            BackendError: It died, took too long, or (unless audited) must not be forked.

        Cancelled, the zygote goes on importing: close it.
        """
        request = {
            "op": "preload",
            "entry": list(preload.entry),
            "args": list(preload.args),
            "modules": list(preload.modules),
            "cwd": preload.cwd,
            "confine": str(confine) if confine is not None else None,
            "ahead": dict(ahead) if ahead is not None else None,
            "audit": audit,
            "advance": preload.advance,
        }
        await self._control.send(request)
        report = PreloadReport.parse(await self._control.receive(timeout_s=timeout_s))
        reason = report.unforkable()
        if reason is not None and not audit:
            raise BackendError(f"{self._name} cannot be forked: {reason}")
        self._preload = preload
        return report

    async def fork(self, request: ForkRequest, *, timeout_s: float = FORK_TIMEOUT_S) -> None:
        """Fork one server; returns when it is confined and about to run the program.

        Raises:
            BackendError: The zygote is gone, the fork failed or could not be confined.

        Cancelled, the fork may exist: the backend ends it through its own control descriptor.
        """
        if self._preload is None:
            raise BackendError(f"{self._name} has not preloaded yet")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with Control(ours, name=f"a fork of {self._name}") as channel:
            with theirs:
                message, fds = _fork_message(self._preload, request)
                async with self._sending:
                    await self._control.send(message, [*request.stdio, *fds, theirs.fileno()])
            await channel.receive(timeout_s=timeout_s)


def _fork_message(preload: Preload, request: ForkRequest) -> tuple[dict[str, Any], list[int]]:
    message = {
        "op": "fork",
        "entry": list(preload.entry),
        "args": list(preload.args),
        "env": dict(request.env),
        "cwd": preload.cwd or request.cwd,
        "plan": dict(request.plan),
        "plan_fds": {key: place for place, key in enumerate(request.plan_fds)},
    }
    return message, list(request.plan_fds.values())
