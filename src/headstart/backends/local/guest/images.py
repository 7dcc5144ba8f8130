"""A disk image: a sparse file with a file system of its own in it, which cannot grow beyond its size.

What is written in it takes space on the host's disk as it is written, and what is deleted gives
it back (`discard`). The kernel attaches it as a loop device, which goes with the last mount, however
its users have ended. A lock on the file is the loop device's, too, as long as that is there: so
nobody attaches an image twice, which would destroy it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct

from headstart.backends.spawner.guest import processes, syscalls

__all__ = ["can_be_made", "lock_soon", "make", "mount"]

_BLOCK_BYTES = 4096
_LEAST_BYTES = 16 << 20
_JOURNAL_MB, _SMALL_JOURNAL_MB, _SMALL_BYTES = 8, 4, 256 << 20
_MOST_RESERVED_BYTES = 16 << 20
"""What ext4 keeps for what it must be able to write in any case: a fiftieth, and no more than this."""

_INODE_BYTES = 256
_LOOP_CONFIGURE, _LOOP_CTL_GET_FREE = 0x4C0A, 0x4C82
_AUTOCLEAR, _DIRECT_IO = 4, 16
_CONTROL = "/dev/loop-control"
_MAKERS = ("/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4", "/usr/bin/mkfs.ext4", "/usr/local/sbin/mkfs.ext4")
_OPTIONS = "discard,noinit_itable,errors=remount-ro"
"""Its inode tables are holes, and so zeroes; writing zeroes there would take space for nothing."""

_PAUSE_S = 0.01
_END_S, _WRITE_BACK_S = 10, 30
"""How long who had something open may take to end, and then the kernel to write an image's last changes to its file."""


def can_be_made() -> bool:
    """Whether this machine seems to have what it takes: root, loop devices, ext4's tools."""
    return os.geteuid() == 0 and os.access(_CONTROL, os.R_OK | os.W_OK) and _maker() is not None


def _maker() -> str | None:
    return next((path for path in _MAKERS if os.access(path, os.X_OK)), None)


def make(path: str, *, content_bytes: int, inodes: int) -> None:
    """Make an image that holds so much and no more (16 MB at least); it is there whole or not at all.

    Raises:
        OSError: It cannot be made.
    """
    maker, being_made = _maker(), path + ".new"
    if maker is None:
        raise OSError(errno.ENOENT, "mkfs.ext4 is missing: install e2fsprogs")
    content_bytes = max(content_bytes, _LEAST_BYTES)
    journal_mb = _SMALL_JOURNAL_MB if content_bytes < _SMALL_BYTES else _JOURNAL_MB
    reserved = min(_MOST_RESERVED_BYTES, content_bytes // 50)
    size = content_bytes + reserved + inodes * _INODE_BYTES + (journal_mb << 20)
    with open(being_made, "wb", opener=_private) as image:
        image.truncate(-(-size // _BLOCK_BYTES) * _BLOCK_BYTES)
    _run(
        [
            *(maker, "-q", "-F", "-m", "0", "-b", str(_BLOCK_BYTES), "-N", str(inodes), "-J", f"size={journal_mb}"),
            *("-E", "lazy_itable_init=1,lazy_journal_init=1", being_made),
        ]
    )
    os.rename(being_made, path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _run(argv: list[str]) -> None:
    pid = os.posix_spawn(argv[0], argv, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, setsigdef=[signal.SIGPIPE])
    status = os.waitpid(pid, 0)[1]
    if status != 0:
        raise OSError(errno.EIO, f"{argv[0]} failed; its stderr says why")


def mount(path: str, target: str) -> None:
    """Mount an image, once nobody else has it any more.

    Raises:
        OSError: `EBUSY` if somebody else keeps it; or it cannot be mounted.
    """
    image = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        lock_soon(image, within_s=_WRITE_BACK_S)
        device, name = _attach(image)
    finally:
        os.close(image)
    try:
        syscalls.mount(name, target, "ext4", syscalls.MS_NOSUID | syscalls.MS_NODEV, _OPTIONS)
    except OSError as error:
        raise OSError(error.errno, f"its image is damaged: {error.strerror}") from error
    finally:
        os.close(device)


def lock_soon(descriptor: int, *, within_s: int = _END_S) -> None:
    """Lock what is open; who had it may need a moment to end.

    Raises:
        OSError: `EBUSY`: somebody else keeps it.
    """
    for _ in range(int(within_s / _PAUSE_S)):
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            processes.pause(_PAUSE_S)
    raise OSError(errno.EBUSY, "somebody else has it open")


def _attach(image: int) -> tuple[int, str]:
    """Return a loop device of an image, open, and its name; it goes when it is neither open nor mounted."""
    info = struct.pack("=5Q4I64s64s32s2Q", *[0] * 8, _AUTOCLEAR | _DIRECT_IO, b"", b"", b"", 0, 0)
    order = struct.pack("=II", image, _BLOCK_BYTES) + info + bytes(64)
    control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        while True:
            name = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
            device = os.open(name, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _LOOP_CONFIGURE, order)
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:  # somebody else was faster
                    raise
            else:
                return device, name
    finally:
        os.close(control)
