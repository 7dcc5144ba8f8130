"""The `headstart` command.

`headstart mcp` is started by agents once per session and must be up at once, so it is
dispatched before anything heavy is imported.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and leave with its exit status."""
    if sys.argv[1:2] == ["mcp"]:
        from headstart.cli.mcp import main as mcp_main  # noqa: PLC0415 the shim must not pay for typer and rich

        sys.exit(mcp_main(sys.argv[2:]))
    from headstart.cli.commands import run  # noqa: PLC0415 everything else may

    sys.exit(run())
