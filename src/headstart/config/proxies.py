"""Which forward proxy leads to a model server, if any. Pure: variables come in as a mapping.

The rules are those of Python's `urllib.request` (and so, but for corners, of curl and of HTTP clients
in Python): `https_proxy` or `http_proxy` by the upstream's scheme, else `all_proxy`; a lower-case name
wins, an empty value is none; `no_proxy` lists host names with all that ends in them, `host:port`, or `*`.
Beyond that, `no_proxy` takes address ranges (`10.0.0.0/8`), as it is often written, and an upstream
on this machine is never reached through a proxy that only the environment names.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import SplitResult, unquote, urlsplit

from headstart.config.model import ForwardProxy
from headstart.errors import ConfigError

__all__ = ["proxy_from_environment", "read_proxy"]

_HINT = "give it as http://host:port, or http://user:password@host:port"


def proxy_from_environment(url: str, variables: Mapping[str, str]) -> ForwardProxy | None:
    """Return the proxy that the environment names for `url`.

    Raises:
        ConfigError: It names one that cannot be used; the value is not repeated.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if _on_this_machine(host):
        return None
    for name in (f"{parts.scheme}_proxy", "all_proxy"):
        source, value = _variable(name, variables)
        if value:
            return None if _excepted(parts, variables) else read_proxy(value, where="environment", key=source)
    return None


def read_proxy(value: str, *, where: str, key: str) -> ForwardProxy:
    """Read a proxy's URL.

    Args:
        value: `http://[user:password@]host[:port]`; the scheme may be left out, the port is 80 then, as usual.
        where: The file and line, or `environment`, for messages.
        key: The setting or variable.

    Raises:
        ConfigError: It is none, or of a kind that is not spoken.
    """
    try:
        parts = urlsplit(value if "://" in value else f"http://{value}")
        host, port = parts.hostname or "", parts.port or 80
    except ValueError:
        raise ConfigError("this is no proxy's URL", where=where, key=key, hint=_HINT) from None  # it quotes the value
    if parts.scheme != "http":
        hint = f"{_HINT}; proxies that are spoken to over TLS or SOCKS need a forwarder on this machine"
        raise ConfigError("only http:// proxies are spoken to", where=where, key=key, hint=hint)
    if not _is_plain(host) or parts.path not in ("", "/") or parts.query:
        raise ConfigError("this is no proxy's URL", where=where, key=key, hint=_HINT)
    credentials = None if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return ForwardProxy(host=host, port=port, credentials=credentials, source=f"{where}: {key}")


def _variable(name: str, variables: Mapping[str, str]) -> tuple[str, str]:
    """Return the name under which a variable is set, and its value ("" if it is not)."""
    for known in (name, name.upper()):
        if known in variables:
            return known, variables[known].strip()
    return name, ""


def _excepted(parts: SplitResult, variables: Mapping[str, str]) -> bool:
    _, listed = _variable("no_proxy", variables)
    host = parts.hostname or ""
    names = (host, f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}")
    return any(_matches(entry.strip().lower(), names) for entry in listed.split(",") if entry.strip())


def _matches(entry: str, names: tuple[str, str]) -> bool:
    if entry == "*" or _in_range(names[0], entry):
        return True
    bare = entry.removeprefix("*").removeprefix(".")
    return any(name == bare or name.endswith(f".{bare}") for name in names)


def _in_range(host: str, entry: str) -> bool:
    try:
        return ip_address(host) in ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return False  # one of the two is a name


def _on_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _is_plain(host: str) -> bool:
    return bool(host) and host.isascii() and host.isprintable() and " " not in host
