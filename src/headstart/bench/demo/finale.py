"""After the numbers: a conversation that changes its mind, then a kill -9 in the middle of two others.

The first says what it could do and does not do it, so that something is prepared in vain.
All run on a service that was measured before and stands anyway, zygotes included.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import anyio

from headstart.backends.spawner.guest.processes import descendants
from headstart.bench.demo.cells import Stage, WrongGuess, wrong_guesses
from headstart.bench.demo.meter import command_of, is_alive
from headstart.bench.demo.models import MAIN_TPOT_S, Pace
from headstart.bench.demo.service import Served, session_name
from headstart.bench.replay_model import Recording

__all__ = ["ITS_MODE", "SECOND_THOUGHTS", "Finale", "Killed", "play_finale"]

ITS_MODE = "predictive+zygote"
"""The cell whose service it is played on."""

SECOND_THOUGHTS = "second-thoughts"
"""The recording that says what it could do, and then does not do it."""

_WATCH_S = 10.0
_BUSY_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """What became of the processes of a killed service.

    Attributes:
        before: What ran below it, pid to command line.
        gone_after_s: When the last of them was gone.
        left: What was still there after ten seconds.
    """

    before: Mapping[int, str]
    gone_after_s: float
    left: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finale:
    """What happened at the end.

    Attributes:
        wrong_guesses: What was prepared for the conversation that changed its mind.
    """

    wrong_guesses: Sequence[WrongGuess]
    killed: Killed


async def play_finale(stage: Stage, served: Served) -> Finale:
    """Let one session change its mind; then run two, kill the service under them, and watch until nothing of it is left."""
    pace = next((pace for pace in stage.paces if pace.tpot_s == MAIN_TPOT_S), stage.paces[0])
    wrong = await _change_a_mind(stage, served, pace)
    before: dict[int, str] = {}
    async with anyio.create_task_group() as tasks:
        for recording in stage.recordings[:2]:
            tasks.start_soon(_converse_until_it_breaks, served, recording, pace)
        await _until_busy(served)
        before.update((pid, command_of(pid)) for pid in descendants(served.process.pid))
        os.kill(served.process.pid, signal.SIGKILL)
        tasks.cancel_scope.cancel()
    return Finale(wrong_guesses=wrong, killed=await _watch(before))


async def _change_a_mind(stage: Stage, served: Served, pace: Pace) -> list[WrongGuess]:
    recording = next(one for one in stage.world.sessions if one.session == SECOND_THOUGHTS)
    await served.converse(recording, pace)
    name = session_name(recording, pace)
    pool = (await served.ask("/headstart/status"))["pool"]
    wrong = wrong_guesses([await served.ask(f"/headstart/trace/{name}")], pool)
    await served.end_session(name)
    return wrong


async def _converse_until_it_breaks(served: Served, recording: Recording, pace: Pace) -> None:
    try:
        await served.converse(recording, pace)
    except Exception:  # noqa: BLE001 its service is killed under it: how the clients' libraries say so is not the point
        return


async def _until_busy(served: Served) -> None:
    with anyio.fail_after(_BUSY_TIMEOUT_S):
        while True:
            sandboxes = (await served.ask("/headstart/status"))["pool"]["sandboxes"]
            if sum(1 for sandbox in sandboxes if sandbox["served"] > 0) >= 2:
                return
            await anyio.sleep(0.05)


async def _watch(before: Mapping[int, str]) -> Killed:
    killed = time.monotonic()
    gone_after_s = 0.0
    left = dict(before)
    with anyio.move_on_after(_WATCH_S):
        while left:
            left = {pid: command for pid, command in left.items() if is_alive(pid)}
            gone_after_s = time.monotonic() - killed
            await anyio.sleep(0.01)
    return Killed(before=before, gone_after_s=gone_after_s, left=left)
