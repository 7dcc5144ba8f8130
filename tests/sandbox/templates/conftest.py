"""Fixtures for tests of templates."""

from __future__ import annotations

import os
import tarfile
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.machine import may_make_namespaces

import headstart
from headstart.sandbox.templates import TemplateStore
from headstart.testing.roots import make_root


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(state: Path) -> TemplateStore:
    return TemplateStore(state / "templates")


@pytest.fixture
async def boxes(state: Path) -> AsyncGenerator[headstart.Sandboxes]:
    if not may_make_namespaces():
        pytest.skip("the local backend cannot run here: no namespaces")
    async with headstart.Sandboxes.open(state_dir=state) as opened:
        yield opened


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system, as a folder."""
    folder = make_root(tmp_path_factory.mktemp("roots") / "root")
    (folder / "etc").mkdir()
    (folder / "etc/profile").write_text("echo welcome\nexport PATH=/bin FROM_PROFILE='a b'\n")
    (folder / "etc/version").write_text("root 1\n")
    (folder / "tmp").symlink_to("/etc")
    for path in (folder, *folder.parents):  # pytest's own folders are closed to others
        if path.stat().st_uid == os.geteuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    return folder


@pytest.fixture(scope="session")
def archive(root: Path) -> Path:
    """The same, packed."""
    file = root.parent / "root.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        tar.add(root, arcname=".")
    return file
