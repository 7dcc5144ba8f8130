"""The state directory: which it is, and what is said when a part of it cannot be used."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import platformdirs

from headstart.errors import ConfigError

__all__ = ["state_dir", "unusable"]

_NO_FOLDER = "is not a folder"
_OUT_OF_THE_WAY = "move it out of the way: a new one is made"
_TOLD = {
    errno.EEXIST: (_NO_FOLDER, _OUT_OF_THE_WAY),
    errno.ENOTDIR: (
        "has a file in its path where a folder should be",
        "move that file away, or choose another place with --state-dir",
    ),
    errno.EISDIR: ("is a folder, and should be a file", _OUT_OF_THE_WAY),
    errno.ELOOP: ("is a symbolic link, and should be a file", _OUT_OF_THE_WAY),
    errno.EMFILE: ("cannot be opened: too many files are open", "allow more: ulimit -n 4096"),
}
_HINT = "it has to be this user's own, and writable; --state-dir puts the state elsewhere"


def unusable(path: Path, exc: OSError) -> ConfigError:
    """Tell why the system does not let a part of the state be used, by the path that it named (else `path`).

    >>> str(unusable(Path("/state"), PermissionError(13, "Permission denied")))
    '/state: cannot be used for the state: Permission denied'
    """
    told, hint = _TOLD.get(exc.errno or 0, (f"cannot be used for the state: {exc.strerror or exc}", _HINT))
    return ConfigError(told, where=str(exc.filename2 or exc.filename or path), hint=hint)


def state_dir(state: Path | None = None) -> Path:
    """The state directory: the option, `$HEADSTART_STATE_DIR`, or the XDG one."""
    if state is not None:
        return _resolved(state)
    named = os.environ.get("HEADSTART_STATE_DIR")
    return _resolved(Path(named)) if named else platformdirs.user_state_path("headstart")


def _resolved(path: Path) -> Path:
    """Follow symbolic links; of those in a circle nothing is made, and whoever uses the path is told."""
    try:
        return path.resolve()
    except RuntimeError:
        return path.absolute()
