"""The first `headstart.toml`, written from an `mcpServers` file and what its launch specs give away."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from headstart.cli.terminal import say
from headstart.config.model import ServerSettings
from headstart.config.named import expanded
from headstart.config.suggest import suggest_mounts, suggest_network
from headstart.errors import ConfigError

__all__ = ["CONFIG_NAME", "write_config"]

CONFIG_NAME = Path("headstart.toml")


def write_config(source: Path, servers: Sequence[ServerSettings], *, upstream: str | None, backend: str) -> bool:
    """Write the file unless there is one; says whether it did."""
    if CONFIG_NAME.exists():
        unused = [*(["--upstream"] if upstream else []), *(["--backend"] if backend != "auto" else [])]
        _tell_missing(source, servers, unused=unused)
        return False
    lines = [f"mcp = {_text(source)}", ""]
    lines += ["[upstreams]", f"default = {_text(upstream)}" if upstream else '# default = "http://127.0.0.1:8000/v1"']
    if backend != "auto":
        lines += ["", "[service]", f"backend = {_text(backend)}"]
    for server in servers:
        if suggested := _suggestions(server, {}):
            lines += ["", f"[servers.{_text(server.name)}]", *suggested]
    try:
        CONFIG_NAME.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as exc:
        told = f"cannot be written: {exc.strerror}"
        raise ConfigError(told, where=str(CONFIG_NAME), hint="run it in a folder of your own") from exc
    say(f"wrote {CONFIG_NAME}; its mounts and networks are what your launch specs name: look whether you mean them")
    return True


def _tell_missing(source: Path, servers: Sequence[ServerSettings], *, unused: Sequence[str]) -> None:
    """Print what the file that is there lacks of what would be written now, for its owner to paste."""
    not_used = f"; not used: {', '.join(unused)} (move it away to begin anew)" if unused else ""
    say(f"{CONFIG_NAME} is there already and stays as it is{not_used}")
    try:
        written = tomllib.loads(CONFIG_NAME.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return  # whoever reads it next tells what is wrong, with its line
    lines = [*_missing_source(source, written.get("mcp", [])), *_missing_tables(servers, written.get("servers", {}))]
    if lines:
        say(f"missing in {CONFIG_NAME}, and without it these servers cannot work as their launch specs say; add:")
        for line in lines:
            say(line)


def _missing_source(source: Path, named: str | list[str]) -> list[str]:
    files = [named] if isinstance(named, str) else list(named)
    if source.resolve() in {expanded(file).resolve() for file in files}:
        return []
    told = "# at the top, in place of mcp = …" if files else "# at the top"
    return ["", told, f"mcp = [{', '.join(map(_text, [*files, source]))}]" if files else f"mcp = {_text(source)}"]


def _missing_tables(servers: Sequence[ServerSettings], tables: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    """Yield what each server's table lacks; a key that is there was chosen, whatever its value."""
    for server in servers:
        suggested = _suggestions(server, tables.get(server.name, {}))
        if any(not line.startswith("#") for line in suggested):  # remarks alone have been told above
            yield ""
            yield f"{'# under ' if server.name in tables else ''}[servers.{_text(server.name)}]"
            yield from suggested


def _suggestions(server: ServerSettings, chosen: Mapping[str, object]) -> list[str]:
    """What the launch spec gives away, written down where the user can see and change it."""
    if server.remote:
        return []
    lines = [] if server.mounts or "mounts" in chosen else _mounts(server)
    if server.network == "none" and "network" not in chosen and suggest_network(server) == "host":
        lines.append('network = "host"')
    return lines


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
