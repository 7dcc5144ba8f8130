"""The `headstart` command.

`headstart mcp` is started by agents once per session and must be up at once, so it is
dispatched before anything else is imported.
"""

from __future__ import annotations

import gc
import signal
import sys

__all__ = ["main"]

_INTERRUPTED_STATUS = 130


def main() -> None:
    """Run the command line and leave with its exit status."""
    try:
        status = _run()
    except KeyboardInterrupt:
        status = _INTERRUPTED_STATUS  # whoever interrupts knows it, and a traceback is no answer
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends now, as whoever interrupts it wants
        gc.freeze()  # nothing is worth collecting in a process that ends: 0.4 s of walking all that was imported
    sys.exit(status)


def _run() -> int:
    if sys.argv[1:2] == ["mcp"]:
        from headstart.cli.mcp import main as mcp_main

        return mcp_main(sys.argv[2:])
    from headstart.cli.commands import run

    return run()
