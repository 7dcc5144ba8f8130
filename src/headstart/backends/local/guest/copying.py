"""Copying a layer: everything in it, as it is, also what only overlayfs understands. And deleting one."""

from __future__ import annotations

import errno
import os
import stat

__all__ = ["copy_folder", "copy_tree", "delete_tree", "remove_empty_way"]

_CHUNK_BYTES = 1 << 20


class _Copy:
    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes
        self._seen: dict[tuple[int, int], str] = {}  # a file with several names is copied once
        self.copied = 0

    def copy(self, source: str, target: str, skip: str) -> None:
        facts = os.lstat(source)
        if stat.S_ISDIR(facts.st_mode):
            os.mkdir(target)
            for name in os.listdir(source):
                if name != skip:
                    self.copy(f"{source}/{name}", f"{target}/{name}", "")
        elif facts.st_nlink > 1 and (facts.st_dev, facts.st_ino) in self._seen:
            os.link(self._seen[facts.st_dev, facts.st_ino], target)
            return
        else:
            self._copy_one(source, target, facts)
            self._seen[facts.st_dev, facts.st_ino] = target
        self._dress(source, target, facts)

    def _copy_one(self, source: str, target: str, facts: os.stat_result) -> None:
        if stat.S_ISLNK(facts.st_mode):
            os.symlink(os.readlink(source), target)
        elif stat.S_ISREG(facts.st_mode):
            self._copy_content(source, target, facts.st_size)
        else:  # a FIFO, a socket, or overlayfs's mark of what was removed
            os.mknod(target, facts.st_mode, facts.st_rdev)

    def _copy_content(self, source: str, target: str, size: int) -> None:
        """Copy what is there of a file; its holes stay holes."""
        reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(writing, size)
            start = 0
            while True:
                try:
                    start = os.lseek(reading, start, os.SEEK_DATA)
                except OSError as error:
                    if error.errno == errno.ENXIO:  # nothing but a hole is left
                        return
                    raise
                start = self._copy_part(reading, writing, start, os.lseek(reading, start, os.SEEK_HOLE))
        finally:
            os.close(reading)
            os.close(writing)

    def _copy_part(self, reading: int, writing: int, start: int, end: int) -> int:
        os.lseek(writing, start, os.SEEK_SET)
        while start < end:
            count = os.sendfile(writing, reading, start, min(_CHUNK_BYTES, end - start))
            if not count:
                break
            start += count
            self.copied += count
            if self.copied > self._left:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return end

    @staticmethod
    def _dress(source: str, target: str, facts: os.stat_result) -> None:
        os.chown(target, facts.st_uid, facts.st_gid, follow_symlinks=False)
        if not stat.S_ISLNK(facts.st_mode):
            os.chmod(target, stat.S_IMODE(facts.st_mode))
        for name in os.listxattr(source, follow_symlinks=False):
            os.setxattr(target, name, os.getxattr(source, name, follow_symlinks=False), follow_symlinks=False)
        os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns), follow_symlinks=False)


def copy_tree(source: str, target: str, *, skip: str, most_bytes: int) -> int:
    """Copy a layer's folder; `target` is made. Folders named `skip` right below its parts are left out.

    Returns:
        Bytes of content that were copied.

    Raises:
        OSError: `EFBIG` if that would be more than `most_bytes`; `ENAMETOOLONG` if it is too deep.
    """
    copy = _Copy(most_bytes)
    os.mkdir(target)
    try:
        for part in os.listdir(source):
            copy.copy(f"{source}/{part}", f"{target}/{part}", skip)
    except RecursionError:
        raise OSError(errno.ENAMETOOLONG, "folders are nested too deeply to be copied") from None
    return copy.copied


def copy_folder(source: str, target: str, *, most_bytes: int) -> int:
    """Copy a folder with all that is in it, which nobody changes meanwhile; `target` is made.

    Returns and raises what `copy_tree` does.
    """
    copy = _Copy(most_bytes)
    try:
        copy.copy(source, target, "")
    except RecursionError:
        raise OSError(errno.ENAMETOOLONG, "folders are nested too deeply to be copied") from None
    return copy.copied


def remove_empty_way(folder: str, way: list[str]) -> None:
    """Remove what leads through a folder to a place where something was mounted, as far as it is empty; no link is followed."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = [os.open(folder, flags)]
    try:
        for name in way[:-1]:
            opened.append(os.open(name, flags, dir_fd=opened[-1]))
        place = os.stat(way[-1], dir_fd=opened[-1], follow_symlinks=False)
        if stat.S_ISREG(place.st_mode) and not place.st_size:
            os.unlink(way[-1], dir_fd=opened[-1])
        else:
            os.rmdir(way[-1], dir_fd=opened[-1])
        for name, above in zip(reversed(way[:-1]), reversed(opened[:-1])):  # noqa: B905  Python 3.8
            os.rmdir(name, dir_fd=above)
    except OSError:
        pass  # there is something in it, or it is not what it was
    finally:
        for descriptor in opened:
            os.close(descriptor)


def delete_tree(folder: str) -> None:
    """Delete a folder and all that is in it, however deep that is, as far as that is possible."""
    waiting, number = [folder], 0
    while waiting:
        here = waiting.pop()
        try:
            entries = list(os.scandir(here))
        except OSError:
            continue  # it is not there
        inner = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
        for path in inner:  # up here, so that no path gets long
            number += 1
            shallow = f"{folder}.{os.getpid()}.{number}"
            os.rename(path, shallow)
            waiting.append(shallow)
        os.rmdir(here)
