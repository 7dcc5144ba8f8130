"""What `docker run --rm … true` takes, for comparison: with the smallest image that can run it.

The image holds `true` and the libraries that it needs, from this machine's own disk: nothing is
pulled, and nothing is left of it afterwards. The container has no network, as sandboxes have none
unless they ask for one. Nothing here installs or starts anything: it is the `docker` on the path,
and the daemon that this one finds (`DOCKER_HOST`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import IO, Any, Final

import anyio
import anyio.to_thread

__all__ = ["beside_docker"]

_IMAGE: Final = "headstart-bench"
_RUN: Final = ("run", "--rm", "--pull", "never", "--network", "none", _IMAGE, "/bin/true")
_PATIENCE_S: Final = 30.0
_LIBRARY = re.compile(rb"(?m)^\s*(?:\S+ => )?(/\S+) \(0x")


class _DockerFailed(Exception):
    """Docker is not there, or cannot do what it was told to; the message is one line."""


async def beside_docker(
    create: Callable[[], Awaitable[float]], *, count: int, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Run `true` in a container and in a sandbox, in turns; return the series `docker` and `create_beside_docker`.

    Nothing, and a line that says why, where there is no docker that can do it.

    Args:
        create: Creates a sandbox and runs `true` in it; returns the milliseconds until that has ended.
        count: How often each.
        tell: Is told why there is nothing.
    """
    samples: list[dict[str, Any]] = []
    try:
        async with _image():
            await _docker(*_RUN)  # warm up
            for _ in range(count):
                began = perf_counter()
                await _docker(*_RUN)
                samples.append({"series": "docker", "ms": (perf_counter() - began) * 1e3})
                samples.append({"series": "create_beside_docker", "ms": await create()})
    except _DockerFailed as failed:
        tell(f"docker_run_ms is null: {failed}")
        return []
    return samples


@asynccontextmanager
async def _image() -> AsyncGenerator[None]:
    """Have an image with `true`; what a bench that was killed has left is as good, and goes as well."""
    await _docker("version", "--format", "{{.Server.Version}}")
    try:
        await _docker("image", "inspect", "--format", "{{.Id}}", _IMAGE)
    except _DockerFailed:
        with tempfile.TemporaryFile() as archive:
            await anyio.to_thread.run_sync(_write_smallest_root, archive)
            await _docker("import", "-", _IMAGE, given=archive)
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await _docker("image", "rm", "--force", _IMAGE)


async def _docker(*words: str, given: IO[bytes] | int = subprocess.DEVNULL) -> None:
    try:
        with anyio.fail_after(_PATIENCE_S):
            done = await anyio.run_process(("docker", *words), stdin=given, check=False)
    except TimeoutError:
        raise _DockerFailed(f"`docker {words[0]}` gave no answer in {_PATIENCE_S:.0f} s") from None
    except OSError as missing:
        raise _DockerFailed(f"no program docker can be started ({missing.strerror})") from missing
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().partition("\n")[0] or f"status {done.returncode}"
        raise _DockerFailed(f"`docker {words[0]}` failed: {said}")


def _write_smallest_root(archive: IO[bytes]) -> None:
    """Write a root file system, and go back to its beginning: `true`, and what the dynamic linker loads for it."""
    program = shutil.which("true", path="/bin:/usr/bin")
    if program is None:
        raise _DockerFailed("there is no program true to make an image of")
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(Path(program).resolve(), arcname="bin/true")
        for library in _libraries(program):
            tar.add(Path(library).resolve(), arcname=library.lstrip("/"))
    archive.seek(0)


def _libraries(program: str) -> list[str]:
    done = subprocess.run(("ldd", program), capture_output=True, check=False, timeout=_PATIENCE_S)
    return [found.decode() for found in _LIBRARY.findall(done.stdout)]  # none of a static one
