"""Start the spawner and ask things of it.

The spawner lives exactly as long as `open_spawner`'s body: closing our end of its socket
makes it end everything that it started. If it dies first, every sandbox is lost (the inits
die with it) and none can be started any more: the body is cancelled, and `open_spawner`
raises. A spawner in its place would have none of the templates and zygotes that the body
has prepared; whoever began all that begins it again.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup

from headstart.backends.spawner.channel import Channel
from headstart.backends.spawner.guest import launch
from headstart.backends.spawner.link import Link, PeerGone
from headstart.errors import BackendError, BackendUnavailable
from headstart.ids import SandboxId

__all__ = ["ERRAND_S", "SpawnerClient", "Started", "open_spawner"]

_SPAWNER = "headstart.backends.spawner.guest.spawner"
_READY_TIMEOUT_S = 30.0
ERRAND_S = 60.0
"""How long a request may take, unless said."""
_END_TIMEOUT_S = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A sandbox whose init is being built.

    Attributes:
        facts: What the kind said about it.
    """

    channel: Channel
    facts: Mapping[str, Any]


class _Reply:
    """One answer that somebody waits for."""

    def __init__(self) -> None:
        self.arrived = anyio.Event()
        self.message: dict[str, Any] | None = None


class SpawnerClient:
    """Requests to a running spawner; made by `open_spawner`."""

    def __init__(self, link: Link, tasks: TaskGroup, pid: int) -> None:
        self._link = link
        self._tasks = tasks
        self._replies: dict[int, _Reply] = {}
        self._next_seq = 1
        self._ready = anyio.Event()
        self._gone = False
        self._let_go = False
        self._at_end = ExitStack()
        self._unavailable: str | None = None
        self.pid = pid
        self.was_lost = False
        """Whether it went while it was in use."""
        self.facts: Mapping[str, Any] = {}
        """What the kind told when it was ready."""

    @property
    def is_gone(self) -> bool:
        """Whether the spawner has ended, or no longer listens to us."""
        return self._gone

    async def prepare(self, template: str, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make a template ready.

        Raises:
            BackendError: It cannot be, or the spawner is gone.
        """
        return await self._request({"op": "prepare", "template": template, "plan": plan})

    async def release(self, template: str) -> None:
        await self._request({"op": "release", "template": template})

    async def count(self) -> Mapping[str, int]:
        """Return how many `processes` and control `groups` there are, what is parked apart.

        Raises:
            BackendError: The spawner is gone (and with it, all processes).
        """
        return await self._request({"op": "count"})

    async def start(
        self, sandbox: SandboxId, template: str, order: Mapping[str, Any], *, origin: SandboxId | None = None
    ) -> Started:
        """Start a sandbox and return once it can run commands. If cancelled, nothing is left of it.

        With `origin`, another sandbox's layers are at hand for it; the order says which it has.

        Raises:
            BackendError: It cannot be built, or the spawner is gone.
        """
        link, theirs = Link.pair()
        channel = Channel(link, spawner=self.pid)
        self.serve(channel)
        try:
            with theirs:
                request = {
                    "op": "start",
                    "sandbox": sandbox,
                    "template": template,
                    "order": order,
                    "origin": origin,
                }
                reply = await self._request(request, [theirs.fileno()])
            await channel.wait_ready()
        except BaseException:
            await self.close(sandbox, channel)
            raise
        return Started(channel=channel, facts=reply)

    async def errand(
        self,
        sandbox: SandboxId | None,
        template: str,
        do: str,
        *,
        descriptors: Sequence[int] = (),
        within_s: float | None = ERRAND_S,
        **details: Any,
    ) -> Mapping[str, Any]:
        """Have a helper do something to a sandbox, and return what it tells; `{"outcome": "broken"}`: it was killed over it.

        Raises:
            BackendError: It could not; what it found stands.
        """
        request = {"op": "errand", "sandbox": sandbox, "template": template, "do": do, **details}
        return await self._request(request, descriptors, within_s=within_s)

    async def store_errand(self, store: str, do: str, **details: Any) -> Mapping[str, Any]:
        """Have a helper do something to a store, and return what it tells.

        Raises:
            BackendError: It could not, or was killed over it.
        """
        told = await self._request({"op": "store", "store": store, "do": do, **details})
        if told.get("outcome") == "broken":
            raise BackendError(f"the helper that was to {do} the store {store} was killed", hint="try again")
        return told

    def start_soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something in a task of its own, for as long as the spawner is used. It must not raise."""
        self._tasks.start_soon(work)

    def serve(self, channel: Channel) -> None:
        """Take a channel's messages for as long as the spawner is used."""
        self._tasks.start_soon(channel.serve)

    def run_soon(self, function: Callable[[], None]) -> None:
        """Run something blocking in a worker thread; leaving `open_spawner` waits for it."""
        self._tasks.start_soon(anyio.to_thread.run_sync, function)

    def call_at_end(self, callback: Callable[[], None]) -> None:
        """Call this when the spawner and everything that it started have ended."""
        self._at_end.callback(callback)

    def call_all_at_end(self) -> None:
        self._at_end.close()

    async def close(self, sandbox: SandboxId, channel: Channel) -> None:
        """End a sandbox; return when nothing of it is left. Completes under cancellation, within 5 s."""
        channel.close()
        with anyio.move_on_after(_END_TIMEOUT_S, shield=True) as patience:
            try:
                await self._request({"op": "close", "sandbox": sandbox})
            except BackendError as error:
                _log.debug("%s ended with its spawner: %s", sandbox, error)
        if patience.cancelled_caught:
            _log.warning("%s has not ended within %.0f s; its spawner goes on trying", sandbox, _END_TIMEOUT_S)

    async def wait_ready(self) -> None:
        """Return once the spawner serves.

        Raises:
            BackendUnavailable: It cannot do its work on this machine.
        """
        with anyio.move_on_after(_READY_TIMEOUT_S):
            await self._ready.wait()
        if not self._ready.is_set() or self._gone:
            raise BackendUnavailable(self._unavailable or "the spawner has not started; its stderr says why")

    def let_go(self) -> None:
        """Have it end everything, and itself. Idempotent."""
        self._let_go = True
        self._link.close()

    async def receive_messages(self) -> None:
        """Take the spawner's messages until it is gone; if that is too early, cancel all that uses it."""
        try:
            while True:
                self._take(await self._link.receive())
        except PeerGone:
            self.was_lost = self._ready.is_set() and not self._let_go
            if self.was_lost:
                self._tasks.cancel_scope.cancel()
        finally:
            self._gone = True
            self._ready.set()
            for reply in self._replies.values():
                reply.arrived.set()

    def _take(self, message: dict[str, Any]) -> None:
        if "seq" in message:
            reply = self._replies.get(message["seq"])
            if reply is not None:  # else: who asked was cancelled
                reply.message = message
                reply.arrived.set()
        elif message["event"] == "ready":
            self.facts = message
            self._ready.set()
        elif message["event"] == "unavailable":
            self._unavailable = message["error"]
        else:
            _log.debug("the init of %s ended by itself: %s", message.get("sandbox"), message)

    async def _request(
        self,
        message: Mapping[str, Any],
        descriptors: Sequence[int] = (),
        *,
        within_s: float | None = ERRAND_S,
    ) -> dict[str, Any]:
        if self._gone:
            raise BackendError("the spawner is gone", hint="restart the service")
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        reply = self._replies[seq] = _Reply()
        try:
            await self._link.send({**message, "seq": seq}, descriptors)
            with anyio.move_on_after(within_s):
                await reply.arrived.wait()
        except PeerGone as error:
            raise BackendError("the spawner is gone", hint="restart the service") from error
        finally:
            del self._replies[seq]
        if reply.message is None:
            await anyio.lowlevel.checkpoint_if_cancelled()  # together with what takes the answers
            raise BackendError(f"the spawner did not answer {message['op']!r}", hint="restart the service")
        if "error" in reply.message:
            raise BackendError(str(reply.message["error"]))
        return reply.message


@asynccontextmanager
async def open_spawner(kind: str, settings: Mapping[str, Any]) -> AsyncGenerator[SpawnerClient]:
    """Run a spawner whose sandboxes are made by the guest module `kind`.

    On leaving, everything that it started has ended (within 5 s, also when cancelled).

    Raises:
        BackendUnavailable: This machine cannot run it; the message says what is missing.
        BackendError: It ended while it was in use; the body was cancelled.
    """
    link, theirs = Link.pair()
    arguments = [sys.executable, "-I", "-S", str(Path(launch.__file__)), _SPAWNER, kind, json.dumps(settings)]
    with theirs:
        try:
            process = await anyio.open_process(
                arguments, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=None, env={}, start_new_session=True
            )
        except BaseException:
            link.close()  # and it ends, if it has begun
            raise
    failure: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            client = SpawnerClient(link, tasks, process.pid)
            tasks.start_soon(client.receive_messages)
            try:
                await client.wait_ready()
                yield client
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:  # noqa: BLE001  carried past the task group, which would wrap it
                failure = error
            finally:
                client.let_go()
                await _see_it_end(process)
                if client.was_lost:
                    failure = _lost(process)
                client.call_all_at_end()
                tasks.cancel_scope.cancel()
    finally:
        link.close()
    if failure is not None:
        raise failure


async def _see_it_end(process: anyio.abc.Process) -> None:
    with anyio.move_on_after(_END_TIMEOUT_S, shield=True):
        await process.wait()
    if process.returncode is not None:
        return
    _log.warning("the spawner (pid %d) has not ended within %.0f s and is killed", process.pid, _END_TIMEOUT_S)
    process.kill()
    with anyio.CancelScope(shield=True):
        await process.wait()


def _lost(process: anyio.abc.Process) -> BackendError:
    status = process.returncode or 0
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return BackendError(
        f"the spawner (pid {process.pid}), from which every sandbox is forked, {how}, and all sandboxes with it",
        hint="start headstart again; if memory ran out, the kernel's log (dmesg) says so",
    )
