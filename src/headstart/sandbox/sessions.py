"""What keeps its state between the commands of one sandbox."""

from __future__ import annotations

from collections.abc import Mapping

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

    async def aclose(self) -> None:
        """End them. Idempotent."""
        await self.kernel.aclose()
        await self.shell.aclose()
