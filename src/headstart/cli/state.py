"""The state directory: which it is, and that one process at a time has it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from headstart.errors import ConfigError
from headstart.runtime.state_files import state_dir, unusable

__all__ = ["STATE_IN_USE_STATUS", "StateInUse", "only_one", "state_dir"]

STATE_IN_USE_STATUS = 3
"""The exit status that tells it from every other reason not to start."""


class StateInUse(ConfigError):
    """Another process holds the state directory."""


@contextmanager
def only_one(state_dir: Path) -> Generator[None]:
    """Hold the state directory, so that two services never write one state.

    Raises:
        StateInUse: Another service holds it.
        ConfigError: It cannot be used.
    """
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise unusable(state_dir, exc) from exc
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        hint = "headstart stop ends it; --state-dir gives this command a state of its own"
        raise StateInUse("a service is running on this state directory", where=str(state_dir), hint=hint) from exc
    except OSError as exc:  # a network's file system may have no locks
        raise unusable(state_dir, exc) from exc
    else:
        yield
    finally:
        os.close(handle)
