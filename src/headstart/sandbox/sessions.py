"""What keeps its state between the commands of one sandbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import anyio

from headstart.runtime.remembered import SessionState
from headstart.sandbox.kernels import Kernel, Shell
from headstart.sandbox.kernels.keeper import Changing

__all__ = ["Sessions"]


class Sessions:
    """What keeps its state between commands: a Python kernel and a bash session."""

    def __init__(self, changing: Changing, env: Mapping[str, str]) -> None:
        self.kernel = Kernel(changing, env=env)
        self.shell = Shell(changing, env=env)

    def take_over(self, before: Sessions, changing: Changing) -> None:
        """Run where this says from now on, in the place of others, which are lost."""
        self.kernel.take_over(before.kernel, changing)
        self.shell.move_to(changing)

    async def keep(self) -> None:
        """Have `state` be what they are at, as far as nothing of it goes on by itself (a bash's jobs).

        Raises:
            NotCapturable: The kernel has something that cannot be kept.
            BackendError: The sandbox is gone.
        """
        failures: list[Exception] = []

        async def attempt(keep: Callable[[], Awaitable[None]]) -> None:
            try:
                await keep()
            except Exception as failure:  # noqa: BLE001 raised below
                failures.append(failure)

        async with anyio.create_task_group() as both:
            both.start_soon(attempt, self.shell.put_to_sleep)
            both.start_soon(attempt, self.kernel.keep)
        if failures:
            raise failures[0]

    def state(self, *, files_only: bool) -> SessionState:
        """Return what is kept of them; with `files_only`, nothing that runs."""
        image, process, shell = self.kernel.image, self.kernel.process, self.shell.resting
        resting = () if shell is None else (shell,)
        if image is None or files_only:
            return SessionState(shell=self.shell.asleep, has_lost_kernel=self.kernel.has_state, beside=resting)
        return SessionState(
            shell=self.shell.asleep,
            kernel=image,
            unseeded=self.kernel.unseeded,
            beside=resting if process is None else (process, *resting),
        )

    def go_on_as(self, state: SessionState, *, seed: int | None = None) -> None:
        """Let the next command, and the next cell, find this state, whatever there was.

        With a `seed`, they draw random numbers of their own; else the same as whoever else goes on from there.
        """
        self.shell.go_on_as(state.shell, seed=seed)
        self.kernel.go_on_as(state.kernel, is_lost=state.has_lost_kernel, reseeded=seed is not None)
        self.kernel.unseeded = state.unseeded

    async def aclose(self) -> None:
        """End them. Idempotent."""
        await self.kernel.aclose()
        await self.shell.aclose()
