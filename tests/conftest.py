"""Fixtures for every test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import cast

import anyio
import pytest

from headstart.backends.local import open_local_backend
from headstart.errors import BackendUnavailable

MAP_IDS = """
import sys
from headstart.backends.local.guest import userns
from headstart.backends.spawner.guest import syscalls
mount = syscalls.open_tree(sys.argv[1], syscalls.OPEN_TREE_CLONE)
shifted = userns.make(userns.map_shift(), userns.map_shift())
syscalls.mount_setattr(mount, syscalls.MOUNT_ATTR_IDMAP, userns=shifted)
"""

_NO_LOCAL_BACKEND = re.compile(r"Skipped: the local[\w, -]* backend cannot run here: (.*)")
"""How tests say what they are skipped for."""


def pytest_configure() -> None:
    """Let what the tests start be interrupted: a shell's background jobs ignore these, and pass that on."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly, in one line, that nothing was isolated, if tests of what isolates were skipped for that."""
    skipped = cast("list[pytest.TestReport]", terminalreporter.getreports("skipped"))
    told = [report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple)]
    reasons = [found[1] for why in told if (found := _NO_LOCAL_BACKEND.match(why))]
    if reasons:
        count = f"{len(reasons)} tests were skipped, others ran in the process backend"
        terminalreporter.write_line(f"NO ISOLATION: {count}, because {reasons[0]}", red=True, bold=True)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def outliving_files(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip where files of sandboxes cannot outlive their service: below an ordinary user's folder on an overlay, say."""

    async def refusal() -> str | None:
        async with open_local_backend(tmp_path_factory.mktemp("outliving")) as backend:
            weaker = (line for line in backend.capabilities.weaker if "can outlive the service" in line)
            return None if backend.capabilities.durable else next(weaker)

    try:
        why = anyio.run(refusal)
    except BackendUnavailable as gap:
        why = str(gap)
    if why is not None:
        pytest.skip(why)


@pytest.fixture(scope="session")
def mappable_base() -> Generator[Path]:
    """A folder, open to all users, whose files a service can show to a sandbox as the sandbox's own.

    As root that takes a file system whose ids can be mapped; an overlay's, say a container's root, cannot.
    """
    refusals = [f"{base}: {refusal}" for base in ("/var/tmp", "/dev/shm") if (refusal := refusal_to_map_ids(base))]
    if len(refusals) == 2:
        pytest.skip(f"needs a file system whose ids can be mapped; {'; '.join(refusals)}")
    base = "/dev/shm" if refusals else "/var/tmp"
    with tempfile.TemporaryDirectory(prefix="headstart-tests-", dir=base, ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def mappable_path(mappable_base: Path) -> Path:
    """As `tmp_path`, for tests of what belongs to whom inside a sandbox."""
    return Path(tempfile.mkdtemp(dir=mappable_base))


def refusal_to_map_ids(folder: str) -> str | None:
    if os.geteuid() != 0:
        return None  # nothing is mapped for an ordinary user, who owns it all
    tried = subprocess.run(
        [sys.executable, "-c", MAP_IDS, folder], capture_output=True, text=True, timeout=30, check=False
    )
    return None if tried.returncode == 0 else tried.stderr.strip().rpartition("\n")[2]
