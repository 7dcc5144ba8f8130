"""`headstart sandbox ls` and `cp`: a sandbox's files, from outside."""

from __future__ import annotations

import stat
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from headstart.cli.plain import plain
from headstart.cli.sandbox.host_folder import HostFolder
from headstart.cli.sandbox.options import JsonOption, as_json, with_service
from headstart.cli.settings import StateOption
from headstart.cli.terminal import print_json, say, show, shown, table
from headstart.errors import ConfigError, HeadstartError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headstart.backends.contract import FileInfo
    from headstart.sandbox import HostedSandbox, HostedSandboxes

__all__ = ["cp", "ls"]

_T = TypeVar("_T")

_PERMISSIONS = 0o777
_DEEPEST = 200
_KINDS = {"folder": stat.S_IFDIR, "link": stat.S_IFLNK, "file": stat.S_IFREG}


def ls(
    place: Annotated[str, typer.Argument(metavar="SANDBOX[:PATH]", help="A folder in it; its home, unless said.")],
    *,
    json: JsonOption = False,
    state_dir: StateOption = None,
) -> None:
    """List what is in a folder of a sandbox."""
    sandbox, _, path = place.partition(":")

    async def work(service: HostedSandboxes) -> Sequence[FileInfo]:
        return await (await service.get(sandbox)).files.list(path or ".")

    found = _told_as_ours(lambda: with_service(state_dir, work), sandbox)
    if as_json(asked=json):
        print_json({"files": plain(found)})
        return
    rows = table("mode", "size", "changed", "name", header=False)
    for each in found:
        mode = stat.filemode(_KINDS.get(each.kind.value, 0) | each.mode)
        changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.modified_s))
        rows.add_row(mode, str(each.size_bytes), changed, shown(each.name))
    show(rows)


def cp(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A path here, or SANDBOX:PATH.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="SANDBOX:PATH, or a path here.")],
    *,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Copy a folder with all in it.")] = False,
    state_dir: StateOption = None,
) -> None:
    """Copy files into a sandbox or out of one. Modes are kept; links in a folder are passed over, and told.

    A target that ends in / is a folder that is there, or what a folder's copy is to be called.
    """
    come_from, go_to = _Place.read(source), _Place.read(target)
    if (come_from.sandbox is None) == (go_to.sandbox is None):
        hint = "write SANDBOX:PATH for one of them (and ./a:b for a path here that has a colon)"
        raise ConfigError("one of the two must be in a sandbox", where="headstart sandbox cp", hint=hint)
    sandbox = come_from.sandbox or go_to.sandbox or ""

    async def work(service: HostedSandboxes) -> None:
        box = await service.get(sandbox)
        copying = _Copying(box, recursive=recursive)
        if come_from.sandbox is None:
            await copying.take_in(Path(come_from.path).expanduser(), go_to.path)
        else:
            await copying.hand_out(come_from.path, go_to.path)

    _told_as_ours(lambda: with_service(state_dir, work), sandbox)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where something is: in a sandbox, or here.

    >>> _Place.read("dev:a/b"), _Place.read("dev:"), _Place.read("./a:b")
    (_Place(sandbox='dev', path='a/b'), _Place(sandbox='dev', path='.'), _Place(sandbox=None, path='./a:b'))
    """

    sandbox: str | None
    path: str

    @classmethod
    def read(cls, written: str) -> _Place:
        sandbox, colon, path = written.partition(":")
        return cls(sandbox, path or ".") if colon and sandbox and "/" not in sandbox else cls(None, written)


class _Copying:
    def __init__(self, box: HostedSandbox, *, recursive: bool) -> None:
        self._box = box
        self._recursive = recursive

    async def take_in(self, source: Path, target: str) -> None:
        """Copy from here; into a folder that is there, under its own name."""
        if target == "." or await self._is_folder(target):
            target = str(PurePosixPath(target, source.resolve().name))
        elif target.endswith("/") and not source.is_dir():
            hint = f"make it first: headstart sandbox run --in SANDBOX mkdir -p {shown(target)}"
            raise HeadstartError(f"{shown(target)}: there is no such folder in the sandbox", hint=hint)
        target = str(PurePosixPath(target))
        facts = source.stat()
        if stat.S_ISREG(facts.st_mode):
            await self._box.files.write(target, source.read_bytes(), mode=stat.S_IMODE(facts.st_mode))
        elif stat.S_ISDIR(facts.st_mode):
            self._may_copy_folders(str(source))
            with HostFolder.opened(source) as folder:
                await self._take_in(folder, target, deep=0)
        else:
            _tell_passed_over(str(source), is_link=False)

    async def _take_in(self, folder: HostFolder, target: str, *, deep: int) -> None:
        _check_depth(folder.path, deep)
        await self._box.files.make_folder(target)
        for name in folder.names():
            match folder.kind_of(name):
                case stat.S_IFDIR:
                    with folder.inner(name) as inner:
                        await self._take_in(inner, f"{target}/{name}", deep=deep + 1)
                case stat.S_IFREG if (content := folder.read(name)) is not None:
                    await self._box.files.write(f"{target}/{name}", content[0], mode=content[1])
                case kind:
                    _tell_passed_over(str(folder.path / name), is_link=kind == stat.S_IFLNK)

    async def hand_out(self, source: str, to: str) -> None:
        """Copy from the sandbox; into a folder that is there, under its own name."""
        info = await self._box.files.stat(source)
        if info.kind.value not in {"file", "folder"}:
            hint = "name what it leads to, or copy with tar: headstart sandbox run --in SANDBOX tar -c PATH | tar -x"
            raise ConfigError(f"is no file and no folder but a {info.kind.value}", where=shown(info.path), hint=hint)
        target = Path(to).expanduser()
        if to.endswith("/") and info.kind.value == "file" and not target.is_dir():
            raise HeadstartError(f"{shown(to)}: there is no such folder", hint="make it first")
        if target.is_dir():
            target /= PurePosixPath(info.path).name
        if target.name in {"", ".."}:  # it would be laid over the folder around it
            raise ConfigError("has no name to be copied to", where=source, hint="name it by where it is")
        with HostFolder.opened(target.parent) as folder:
            await self._hand_out(info, folder, target.name, deep=0)

    async def _hand_out(self, info: FileInfo, folder: HostFolder, name: str, *, deep: int) -> None:
        if info.kind.value == "file":
            folder.put(name, await self._box.files.read(info.path), info.mode & _PERMISSIONS)
        elif info.kind.value == "folder":
            self._may_copy_folders(info.path)
            _check_depth(folder.path / name, deep)
            folder.make_folder(name)
            with folder.inner(name) as inner:
                for each in await self._box.files.list(info.path):
                    await self._hand_out(each, inner, each.name, deep=deep + 1)
                inner.set_mode(info.mode & _PERMISSIONS | stat.S_IRWXU)
        else:
            _tell_passed_over(info.path, is_link=info.kind.value == "link")

    async def _is_folder(self, path: str) -> bool:
        try:
            return (await self._box.files.stat(path)).kind.value == "folder"
        except FileNotFoundError:
            return False

    def _may_copy_folders(self, path: str) -> None:
        if not self._recursive:
            raise ConfigError("is a folder", where=path, hint="copy it with -r")


def _check_depth(path: Path, deep: int) -> None:
    if deep > _DEEPEST:
        raise ConfigError(f"is more than {_DEEPEST} folders deep", where=shown(str(path)), hint="copy it with tar")


def _tell_passed_over(path: str, *, is_link: bool) -> None:
    what = "a link (tar keeps those)" if is_link else "neither a file nor a folder"
    say(f"passed over: {shown(path)} is {what}")


def _told_as_ours(work: Callable[[], _T], sandbox: str) -> _T:
    """Do it; what the system says of a file becomes an error of ours.

    Raises:
        HeadstartError: The system says no.
    """
    try:
        return work()
    except OSError as error:
        raise HeadstartError(f"{shown(str(error.filename or sandbox))}: {error.strerror}") from error
