"""Finding the running service: a small file in the state directory."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO

from headstart.errors import HeadstartError
from headstart.runtime.state_files import unusable

__all__ = ["NotRunning", "ServiceFile", "find_service", "host_for_url", "keep_service_file"]

FILE_NAME = "service.json"


class NotRunning(HeadstartError):
    """No service of this state directory is running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFile:
    """What a running service tells its own commands; the file is 0600.

    Attributes:
        url: `http://127.0.0.1:8787`.
        token: For the control routes; new at every start.
    """

    pid: int
    url: str
    token: str = field(repr=False)


def host_for_url(host: str) -> str:
    """Return where a program on this machine reaches a service that listens on `host`.

    "Every address" is no address that one can name: the service's own guard refuses it.

    >>> host_for_url("0.0.0.0"), host_for_url("::"), host_for_url("fd00::7"), host_for_url("10.0.0.7")
    ('127.0.0.1', '[::1]', '[fd00::7]', '10.0.0.7')
    """
    reached = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 recognised, not bound to
    return f"[{reached}]" if ":" in reached else reached


@contextmanager
def keep_service_file(state_dir: Path, service: ServiceFile) -> Generator[None]:
    """Show the service to its commands while the block runs.

    No other user can ever read the file, and it appears whole or not at all. A lock on it says
    that the service lives, as no pid could: that may be another's by then.

    Raises:
        ConfigError: Something is in its way.
    """
    path = state_dir / FILE_NAME
    with ExitStack() as stack:
        try:
            staged = path.with_suffix(".new")
            handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            file = stack.enter_context(os.fdopen(handle, "w", encoding="utf-8"))
            fcntl.flock(file, fcntl.LOCK_EX)
            json.dump(asdict(service), file)
            file.flush()
            staged.replace(path)
        except OSError as exc:
            raise unusable(path, exc) from exc
        stack.callback(path.unlink, missing_ok=True)
        yield


def find_service(state_dir: Path) -> ServiceFile:
    """Return the running service.

    Raises:
        NotRunning: There is none.
        ConfigError: Its file cannot be read.
    """
    path = state_dir / FILE_NAME
    hint = "start one: headstart serve"
    try:
        with path.open(encoding="utf-8") as file:
            service, lives = ServiceFile(**json.load(file)), _is_locked(file)
    except (FileNotFoundError, ValueError, TypeError) as exc:
        raise NotRunning("no headstart service is running here", hint=hint) from exc
    except OSError as exc:
        raise unusable(path, exc) from exc
    if not lives:
        raise NotRunning(f"the service that wrote {path} (pid {service.pid}) is gone", hint=hint)
    return service


def _is_locked(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
