"""`headstart replay-model`: recorded conversations as an OpenAI-compatible server."""

from __future__ import annotations

import errno
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headstart.cli.terminal import say
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from headstart.bench.replay_model import Recording

__all__ = ["replay_model"]


def replay_model(
    recordings: Annotated[Path, typer.Argument(help="A .toml or JSON-lines file of recordings.")],
    *,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port on loopback; 0 takes a free one.")] = 8000,
    ttft_ms: Annotated[float, typer.Option(min=0, help="Time to the first token.")] = 300.0,
    tpot_ms: Annotated[float, typer.Option(min=0, help="Time per output token.")] = 20.0,
) -> None:
    """Play recorded conversations as an OpenAI-compatible server."""
    import anyio

    from headstart.bench.replay_model import load_recordings

    loaded = load_recordings(recordings)
    try:
        anyio.run(_serve, loaded, port, ttft_ms / 1000, tpot_ms / 1000, backend_options={"use_uvloop": True})
    except OSError as exc:
        if exc.errno != errno.EADDRINUSE:
            raise
        told = f"port {port} is in use"
        raise ConfigError(told, where="headstart replay-model", hint="choose another with --port") from exc


async def _serve(recordings: tuple[Recording, ...], port: int, ttft_s: float, tpot_s: float) -> None:
    import anyio

    from headstart.bench.replay_model import serve

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with serve(recordings, ttft_s=ttft_s, tpot_s=tpot_s, port=port) as base_url:
            say(f"replay-model: {base_url} plays {len(recordings)} conversations; model names are replay/<session>")
            async for _ in signals:
                return
