"""What is said when a file or folder of the state cannot be used: which, why and the cure."""

from __future__ import annotations

import errno
from pathlib import Path

from headstart.errors import ConfigError

__all__ = ["unusable"]

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
