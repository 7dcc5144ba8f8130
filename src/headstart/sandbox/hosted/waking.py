"""Hibernated sandboxes are woken by who needs them: once each, whoever waits for that and for how long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from anyio.abc import TaskGroup

from headstart.errors import BackendError, HeadstartError, SandboxUnknown
from headstart.sandbox.hosted.happenings import Happenings
from headstart.sandbox.hosted.messages import HostedEvent
from headstart.sandbox.hosted.record import HostedRecord
from headstart.sandbox.hosted.register import Hibernated, Hosted, Register, Waking

__all__ = ["Waker"]


class Waker:
    """Has hibernated sandboxes run again.

    Args:
        register: Knows which there are.
        start: Starts one again, and returns when it can be used.
        tasks: Where that is done, so that nobody's end cuts it off.
        happenings: Is told.
    """

    def __init__(
        self,
        register: Register,
        *,
        start: Callable[[HostedRecord], Awaitable[None]],
        tasks: TaskGroup,
        happenings: Happenings,
    ) -> None:
        self._register = register
        self._start = start
        self._tasks = tasks
        self._happenings = happenings

    async def woken(self, sandbox: str) -> str:
        """Return the id of one that is not hibernated, or not any more; nothing is awaited after it was found so.

        Args:
            sandbox: Its id or name, or a beginning of its id that no other has.

        Raises:
            SandboxUnknown: There is none.
            BackendError: It cannot be woken, and stays as it is; the message says why.
        """
        while True:
            found = self._register.find(sandbox)
            if isinstance(found, Hosted) and found.hibernates:
                await found.gone.wait()
            elif isinstance(found, Hibernated):
                await self._wake(found)
            else:
                return found.id

    async def _wake(self, hibernated: Hibernated) -> None:
        waking = hibernated.waking
        if waking is None:
            waking = hibernated.waking = Waking()
            self._tasks.start_soon(self._see_it_wake, hibernated, waking)
        await waking.over.wait()
        if waking.failure is not None:
            message = f"{hibernated.id} is hibernated, and cannot be woken: {waking.failure}"
            raise BackendError(message, hint=waking.failure.hint)

    async def _see_it_wake(self, hibernated: Hibernated, waking: Waking) -> None:
        try:
            await self._start(hibernated.record)
        except SandboxUnknown as error:
            self._register.note_ended(hibernated.id, str(error), name=hibernated.name)
        except HeadstartError as error:
            waking.failure, hibernated.waking = error, None
        else:
            self._happenings.tell(HostedEvent.WOKEN, hibernated.id)
        finally:
            waking.over.set()
