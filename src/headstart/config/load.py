"""Reads `mcpServers` files and `headstart.toml` into `Settings`.

Nothing is read from the environment here but the variables that a file names
(`${NAME}`, `${NAME:-default}`), and those come in as a mapping.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from headstart.config.files import (
    HeadstartFile,
    McpFile,
    McpServerEntry,
    MountOption,
    SandboxMountOption,
    ServerOptions,
    UpstreamOption,
)
from headstart.config.model import (
    RESERVED_PREFIXES,
    ForwardProxy,
    MountSetting,
    PoolMode,
    PoolSettings,
    SandboxSettings,
    ServerSettings,
    ServiceSettings,
    Settings,
    Upstream,
    WarmupCall,
)
from headstart.config.named import expanded
from headstart.config.problems import (
    broken_json,
    broken_toml,
    duplicate_key,
    first_location,
    invalid_value,
    line_in_json,
    line_in_toml,
)
from headstart.config.proxies import proxy_from_environment, read_proxy
from headstart.errors import ConfigError
from headstart.ids import NODE_RULE, ResourceId, is_node_name

__all__ = ["check_port_safety", "check_upstream_url", "load_settings", "read_mcp_file"]

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_ROUTES = ("/chat/completions", "/completions", "/embeddings", "/messages", "/models", "/responses")
"""What is copied from documentation in place of a base URL."""
_SERVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def load_settings(
    *,
    config: Path | None,
    mcp_files: tuple[Path, ...] = (),
    variables: Mapping[str, str],
    state_dir: Path,
) -> Settings:
    """Read everything and check it.

    Args:
        config: `headstart.toml`, or None for defaults only.
        mcp_files: More `mcpServers` files, beside those that the config names.
        variables: Where `${NAME}` is looked up.
        state_dir: Where state lives.

    Raises:
        ConfigError: A file cannot be read or used; the message is one line.
    """
    file, text = _read_headstart_file(config) if config else (HeadstartFile(), "")
    base = config.absolute().parent if config else Path.cwd()
    named = [file.mcp] if isinstance(file.mcp, str) else file.mcp
    sources = [base / expanded(name) for name in named] + list(mcp_files)
    servers: dict[str, ServerSettings] = {}
    for source in dict.fromkeys(path.resolve() for path in sources):
        for server in read_mcp_file(source, variables=variables):
            if server.name in servers:
                raise ConfigError(
                    f"server {server.name!r} is in two files",
                    where=str(source),
                    hint="rename one of them, or load one file only",
                )
            servers[server.name] = server
    for name, options in file.servers.items():
        where = f"{config}:{line_in_toml(text, ['servers', name])}"
        if name not in servers:
            known = ", ".join(servers) or "none"
            hint = "the built-in one is set under [sandbox]" if name == "sandbox" else f"known servers: {known}"
            raise ConfigError(
                "no such server in the mcpServers files",
                where=where,
                key=f"servers.{name}",
                hint=hint,
            )
        servers[name] = _with_options(servers[name], options, where=where, key=f"servers.{name}", base=base)
    if config is not None:
        servers = {name: _set_there(one, config, text, written=name in file.servers) for name, one in servers.items()}
    settings = Settings(
        servers=tuple(server for server in servers.values() if not server.disabled),
        state_dir=state_dir,
        pool=_pool(file),
        service=replace(ServiceSettings(), **_given(file.service)),
        upstreams=_upstreams(file, where=str(config), text=text, variables=variables),
        sandbox=_sandbox(file, base=base, where=str(config), text=text, variables=variables),
    )
    check_port_safety(settings, where=f"{config}:{line_in_toml(text, ['service', 'host'])}" if config else "--host")
    _check_node(settings.service.node, where=f"{config}:{line_in_toml(text, ['service', 'node'])}")
    return settings


def _check_node(node: str | None, *, where: str) -> None:
    if node is not None and not is_node_name(node):
        raise ConfigError(f"{node!r} cannot name a node", where=where, key="service.node", hint=NODE_RULE)


def _set_there(server: ServerSettings, config: Path, text: str, *, written: bool) -> ServerSettings:
    """Note that `headstart.toml` is where to set an option, unless the server's own entry does so alone."""
    path = ["servers", server.name]
    if server.options_key and not written:
        return server
    place = f"{config.name}:{line_in_toml(text, path)}" if written else config.name
    return replace(server, options_key=".".join(path), options_file=place)


@dataclass(frozen=True, slots=True)
class _McpDocument:
    """An `mcpServers` file and where its keys stand."""

    path: Path
    text: str
    top: str
    variables: Mapping[str, str]

    @property
    def folder(self) -> Path:
        return self.path.absolute().parent

    def where(self, *path: str | int) -> str:
        return f"{self.path.name}:{line_in_json(self.text, [self.top, *path])}"

    def expand(self, value: str, *path: str | int) -> str:
        return _expand(value, self.variables, where=self.where(*path), key=".".join(map(str, path)))


def read_mcp_file(path: Path, *, variables: Mapping[str, str]) -> list[ServerSettings]:
    """Read one `mcpServers` JSON file; it is never written."""
    text = _read_text(path)
    try:
        if error := duplicate_key(text, file=path.name):
            raise error
        file = McpFile.model_validate_json(text)
    except json.JSONDecodeError as exc:
        raise broken_json(exc, file=path.name) from exc
    except ValidationError as exc:
        line = line_in_json(text, first_location(exc))
        raise invalid_value(exc, model=McpFile, where=f"{path.name}:{line}", prefix=[]) from exc
    entries = file.mcpServers if file.mcpServers is not None else file.servers
    if entries is None:
        hint = '{"mcpServers": {"git": {"command": …}}}'
        raise ConfigError('no "mcpServers" object', where=f"{path.name}:1", hint=hint)
    top = "mcpServers" if file.mcpServers is not None else "servers"
    document = _McpDocument(path, text, top, variables)
    return [_server(name, raw, document) for name, raw in entries.items()]


def _server(name: str, raw: object, document: _McpDocument) -> ServerSettings:
    if not _SERVER_NAME.fullmatch(name) or "__" in name:
        hint = "letters, digits, '-', '_' and '.', at most 64, without '__'"
        raise ConfigError("not a usable server name", where=document.where(name), key=name, hint=hint)
    try:
        entry = McpServerEntry.model_validate(raw)
    except ValidationError as exc:
        at = document.where(name, *first_location(exc))
        raise invalid_value(exc, model=McpServerEntry, where=at, prefix=[name]) from exc
    if (entry.command is None) == (entry.url is None):
        problem = "has neither command nor url" if entry.command is None else "has both command and url"
        hint = _meant(raw) or 'give "command" (stdio) or "url" (remote), one of the two'
        raise ConfigError(problem, where=document.where(name), key=name, hint=hint)
    if entry.type == "sse":
        hint = 'use its streamable HTTP url with "type": "http"'
        raise ConfigError(
            "the old SSE transport is not spoken", where=document.where(name, "type"), key=f"{name}.type", hint=hint
        )
    server = ServerSettings(
        name=ResourceId(name),
        command=None if entry.command is None else document.expand(entry.command, name, "command"),
        args=tuple(document.expand(arg, name, "args", i) for i, arg in enumerate(entry.args)),
        env={key: document.expand(value, name, "env", key) for key, value in entry.env.items()},
        cwd=document.folder / expanded(document.expand(entry.cwd, name, "cwd")) if entry.cwd else None,
        folder=document.folder,
        url=None if entry.url is None else document.expand(entry.url, name, "url"),
        headers={key: document.expand(value, name, "headers", key) for key, value in entry.headers.items()},
        disabled=entry.disabled,
    )
    if entry.headstart is None:
        return server
    at = document.where(name, "headstart")
    server = replace(server, options_key=f"mcpServers.{name}.headstart", options_file=at)
    return _with_options(server, entry.headstart, where=at, key=f"{name}.headstart", base=document.folder)


def _meant(raw: object) -> str | None:
    """Find what was probably meant to be `command` or `url`."""
    for key in cast("dict[str, object]", raw) if isinstance(raw, dict) else ():
        if key not in McpServerEntry.model_fields and (near := difflib.get_close_matches(key, ("command", "url"), n=1)):
            return f'did you mean "{near[0]}" in place of "{key}"?'
    return None


def _with_options(
    server: ServerSettings, options: ServerOptions, *, where: str, key: str, base: Path
) -> ServerSettings:
    if options.shared is not None and options.instance is not None and options.shared != (options.instance == "shared"):
        raise ConfigError("instance and shared contradict each other", where=where, key=key, hint="keep one of them")
    given = _given(options)
    given.pop("instance", None)
    if options.instance is not None:
        given["shared"] = options.instance == "shared"
    if options.mounts is not None:
        given["mounts"] = tuple(_mount(mount, base=base, where=where, key=key) for mount in options.mounts)
    if options.warmup is not None:
        given["warmup"] = WarmupCall(tool=options.warmup.tool, arguments=options.warmup.arguments)
    return replace(server, **given)


def _mount(mount: MountOption | str, *, base: Path, where: str, key: str) -> MountSetting:
    option = MountOption(path=mount) if isinstance(mount, str) else mount
    given = expanded(option.path)
    target = Path(option.target) if option.target else None
    if target is not None and not target.is_absolute():
        raise ConfigError(
            f"target {option.target} is no absolute path", where=where, key=f"{key}.mounts", hint="begin it with /"
        )
    path = Path(os.path.normpath(base / given))
    return MountSetting(path=path, mode=option.mode, target=target, written="" if given.is_absolute() else option.path)


def _pool(file: HeadstartFile) -> PoolSettings:
    given = _given(file.pool)
    if "mode" in given:
        given["mode"] = PoolMode(given["mode"])
    return replace(PoolSettings(), **given)


def _sandbox(
    file: HeadstartFile, *, base: Path, where: str, text: str, variables: Mapping[str, str]
) -> SandboxSettings:
    given = _given(file.sandbox)
    if file.sandbox.mounts is not None:
        at = f"{where}:{line_in_toml(text, ['sandbox', 'mounts'])}"
        given["mounts"] = tuple(_sandbox_mount(mount, base=base, where=at) for mount in file.sandbox.mounts)
    if file.sandbox.env is not None:
        at = f"{where}:{line_in_toml(text, ['sandbox', 'env'])}"
        given["env"] = dict(_variable(*item, variables, where=at) for item in file.sandbox.env.items())
    return SandboxSettings(**given)


def _variable(name: str, value: str, variables: Mapping[str, str], *, where: str) -> tuple[str, str]:
    if not name or "=" in name:
        raise ConfigError(f"{name!r} is no name of a variable", where=where, key="sandbox.env", hint="take the = away")
    return name, _expand(value, variables, where=where, key=f"sandbox.env.{name}")


def _sandbox_mount(mount: SandboxMountOption | str, *, base: Path, where: str) -> MountSetting:
    option = SandboxMountOption(path=mount) if isinstance(mount, str) else mount
    setting = _mount(MountOption(path=option.path, mode=option.mode), base=base, where=where, key="sandbox")
    if not setting.path.exists():
        told = f" (written as {setting.written!r}, which is relative to the file's folder)" if setting.written else ""
        hint = "create it, or correct the path"
        raise ConfigError(f"{setting.path}{told} does not exist", where=where, key="sandbox.mounts", hint=hint)
    if option.mode == "overlay" and not setting.path.is_dir():
        hint = "mount the folder that it is in"
        raise ConfigError(
            f"{setting.path} is no folder, so it can be no overlay", where=where, key="sandbox.mounts", hint=hint
        )
    return setting


def _upstreams(file: HeadstartFile, *, where: str, text: str, variables: Mapping[str, str]) -> tuple[Upstream, ...]:
    found: list[Upstream] = []
    for prefix, written in file.upstreams.items():
        option = UpstreamOption(url=written) if isinstance(written, str) else written
        url = option.url
        at = f"{where}:{line_in_toml(text, ['upstreams', prefix])}"
        check_upstream_url(url, where=at, key=f"upstreams.{prefix}")
        if prefix in RESERVED_PREFIXES or not _SERVER_NAME.fullmatch(prefix):
            raise ConfigError(
                "this prefix is taken or not usable", where=at, key=f"upstreams.{prefix}", hint="choose another word"
            )
        proxy = _proxy(option, where=at, key=f"upstreams.{prefix}.proxy", variables=variables)
        found.append(Upstream(prefix=prefix, base_url=url.rstrip("/"), proxy=proxy))
    return tuple(found)


def check_upstream_url(url: str, *, where: str, key: str | None) -> None:
    """Require a base URL as SDKs take it.

    Raises:
        ConfigError: It is none; it is not repeated, for it may hold a password.
    """
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        hint = "begin with http:// or https://, as in `https://api.openai.com/v1`"
        raise ConfigError("this is no http(s) URL", where=where, key=key, hint=hint)
    if parts.username is not None:
        hint = "take user and password out; keys come with the client's requests"
        raise ConfigError("this is no URL without credentials", where=where, key=key, hint=hint)
    if path.endswith("/v1/v1"):
        raise ConfigError("the path has /v1 twice", where=where, key=key, hint="end it in one /v1")
    if route := next((one for one in _ROUTES if path.endswith(one)), None):
        hint = f"give the base URL, as SDKs take it: take {route} away from its end"
        raise ConfigError("this is one route of the model server", where=where, key=key, hint=hint)


def _proxy(option: UpstreamOption, *, where: str, key: str, variables: Mapping[str, str]) -> ForwardProxy | None:
    if option.proxy is None:
        return proxy_from_environment(option.url, variables)
    return None if option.proxy == "none" else read_proxy(option.proxy, where=where, key=key)


def check_port_safety(settings: Settings, *, where: str) -> None:
    """Require a key where other machines can reach the port.

    Raises:
        ConfigError: There is none.
    """
    service = settings.service
    if service.host in {"127.0.0.1", "::1", "localhost"} or service.keys:
        return
    raise ConfigError(
        f"{service.host} can be reached from other machines and no key is set",
        where=where,
        key="service.host",
        hint='set service.keys = ["…"] (32 random characters or more), or listen on 127.0.0.1',
    )


def _read_headstart_file(path: Path) -> tuple[HeadstartFile, str]:
    text = _read_text(path)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise broken_toml(exc, text, file=path.name) from exc
    try:
        return HeadstartFile.model_validate(data), text
    except ValidationError as exc:
        line_number = line_in_toml(text, first_location(exc))
        raise invalid_value(exc, model=HeadstartFile, where=f"{path.name}:{line_number}", prefix=[]) from exc


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # editors on Windows begin a file with a mark
    except (OSError, UnicodeDecodeError) as exc:
        told = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise ConfigError(
            f"cannot be read: {told}", where=str(path), hint="check the path and its permissions"
        ) from exc


def _expand(value: str, variables: Mapping[str, str], *, where: str, key: str) -> str:
    def one(match: re.Match[str]) -> str:
        name = match.group(1)
        default: str | None = match.group(2)
        if name in variables:
            return variables[name]
        if default is None:
            hint = f"export {name}=… or write ${{{name}:-default}}"
            raise ConfigError(f"${{{name}}} is not set", where=where, key=key, hint=hint)
        return default

    return _VARIABLE.sub(one, value)


def _given(model: BaseModel) -> dict[str, Any]:
    """The keys that the user wrote, lists made tuples."""
    found: dict[str, Any] = {}
    for name in model.model_fields_set:
        value: object = getattr(model, name)
        if value is not None:
            found[name] = tuple(cast("list[object]", value)) if isinstance(value, list) else value
    return found
