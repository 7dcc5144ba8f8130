"""Where a template's root comes from: the host, a folder, or an archive that is unpacked once."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import anyio.from_thread
import anyio.to_thread

from headstart.errors import ConfigError
from headstart.sandbox.options import HOST
from headstart.sandbox.templates.archive import ArchiveLimits, digest_of
from headstart.sandbox.templates.record import ArchiveRoot, FolderRoot, HostRoot, stamp_of
from headstart.sandbox.templates.store import TemplateStore
from headstart.sandbox.templates.unpacking import unpack

__all__ = ["open_root"]


@asynccontextmanager
async def open_root(
    source: str, store: TemplateStore, limits: ArchiveLimits
) -> AsyncGenerator[tuple[HostRoot | FolderRoot | ArchiveRoot, Path | None]]:
    """Yield the root that `source` names, and the folder where it is, which stays there for as long; None: the host's.

    If cancelled while it unpacks, it ends soon.

    Raises:
        ConfigError: There is no such source, or it can be no root.
    """
    if source == HOST:
        yield HostRoot(), None
        return
    try:
        path = await anyio.Path(source).expanduser()
        path = Path(await path.resolve())
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"cannot be found: {error}", where=source, hint="give a full path") from error
    if path.is_relative_to(store.state.resolve()):
        raise ConfigError("is Headstart's own state, and no root", where=source, hint="give another folder")
    if path == Path("/"):
        raise ConfigError("is the host itself, with all that is in it", where=source, hint=f"say --from {HOST}")
    if path.is_dir():
        yield FolderRoot(path=path), path
    elif path.is_file():
        async with _unpacked(path, store, limits) as root:
            yield root, store.root_folder(root.digest)
    else:
        told = f"there is no such folder and no such archive (nor is it {HOST!r})"
        raise ConfigError(told, where=source, hint="give the folder or the archive of a root file system")


@asynccontextmanager
async def _unpacked(archive: Path, store: TemplateStore, limits: ArchiveLimits) -> AsyncGenerator[ArchiveRoot]:
    pulse = anyio.from_thread.check_cancelled
    digest = await anyio.to_thread.run_sync(partial(digest_of, archive, pulse=pulse))
    async with AsyncExitStack() as stack:
        known = await anyio.to_thread.run_sync(stack.enter_context, store.known_root(digest))
        if known is not None:
            yield known.model_copy(update={"path": archive})
            return
        folder = await anyio.to_thread.run_sync(stack.enter_context, store.new_root())
        unpacked = await anyio.to_thread.run_sync(partial(unpack, archive, folder, pulse=pulse, limits=limits))
        if unpacked.digest != digest:
            raise ConfigError("was changed while it was read", where=str(archive), hint="try again when it is whole")
        await anyio.to_thread.run_sync(store.put_root, folder, digest)
        yield ArchiveRoot(
            path=archive,
            digest=digest,
            size_bytes=unpacked.size_bytes,
            files=unpacked.files,
            left_out=unpacked.left_out,
            stamp=await anyio.to_thread.run_sync(stamp_of, store.root_folder(digest)),
        )
