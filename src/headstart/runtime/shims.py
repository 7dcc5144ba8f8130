"""Shims: what a version manager puts in the place of a program, and the program behind it.

A shim decides at every start which version to run, from files in the working directory and
in the user's home. A sandbox has neither, so the decision is made outside, by the manager
itself: each knows `which NAME`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from headstart.errors import ServerUnavailable
from headstart.ids import ResourceId

__all__ = ["behind_shim"]

ASK_TIMEOUT_S = 10.0
LONGEST_SHIM_BYTES = 4_096
_EXECUTES = re.compile(rb'^exec "?(?P<manager>[^"\s]+)"? exec "?', re.MULTILINE)
"""How the shims of pyenv, rbenv, nodenv and asdf end."""
_BINARIES = {"mise": "mise", "volta-shim": "volta"}
"""What the shims of the others are links to, and who answers for it."""


def behind_shim(found: Path, *, server: ResourceId, cwd: Path | None, search: str) -> Path:
    """Return the program that would be executed; `found` itself if it is no shim.

    Blocking: asks the manager, at most 10 s.

    Raises:
        ServerUnavailable: The manager does not know.
    """
    manager = _manager(found, search)
    if manager is None:
        return found
    why = "it does not say where"
    try:
        asked = subprocess.run(
            [manager, "which", found.name],
            cwd=cwd or Path.home(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT_S,
            check=False,
        )
        told = Path(asked.stdout.strip())
        if asked.returncode == 0 and told.is_absolute() and told.is_file():
            return told
        why = next((line.strip() for line in asked.stderr.splitlines() if line.strip()), why)
    except (OSError, subprocess.TimeoutExpired) as exc:
        why = str(exc)
    raise ServerUnavailable(
        f"{server}: {found} only leads to what {manager.name} chooses, and {manager.name} cannot tell: {why}",
        server=server,
        hint=f"give the program's own path as mcpServers.{server}.command",
    )


def _manager(found: Path, search: str) -> Path | None:
    """Return the version manager whose shim this is, None for an ordinary program."""
    target = found.resolve()
    if target.name in _BINARIES:
        return target.with_name(_BINARIES[target.name])
    if found.parent.name != "shims" or target.stat().st_size > LONGEST_SHIM_BYTES:
        return None
    executes = _EXECUTES.search(target.read_bytes())
    if executes is None:
        return None
    manager = shutil.which(executes["manager"].decode("utf-8", "replace"), path=search)
    return Path(manager) if manager else None
