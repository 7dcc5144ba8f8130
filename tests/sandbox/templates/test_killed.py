"""Whoever builds a template may be killed at any moment: what was there stays, and what was begun is removed later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.running import wait_until
from tests.machine import may_make_namespaces

from headstart.backends.spawner.guest.processes import descendants, is_alive
from headstart.sandbox.templates import TemplateStore

pytestmark = pytest.mark.skipif(
    not may_make_namespaces(), reason="the local backend cannot run here: this user may make no namespaces"
)

HEADSTART = (sys.executable, "-m", "headstart")


def headstart(state: Path, *words: str) -> str:
    env = {**os.environ, "HEADSTART_STATE_DIR": str(state)}
    return subprocess.run([*HEADSTART, *words], env=env, capture_output=True, text=True, timeout=60, check=True).stdout


def is_unpacking(templates: Path) -> bool:
    return any(sum(1 for _ in folder.iterdir()) > 10 for folder in templates.glob("roots/*"))


def is_setting_up(templates: Path) -> bool:
    return any(templates.glob("layers/*"))


def is_saving(templates: Path) -> bool:
    return sum(1 for _ in templates.glob("layers/*/0/*")) > 400 + 10


@pytest.fixture
def large(tmp_path: Path, archive: Path) -> Path:
    """A root that takes a while to unpack."""
    file = tmp_path / "large.tar"
    with tarfile.open(archive) as small, tarfile.open(file, "w") as tar:
        for number in range(30_000):
            tar.addfile(tarfile.TarInfo(f"file-{number}"))
        for member in small:
            tar.addfile(member, small.extractfile(member) if member.isreg() else None)
    return file


@pytest.mark.parametrize(
    ("moment", "setup"),
    [
        (is_unpacking, "true"),
        (is_setting_up, "echo second > ~/a; exec sleep 1000"),
        (is_saving, "echo second > ~/a; for n in {1..30000}; do echo $n > ~/$n; done"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_earlier_template_stays_and_the_rest_is_removed_by_the_next_build(
    moment: Callable[[Path], bool], setup: str, state: Path, large: Path, tmp_path: Path
) -> None:
    headstart(state, "template", "build", "mine", "--setup", "echo first > ~/a; for n in {1..400}; do > ~/n$n; done")
    templates = state / "templates"
    before = {str(path) for path in templates.glob("*/*")}
    source = str(large) if moment is is_unpacking else "host"
    words = ["template", "build", "mine", "--from", source, "--setup", setup, "--state-dir", str(state)]
    with subprocess.Popen([*HEADSTART, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(
                lambda: moment(templates) and {str(p) for p in templates.glob("*/*")} > before,
                within_s=60,
                what="it has begun",
            )
            below = descendants(process.pid)
        finally:
            process.send_signal(signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
    wait_until(lambda: not any(is_alive(pid) for pid in below), what="all that it had started is gone")
    assert headstart(state, "sandbox", "run", "--template", "mine", "--", "cat", "a") == "first\n"
    assert {str(path) for path in templates.glob("*/*")} > before  # it was killed in the middle
    headstart(state, "template", "build", "other")
    assert {str(path) for path in templates.glob("*/*")} - before == {str(templates / "named/other.json")}


def test_a_record_that_was_being_written_is_removed(state: Path, store: TemplateStore) -> None:
    headstart(state, "template", "build", "mine")
    (state / "templates/named/.0123456789abcdef").write_text('{"version": 1, "na')
    assert store.names() == ["mine"]
    store.collect()
    assert [path.name for path in (state / "templates/named").iterdir()] == ["mine.json"]
