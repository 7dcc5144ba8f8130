"""What a launcher downloads it downloads once, though each of its sandboxes has a home of its own."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .clients import RawClient
from .running import SERVERS, Place, Running, service

LAUNCHER = """#!{python}
# Stands in for {name}: what is not in its cache is "downloaded" into it, and that is noted.
import os, runpy, sys, time
from pathlib import Path

package = Path(os.environ["{variable}"]) / "package"
if not package.exists():
    with Path("{notes}").open("a") as notes:
        print("begun", file=notes, flush=True)
        time.sleep(0.3)  # what a download takes: enough for another one to begin
        package.parent.mkdir(parents=True, exist_ok=True)
        package.touch()
        print("done", file=notes, flush=True)
sys.argv = ["{program}", "good"]
runpy.run_path("{program}", run_name="__main__")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A running service with two servers of one package, and what its launcher has noted."""

    running: Running
    notes: Path

    def downloads(self) -> list[str]:
        return self.notes.read_text(encoding="utf-8").split()


@pytest.fixture(params=["npx", "uvx", "pipx"])
def launched(request: pytest.FixtureRequest, tmp_path: Path, isolation: str) -> Generator[Launched]:
    folder = tmp_path
    if isolation == "local":  # learning fills the cache from inside of a sandbox
        base: Path = request.getfixturevalue("mappable_base")
        folder = Path(tempfile.mkdtemp(dir=base))
    variable = {"npx": "npm_config_cache", "uvx": "UV_CACHE_DIR", "pipx": "PIP_CACHE_DIR"}[request.param]
    launcher, notes = folder / "bin" / request.param, folder / "noted" / "notes"
    for path in (launcher, notes):
        path.parent.mkdir()
    text = LAUNCHER.format(
        python=sys.executable, name=launcher.name, variable=variable, notes=notes, program=SERVERS / "scripted.py"
    )
    launcher.write_text(text, encoding="utf-8")
    launcher.chmod(0o755)
    mounts = [str(SERVERS), {"path": str(notes.parent), "mode": "rw"}]
    servers = {name: entry(launcher, name, mounts) for name in ("one", "two")}
    place = Place(folder=folder / "place").configure(
        servers,
        f'[service]\nbackend = "{isolation}"\n[pool]\nmode = "on-demand"\nstarts_at_once = 4\nzygotes = false\n',
    )
    with service(place, XDG_CACHE_HOME=str(folder / "cache")) as running:
        yield Launched(running=running, notes=notes)


def entry(launcher: Path, name: str, mounts: list[Any]) -> dict[str, Any]:
    run = ["run"] if launcher.name == "pipx" else []
    return {
        "command": str(launcher),
        "args": [*run, "a-package", name],
        "headstart": {"mounts": mounts, "network": "host"},
    }


def ask(url: str, server: str) -> tuple[list[str], str]:
    """Open a session of its own; returns the server's tools, and what one of them said."""
    with RawClient(f"{url}/mcp/{server}") as client:
        client.initialize()
        tools = [tool["name"] for tool in client.request("tools/list")["result"]["tools"]]
        said, failed = client.call("echo", text="x")
        assert not failed, said
        return tools, said


def test_a_package_is_downloaded_once_by_whoever_comes_first_and_by_nobody_later(launched: Launched) -> None:
    url = launched.running.url
    with ThreadPoolExecutor(4) as threads:
        told = list(threads.map(ask, [url] * 4, ["one", "two", "one", "two"]))
    assert all("echo" in tools for tools, _ in told)
    assert len({said for _, said in told}) == 4, "each session has a sandbox of its own"
    assert launched.downloads() == ["begun", "done"]
