"""The models of a run: each pace is a replay model of its own, and one more upstream of the service."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from headstart.bench.demo.leash import leashed
from headstart.errors import HeadstartError

__all__ = ["MAIN_TPOT_S", "Pace", "open_models"]

MAIN_TPOT_S = 0.020
"""The pace that the figures are about."""

_READY_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """A model, and how fast it writes.

    Attributes:
        tpot_s: Seconds from one token to the next.
        model_url: Where it answers, as SDKs take it.
    """

    tpot_s: float
    model_url: str

    @property
    def name(self) -> str:
        """Its prefix among the service's upstreams, and what the names of its sessions end in."""
        return f"{self.tpot_s * 1000:g}ms"


@asynccontextmanager
async def open_models(
    recordings: Path, tpots_s: Sequence[float], *, ttft_s: float = 0.3
) -> AsyncGenerator[tuple[Pace, ...]]:
    """Run a replay model for each pace, in processes of their own.

    Raises:
        HeadstartError: One did not start.
    """
    with ExitStack() as stack:
        processes = [stack.enter_context(_replay_model(recordings, tpot_s=tpot_s, ttft_s=ttft_s)) for tpot_s in tpots_s]
        with anyio.fail_after(_READY_TIMEOUT_S):
            urls = [await anyio.to_thread.run_sync(_url, each, abandon_on_cancel=True) for each in processes]
        yield tuple(Pace(tpot_s=tpot_s, model_url=url) for tpot_s, url in zip(tpots_s, urls, strict=True))


@contextmanager
def _replay_model(recordings: Path, *, tpot_s: float, ttft_s: float) -> Generator[subprocess.Popen[str]]:
    pace = ("--ttft-ms", str(ttft_s * 1000), "--tpot-ms", str(tpot_s * 1000))
    command = leashed("replay-model", str(recordings), "--port", "0", *pace)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def _url(process: subprocess.Popen[str]) -> str:
    line = process.stderr.readline() if process.stderr else ""
    url = next((word for word in line.split() if word.startswith("http://")), None)
    if url is None:
        raise HeadstartError(f"the replay model did not start: {line.strip()}")
    return url
