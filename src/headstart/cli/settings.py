"""Which config a command reads: the one it names, else `HEADSTART_CONFIG`, the folder's own, the user's own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import platformdirs
import typer

from headstart.cli.state import state_dir
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from headstart.config.model import Settings

__all__ = ["ConfigOption", "StateOption", "read_settings"]

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="headstart.toml; default: ./headstart.toml, else the user's own."),
]
StateOption = Annotated[
    Path | None, typer.Option("--state-dir", help="Where state lives; default: the user's XDG state directory.")
]


def read_settings(config: Path | None, state: Path | None = None, *, mcp_files: tuple[Path, ...] = ()) -> Settings:
    """Read the settings that a command runs with.

    Raises:
        ConfigError: A named file is missing or wrong.
    """
    from headstart.config.load import load_settings

    found = config or _default_config()
    if found is not None and not found.exists():
        raise ConfigError("no such file", where=str(found), hint="headstart init --from .mcp.json makes one")
    return load_settings(config=found, mcp_files=mcp_files, variables=os.environ, state_dir=state_dir(state))


def _default_config() -> Path | None:
    named = os.environ.get("HEADSTART_CONFIG")
    if named:
        return Path(named)
    candidates = (Path("headstart.toml"), platformdirs.user_config_path("headstart") / "headstart.toml")
    return next((path for path in candidates if path.exists()), None)
