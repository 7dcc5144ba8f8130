"""Sandboxes that are nothing but processes of their own: what the spawner does for this backend."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from typing import Any, NoReturn

from headstart.backends.process.guest.guard import leave_guard_behind
from headstart.backends.spawner.guest import runs, syscalls
from headstart.backends.spawner.guest.init import Init, reset_signals

__all__ = ["ProcessKind", "make_kind"]


class ProcessKind:
    """Forks an init (a subreaper) and its guard for each sandbox, with its private folders."""

    grace_s = 0.7

    def __init__(self, settings: dict[str, Any]) -> None:
        self._run = runs.Run(settings["base"])
        self.facts = {"run": self._run.path}
        # Whoever holds the read end sees end of file when this process is gone, however it went.
        self._lifeline, self._held = os.pipe2(os.O_CLOEXEC)

    def prepare(self, template: str, plan: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002  the protocol's
        return {}

    def release(self, template: str) -> None:
        """Nothing is kept for a template."""

    def start(
        self,
        template: str,  # noqa: ARG002
        order: dict[str, Any],
        control: int,
        origin: int | None,  # noqa: ARG002
    ) -> tuple[int, dict[str, Any]]:
        pid = os.fork()
        if pid == 0:
            self._be_init(order, control)
        return pid, {}

    def begin_errand(self, init: int | None, message: dict[str, Any], descriptors: Sequence[int]) -> int:  # noqa: ARG002
        raise OSError(errno.ENOTSUP, "sandboxes that are not isolated have no layers")

    def begin_store_errand(self, message: dict[str, Any]) -> int:  # noqa: ARG002
        raise OSError(errno.ENOTSUP, "files of sandboxes that are not isolated go with them")

    def _be_init(self, order: dict[str, Any], control: int) -> NoReturn:
        try:
            reset_signals()
            syscalls.set_title("headstart-init")
            os.setsid()
            os.nice(order["niceness"])
            own_control = fcntl.fcntl(control, fcntl.F_DUPFD_CLOEXEC, 64)
            leave_guard_behind(own_control)
            init = Init(
                own_control,
                ends_with_namespace=False,
                lifeline=self._lifeline,
                at_end=lambda: runs.remove_trees(order["directories"]),
                limits=order["rlimits"],
            )
            init.let_go_of_everything_else()
            for folder in order["directories"]:
                os.makedirs(folder, mode=0o700, exist_ok=True)
            init.serve()
        finally:
            os._exit(70)

    def ended(self, pid: int) -> None:
        """The init has removed its folders; what it could not goes with the run's."""

    def is_clean(self, pid: int) -> bool:  # noqa: ARG002
        return True

    def tend(self) -> float | None:
        return None

    def owns(self, pid: int) -> bool:  # noqa: ARG002
        return False

    def count_groups(self) -> int:
        return 0

    def close(self) -> None:
        self._run.remove()


def make_kind(settings: dict[str, Any], service: int) -> ProcessKind:  # noqa: ARG001  the protocol's
    """Make the kind; `settings` is `{"base": folder for runs}`."""
    return ProcessKind(settings)
