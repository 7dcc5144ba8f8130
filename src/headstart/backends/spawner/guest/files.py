"""Opening and naming files (and terminals) for the service, as the sandbox's user and in the sandbox's own file tree.

A path means here what it means to a command of the sandbox, links and `..` included, and can
reach nothing that a command could not. Content does not pass through this process: the
service reads and writes through the descriptor that it gets.

A file is written beside its place first and put there at once, so whoever reads it sees the
old content or the new. `create` says where that is, `place` puts it there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from typing import Any

__all__ = ["OPERATIONS", "answer"]

_TIOCSPTLCK, _TIOCGPTN = 0x40045431, 0x80045430
_NEW_FILE = 0o666
_UNFINISHED = 0o600
_TRIES = 8
_LONGEST_BEGINNING = 200
"""Bytes of a name; with what comes around it, it must fit the 255 that a name may have."""


def answer(message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Do one of `OPERATIONS`: return what to tell, `errno` and `error` if it failed, and what was opened for it."""
    try:
        return OPERATIONS[message["op"]](message)
    except OSError as error:
        number = error.errno or errno.EIO
    except RecursionError:  # of a path that is too deep
        number = errno.ENAMETOOLONG
    except Exception:  # noqa: BLE001 what cannot be a path: whoever asks for it must not end the sandbox
        number = errno.EINVAL
    return {"errno": number, "error": os.strerror(number)}, []


def _open(message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Open what is to be read. Never wait for it: a FIFO without a writer would take for ever."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    return {}, [os.open(message["path"], flags)]


def _look(message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Get hold of something without opening it; a link is itself."""
    return {}, [os.open(message["path"], os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)]


def _create(message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Open a new file beside `path`, making the folders that are missing.

    Tells `target` (where a link at `path` leads), `temporary` and the `mode` that it shall have.
    """
    target = os.path.realpath(message["path"])
    try:
        before = os.stat(target)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        mode = _NEW_FILE & ~_umask()
    else:
        if stat.S_ISDIR(before.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(before.st_mode):  # whoever listens at a FIFO would be left with nothing
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        mode = stat.S_IMODE(before.st_mode)
    temporary, descriptor = _open_beside(target)
    return {"target": target, "temporary": temporary, "mode": mode}, [descriptor]


def _open_beside(target: str) -> tuple[str, int]:
    folder, name = os.path.split(target)
    beginning = os.fsdecode(os.fsencode(name)[:_LONGEST_BEGINNING])
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    for _ in range(_TRIES):
        temporary = os.path.join(folder, f".{beginning}.{os.urandom(6).hex()}")
        try:
            return temporary, os.open(temporary, flags, _UNFINISHED)
        except FileExistsError:
            continue
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))


def _place(message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    os.chmod(message["temporary"], message["mode"])
    os.rename(message["temporary"], message["target"])
    return {}, []


def _make_folder(message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    os.makedirs(message["path"], exist_ok=True)
    return {}, []


def _rename(message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    os.rename(message["path"], message["to"])
    return {}, []


def _remove(message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    path = message["path"]
    if stat.S_ISDIR(os.lstat(path).st_mode):
        os.rmdir(path)
    else:
        os.unlink(path)
    return {}, []


def _terminal(message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Make a terminal; hand out the side that shows it, and tell the `path` of the one that a command gets."""
    ours = os.open(message["path"], os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(ours, _TIOCSPTLCK, struct.pack("i", 0))
        number = struct.unpack("I", fcntl.ioctl(ours, _TIOCGPTN, bytes(4)))[0]
    except OSError:
        os.close(ours)
        raise
    return {"path": f"/dev/pts/{number}"}, [ours]


def _umask() -> int:
    """Return ours; the only way to read it is to set it, and we are one thread."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


OPERATIONS = {
    "open": _open,
    "look": _look,
    "create": _create,
    "place": _place,
    "make-folder": _make_folder,
    "rename": _rename,
    "remove": _remove,
    "terminal": _terminal,
}
"""What may be asked for, by the name of its `op`; each takes the message and returns what `answer` does."""
