"""The templates that were built, as files: found by name, used and removed by several processes at once.

    named/<name>.json   what is known of a template
    roots/<sha256>/     what was unpacked from an archive, for all templates that were built from it
    layers/<id>/        what one template's set-up commands have written
    kept/<owner>.json   a template that a sandbox was started from which outlives its service, as it was then
    lock                held while any of this comes or goes

A template is there as soon as its file in `named` is, which is put there by renaming: until then the root
and the layer that it will have are nobody's. What is nobody's is removed by whoever builds or removes
something next, unless it is used (`folders`). So a template can be removed, or built anew, while
sandboxes run on it.
"""

from __future__ import annotations

import difflib
import fcntl
import os
from collections.abc import Collection, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from headstart.errors import ConfigError
from headstart.runtime.state_files import unusable
from headstart.sandbox.options import HOST
from headstart.sandbox.templates.folders import SharedFolders, new_name, remove
from headstart.sandbox.templates.record import ArchiveRoot, FolderRoot, TemplateRecord, stamp_of

__all__ = ["HeldTemplate", "TemplateStore"]

_SUFFIX = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTemplate:
    """A template, and where its files are.

    Attributes:
        root: What its sandboxes see in place of the host's system folders, if anything.
        base: What their private folders begin with, if with anything.
    """

    record: TemplateRecord
    root: Path | None
    base: Path | None


class TemplateStore:
    """The templates below one folder, which is made when the first one is built. Every method may wait for the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._named = folder / "named"
        self._kept = folder / "kept"
        self._roots = SharedFolders(folder / "roots")
        self._layers = SharedFolders(folder / "layers")

    @property
    def state(self) -> Path:
        """Headstart's state, which this is a part of."""
        return self._folder.parent

    # ------------------------------------------------------------ looking

    def names(self) -> list[str]:
        """Return the names of all templates, in order."""
        return sorted(path.name.removesuffix(_SUFFIX) for path in self._named.glob("[!.]*" + _SUFFIX))

    def read(self, name: str) -> TemplateRecord:
        """Return what is known of a template.

        Raises:
            ConfigError: There is none of that name, or what is known of it cannot be read.
        """
        if name not in self.names():
            raise self._unknown(name)
        return self._read(self._path(name), name)

    @staticmethod
    def _read(path: Path, name: str) -> TemplateRecord:
        try:
            return TemplateRecord.model_validate_json(path.read_bytes())
        except (ValidationError, OSError) as error:
            raise _damaged(name, f"{path} cannot be read") from error

    def version(self, name: str) -> tuple[int, int] | None:
        """Return what changes when a template is built anew; None if there is none."""
        try:
            facts = self._path(name).stat()
        except (OSError, ValueError):
            return None
        return facts.st_ino, facts.st_mtime_ns

    def damage(self, record: TemplateRecord) -> str | None:
        """Return what is wrong with a template's files, None if nothing is."""
        match record.root:
            case ArchiveRoot(digest=digest, stamp=stamp) if not _is_as_it_was(self._roots.path(digest), stamp):
                return "what was unpacked from its archive was changed or removed"
            case FolderRoot(path=path) if not path.is_dir():
                return f"its root {path} is gone"
            case _:
                layer = record.layer
                if layer is not None and not _is_as_it_was(self._layers.path(layer.id), layer.stamp):
                    return "what its set-up commands have written was changed or removed"
                return None

    def _path(self, name: str) -> Path:
        return self._named / (name + _SUFFIX)

    def _unknown(self, name: str) -> ConfigError:
        near = difflib.get_close_matches(name, [HOST, *self.names()])
        meant = f"did you mean {' or '.join(repr(each) for each in near)}? " if near else ""
        hint = f"{meant}headstart template list shows which there are, headstart template build makes one"
        return ConfigError(f"there is no template {name!r}", where="template", hint=hint)

    # ------------------------------------------------------------ using

    @contextmanager
    def held(self, name: str, *, owner: str | None = None) -> Generator[HeldTemplate]:
        """Yield a template's files, which stay there for as long, whoever removes it.

        Args:
            name: The template's.
            owner: Who goes on to need them when the block is left, until `let_go` or `let_go_of_all_but`. Who has
                been given a template before gets that one, whatever the name means by now.

        Raises:
            ConfigError: There is none of that name, or its files are not what they were.
        """
        kept = None if owner is None else self._kept / (owner + _SUFFIX)
        is_kept = kept is not None and kept.exists()
        if not is_kept and name not in self.names():  # nothing is made to find that out
            raise self._unknown(name)
        with ExitStack() as stack:
            with self._alone():
                record = self._read(kept, name) if kept is not None and is_kept else self.read(name)
                if kept is not None and not is_kept:
                    self._write(kept, record)
                if damage := self.damage(record):
                    raise _damaged(name, damage)
                root = base = None
                match record.root:
                    case ArchiveRoot(digest=digest):
                        root = stack.enter_context(self._roots.held(digest))
                    case FolderRoot(path=path):
                        root = path
                    case _:
                        pass
                if record.layer is not None:
                    base = stack.enter_context(self._layers.held(record.layer.id))
            yield HeldTemplate(record=record, root=root, base=base)

    # ------------------------------------------------------------ coming and going

    @contextmanager
    def known_root(self, digest: str) -> Generator[ArchiveRoot | None]:
        """Yield what is known of an archive that some template has unpacked; that stays in its place for as long."""
        with ExitStack() as stack:
            with self._alone():
                known = next((root for root in self._archives() if root.digest == digest), None)
                if known is not None:
                    stack.enter_context(self._roots.held(digest))
            yield known

    def root_folder(self, digest: str) -> Path:
        """Return where a root is."""
        return self._roots.path(digest)

    def _archives(self) -> Iterator[ArchiveRoot]:
        """Yield the roots that are as they were."""
        for name in self.names():
            with suppress(ConfigError):
                root = self.read(name).root
                if isinstance(root, ArchiveRoot) and _is_as_it_was(self._roots.path(root.digest), root.stamp):
                    yield root

    @contextmanager
    def new_root(self) -> Generator[Path]:
        """Yield a new folder, to unpack an archive in and to be given to `put_root`."""
        with ExitStack() as stack:
            with self._alone():
                folder = stack.enter_context(self._roots.held(self._roots.make()))
            yield folder

    def put_root(self, folder: Path, digest: str) -> None:
        """Put what was unpacked in its place."""
        with self._alone():
            self._roots.put(folder.name, digest)

    @contextmanager
    def new_layer(self) -> Generator[Path]:
        """Yield a new folder for a layer, named by its id."""
        with ExitStack() as stack:
            with self._alone():
                folder = stack.enter_context(self._layers.held(self._layers.make()))
            yield folder

    def put(self, record: TemplateRecord) -> None:
        """Have a template of that name, in place of the one that was there."""
        with self._alone():
            self._write(self._path(record.name), record)

    @staticmethod
    def _write(path: Path, record: TemplateRecord) -> None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        beside = path.parent / f".{new_name()}"
        beside.touch(mode=0o600)
        beside.write_text(record.model_dump_json(indent=2), encoding="utf-8")
        os.sync()  # a template that is there is whole, whenever the machine stops
        beside.rename(path)

    def remove(self, name: str) -> None:
        """Remove a template, and what no other one needs. Sandboxes that run on it go on.

        Raises:
            ConfigError: There is none of that name.
        """
        if name not in self.names():
            raise self._unknown(name)
        with self._alone():
            self._path(name).unlink(missing_ok=True)
        self.collect()

    def let_go(self, owner: str) -> None:
        """Note that somebody needs no template any more, if he did; what nobody else needs is removed."""
        if (self._kept / (owner + _SUFFIX)).exists():
            with self._alone():
                (self._kept / (owner + _SUFFIX)).unlink(missing_ok=True)
            self.collect()

    def let_go_of_all_but(self, owners: Collection[str]) -> None:
        """Note that only these still need what they were given."""
        for path in self._kept.glob("[!.]*" + _SUFFIX):
            if path.name.removesuffix(_SUFFIX) not in owners:
                self.let_go(path.name.removesuffix(_SUFFIX))

    def collect(self) -> None:
        """Remove roots and layers that no template has, and nobody uses."""
        with self._alone():
            for unfinished in (*self._named.glob(".*"), *self._kept.glob(".*")):
                unfinished.unlink(missing_ok=True)
            try:
                records = [self.read(name) for name in self.names()]
                records += [self._read(path, path.name) for path in self._kept.glob("*" + _SUFFIX)]
            except ConfigError:
                return  # what one of them needs is not known
            roots = {record.root.digest for record in records if isinstance(record.root, ArchiveRoot)}
            layers = {record.layer.id for record in records if record.layer is not None}
            rubbish = [*self._roots.collect(roots), *self._layers.collect(layers)]
        for folder in rubbish:
            remove(folder)

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Keep others, in whatever process, from changing what there is."""
        try:
            self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise unusable(self._folder, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        except OSError as error:
            raise unusable(self._folder, error) from error
        finally:
            os.close(lock)


def _is_as_it_was(folder: Path, stamp: str) -> bool:
    try:
        return stamp_of(folder) == stamp
    except OSError:
        return False


def _damaged(name: str, what: str) -> ConfigError:
    return ConfigError(
        f"it is damaged: {what}",
        where=f"template {name}",
        hint=f"build it again (headstart template build {name} …), or remove it (headstart template remove {name})",
    )
