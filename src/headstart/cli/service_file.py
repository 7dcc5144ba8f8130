"""Finding the running service: a small file in the state directory."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headstart.errors import HeadstartError
from headstart.runtime.state_files import unusable

__all__ = ["NotRunning", "ServiceFile", "find_service", "host_for_url", "write_service_file"]

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


def write_service_file(state_dir: Path, service: ServiceFile) -> Path:
    """Write the file so that no other user can ever read it; it appears whole or not at all.

    Raises:
        ConfigError: Something is in its way.
    """
    path = state_dir / FILE_NAME
    staged = path.with_suffix(".new")
    try:
        handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(asdict(service), file)
        staged.replace(path)
    except OSError as exc:
        raise unusable(path, exc) from exc
    return path


def find_service(state_dir: Path) -> ServiceFile:
    """Return the running service.

    Raises:
        NotRunning: There is none.
        ConfigError: Its file cannot be read.
    """
    path = state_dir / FILE_NAME
    try:
        service = ServiceFile(**json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError) as exc:
        raise NotRunning("no headstart service is running here", hint="start one: headstart serve") from exc
    except OSError as exc:
        raise unusable(path, exc) from exc
    if not _is_alive(service.pid):
        raise NotRunning(
            f"the service that wrote {path} (pid {service.pid}) is gone", hint="start one: headstart serve"
        )
    return service


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
