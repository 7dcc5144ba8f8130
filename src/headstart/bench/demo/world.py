"""What the demo runs on: twelve real servers, their material, and the conversations."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headstart.bench.demo.data import make_data
from headstart.bench.replay_model import Recording, load_recordings
from headstart.bench.servers import InstalledServer, cache_dir, ensure_installed

__all__ = ["SERVERS", "World", "make_world", "servers_called"]

_HERE = Path(__file__).parent
_WORK = "/tmp"  # noqa: S108 the sandbox's own
_PYTHON_SERVERS = {
    "time": "time",
    "git": "git",
    "sqlite": "sqlite",
    "duckdb": "motherduck",
    "excel": "excel",
    "word": "word",
    "powerpoint": "powerpoint",
    "markitdown": "markitdown",
    "sympy": "sympy",
    "pdf": "pymupdf4llm",
}
_NODE_SERVERS = {"files": "filesystem", "memory": "memory"}
SERVERS = {**_PYTHON_SERVERS, **_NODE_SERVERS}
"""What the demo calls them, and what they are in `servers.toml`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All that stays the same from cell to cell.

    Attributes:
        folder: In the user's cache; kept from run to run.
        mcp_file: The `mcpServers` file.
        sessions: The conversations that are measured.
        training: Those that are only learned from.
    """

    folder: Path
    mcp_file: Path
    sessions_file: Path
    training_file: Path
    sessions: tuple[Recording, ...]
    training: tuple[Recording, ...]
    servers: tuple[str, ...]

    def only(self, servers: Iterable[str]) -> World:
        """Return a world of these servers, on the same material; what was learned of the whole holds there."""
        known: dict[str, Any] = json.loads(self.mcp_file.read_text(encoding="utf-8"))["mcpServers"]
        mcp_file = self.folder / "mcp-short.json"
        chosen = {name: known[name] for name in servers}
        mcp_file.write_text(json.dumps({"mcpServers": chosen}, indent=2), encoding="utf-8")
        return replace(self, mcp_file=mcp_file, servers=tuple(chosen))


def servers_called(recordings: Iterable[Recording]) -> list[str]:
    """Name the servers that the conversations call, each once, in the order of their first calls."""
    calls = (call for recording in recordings for step in recording.steps for call in step.calls)
    return list(dict.fromkeys(call.name.partition("__")[0] for call in calls))


async def make_world(*, progress: Callable[[str], None]) -> World:
    """Install the servers that are missing, and lay out the rest; what is there already stays.

    Raises:
        HeadstartError: A server could not be installed.
    """
    installed = await ensure_installed(sorted(set(SERVERS.values())), progress=progress)
    folder = cache_dir().parent / "demo"
    data = folder / "data"
    if not (data / "complete").exists():
        shutil.rmtree(data, ignore_errors=True)
        make_data(data, pdf_python=installed["pymupdf4llm"].prefix / "bin" / "python")
        (data / "complete").touch()
    mcp_file = folder / "mcp.json"
    servers = {name: _entry(name, installed[source], data) for name, source in SERVERS.items()}
    mcp_file.write_text(json.dumps({"mcpServers": servers}, indent=2), encoding="utf-8")
    sessions_file = _expanded("sessions.toml", folder, data)
    training_file = _expanded("training.toml", folder, data)
    return World(
        folder=folder,
        mcp_file=mcp_file,
        sessions_file=sessions_file,
        training_file=training_file,
        sessions=load_recordings(sessions_file),
        training=load_recordings(training_file),
        servers=tuple(servers),
    )


def _entry(name: str, server: InstalledServer, data: Path) -> dict[str, Any]:
    args: Sequence[str] = {
        "git": (),
        "sqlite": ("--db-path", str(data / "shop.db")),
        "files": (*server.args[:1], str(data)),
    }.get(name, server.args)
    mode = "overlay" if name == "sqlite" else "ro"
    return {
        "command": server.command,
        "args": list(args),
        "env": dict(server.env),
        "headstart": {"mounts": [{"path": str(data), "mode": mode}]},
    }


def _expanded(name: str, folder: Path, data: Path) -> Path:
    """Copy a recordings file with its placeholders filled in."""
    target = folder / name
    shutil.copyfile(_HERE / name, target)
    text = target.read_text(encoding="utf-8").replace("${DATA}", str(data)).replace("${WORK}", _WORK)
    target.write_text(text, encoding="utf-8")
    return target
