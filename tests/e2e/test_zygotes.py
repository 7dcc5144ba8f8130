"""A Python server forks from a zygote: `init` says so, the service keeps one, and calls are answered by its forks.

So does one that `uvx` or `uv run` starts: by the real uv, offline, from a package that is built here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from .clients import RawClient
from .running import SERVERS, Place, Running, headstart, scripted, service, wait_until

UV = Path(sys.executable).with_name("uv")
NO_UV = f"uv is not installed beside this Python: {sys.executable} -m pip install uv"
OFFLINE = {"UV_OFFLINE": "1", "UV_PYTHON": sys.executable}

OURS = ("zygote/guest/boot.py preload", "headstart-init", "spawner/guest/launch.py")
"""What processes of a service are called that are no server's own."""

WHEEL = "packaged-1-py3-none-any.whl"
INFO = {
    "METADATA": "Metadata-Version: 2.1\nName: packaged\nVersion: 1\n",
    "WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "entry_points.txt": "[console_scripts]\npackaged = packaged:main\n",
    "RECORD": "",
}
PROJECT = f"""
[project]
name = "project"
version = "1"
requires-python = ">=3.11"
dependencies = ["packaged"]
[tool.uv]
package = false
[tool.uv.sources]
packaged = {{ path = "{WHEEL}" }}
"""


def project(folder: Path) -> Path:
    """A uv project that is in sync, in the folder with the only package that it needs."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.write(SERVERS / "packaged.py", "packaged.py")
        for name, text in INFO.items():
            wheel.writestr(f"packaged-1.dist-info/{name}", text)
    env = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    env |= OFFLINE | {"UV_CACHE_DIR": str(folder / "cache")}
    subprocess.run([UV, "sync", "--quiet", "--directory", folder], env=env, timeout=60, check=True)
    return folder


def by_uv(folder: Path) -> dict[str, dict[str, Any]]:
    """Servers that are started by uv, which may use a network here, and has none."""
    options = {"env": OFFLINE, "headstart": {"mounts": [str(folder)], "network": "host"}}
    uvx = {"command": str(UV.with_name("uvx")), "args": ["--from", str(folder / WHEEL), "packaged"]}
    run = {"command": str(UV), "args": ["run", "--directory", str(folder), "packaged"]}
    return {"uvx": uvx | options, "uv-run": run | options}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, isolation: str) -> Place:
    if isolation == "local":  # learning fills uv's cache from inside of a sandbox
        base: Path = request.getfixturevalue("mappable_base")
        folder = Path(tempfile.mkdtemp(dir=base))
    else:
        folder = tmp_path_factory.mktemp("zygotes")
    servers = by_uv(project(folder / "project")) if UV.exists() else {}
    return Place(folder=folder).configure(
        {"script": scripted("good"), **servers}, f'[service]\nbackend = "{isolation}"\n[pool]\nmode = "on-demand"\n'
    )


@pytest.fixture(scope="module")
def told(place: Place) -> dict[str, Any]:
    """What `init` says of each server."""
    options = ("--from", "mcp.json", "--state-dir", str(place.state), "--json")
    done = headstart("init", *options, cwd=place.folder, XDG_CACHE_HOME=str(place.folder / "cache"))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["servers"]
    return found


@pytest.fixture(scope="module")
def running(place: Place, told: dict[str, Any]) -> Generator[Running]:
    """A service on what `init` has learned, once its zygotes stand."""
    with service(place, XDG_CACHE_HOME=str(place.folder / "cache")) as started:
        wait_until(lambda: len(zygotes(started)) == len(told), within_s=30, what="a zygote of each server")
        yield started


@pytest.fixture(params=["script", "uvx", "uv-run"])
def server(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name.startswith("uv") and not UV.exists():
        pytest.skip(NO_UV)
    return name


def zygotes(running: Running) -> dict[str, dict[str, Any]]:
    return {one["server"]: one for one in running.status()["runtime"]["zygotes"]}


def test_init_says_that_it_forks_from_a_zygote(told: dict[str, Any], server: str) -> None:
    assert told[server]["form"] == "zygote", told[server]
    assert told[server]["reason"].startswith("forks ")


def test_status_shows_that_its_zygote_stands(running: Running, server: str) -> None:
    assert zygotes(running)[server]["memory_bytes"] > 0
    (row,) = [line.split() for line in running.command("status").stdout.splitlines() if line.split()[:1] == [server]]
    assert row[1] == "zygote"


def test_a_call_is_answered_by_a_fork_and_the_trace_says_so(running: Running, server: str) -> None:
    session = f"calls-{server}"
    with RawClient(f"{running.url}/s/{session}/mcp") as client:
        client.initialize()
        said, failed = client.call(f"{server}__echo", text="a word")
        assert (said.startswith("a word from "), failed) == (True, False)
        (sandbox,) = [one for one in running.status()["pool"]["sandboxes"] if one["session"] == session]
        assert (sandbox["form"], sandbox["served"]) == ("zygote", 1)
        others = [told for told in running.processes().values() if told and not any(one in told for one in OURS)]
        assert others == [], "what has forked goes by the name of its zygote, and nothing else was started"
    trace = running.trace(session)
    assert [(one["server"], one["form"]) for one in trace["forms"]] == [(server, "zygote")]
    assert "starts cold" not in running.command("trace", session).stdout


def test_two_forks_of_one_zygote_share_nothing(running: Running) -> None:
    before = zygotes(running)["script"]
    with RawClient(f"{running.url}/s/one/mcp") as one, RawClient(f"{running.url}/s/two/mcp") as two:
        for client in (one, two):
            client.initialize()
            assert client.call("script__add", text="x") == ("1 notes", False)
        assert one.call("script__echo", text="") != two.call("script__echo", text="")
        forms = [box["form"] for box in running.status()["pool"]["sandboxes"] if box["session"] in {"one", "two"}]
    assert forms == ["zygote", "zygote"]
    assert zygotes(running)["script"]["preload_cpu_s"] == before["preload_cpu_s"], "it is the same one"
