"""The first `headstart.toml`, written from an `mcpServers` file and what its launch specs give away."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from headstart.cli.terminal import say
from headstart.config.model import ServerSettings
from headstart.config.suggest import suggest_mounts, suggest_network
from headstart.errors import ConfigError

__all__ = ["CONFIG_NAME", "write_config"]

CONFIG_NAME = Path("headstart.toml")


def write_config(source: Path, servers: Sequence[ServerSettings], *, upstream: str | None, backend: str) -> bool:
    """Write the file unless there is one; says whether it did."""
    if CONFIG_NAME.exists():
        unused = ["--from", *(["--upstream"] if upstream else []), *(["--backend"] if backend != "auto" else [])]
        say(
            f"{CONFIG_NAME} is there already and stays as it is; not used: {', '.join(unused)} (move it away to begin anew)"
        )
        return False
    lines = [f"mcp = {_text(source)}", ""]
    lines += ["[upstreams]", f"default = {_text(upstream)}" if upstream else '# default = "http://127.0.0.1:8000/v1"']
    if backend != "auto":
        lines += ["", "[service]", f"backend = {_text(backend)}"]
    for server in servers:
        lines += _suggestions(server)
    try:
        CONFIG_NAME.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as exc:
        told = f"cannot be written: {exc.strerror}"
        raise ConfigError(told, where=str(CONFIG_NAME), hint="run it in a folder of your own") from exc
    say(f"wrote {CONFIG_NAME}; its mounts and networks are what your launch specs name: look whether you mean them")
    return True


def _suggestions(server: ServerSettings) -> list[str]:
    """What the launch spec gives away, written down where the user can see and change it."""
    if server.remote:
        return []
    lines = [] if server.mounts else _mounts(server)
    if server.network == "none" and suggest_network(server) == "host":
        lines.append('network = "host"')
    return ["", f"[servers.{_text(server.name)}]", *lines] if lines else []


def _mounts(server: ServerSettings) -> list[str]:
    suggested = suggest_mounts(server)
    refused = [one.because for one in suggested if one.mount is None]
    for because in refused:
        say(f"{server.name}: {because}")
    rows = [
        f"  {{ path = {_text(one.mount.path)}, mode = {_text(one.mount.mode)} }},"
        + (f"  # {one.because}" if one.because else "")
        for one in suggested
        if one.mount is not None
    ]
    return [*(f"# {because}" for because in refused), *(["mounts = [", *rows, "]"] if rows else [])]


def _text(value: object) -> str:
    return json.dumps(str(value), ensure_ascii=False)  # a JSON string is a TOML string
