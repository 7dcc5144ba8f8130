"""The tools that keep a state, go back to it, and try things in a branch."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress

from headstart.errors import NotCapturable, TransactionRefused
from headstart.runtime.kept import id_meant
from headstart.runtime.remembered import SessionState
from headstart.sandbox.sandbox import Sandbox
from headstart.sandbox.tools.arguments import Checkpoint, Commit, Discard, Drop, Fork, Rollback
from headstart.sandbox.tools.session import SessionSandbox

__all__ = ["checkpoint", "commit", "discard", "drop", "fork", "rollback"]

_MOST_KEPT = 128
"""Checkpoints of one session; each may need a layer, of which a sandbox cannot stand on many more, and branches need some."""


async def checkpoint(session: SessionSandbox, asked: Checkpoint) -> str:
    """Keep the state."""
    sandbox = await session.sandbox()
    with _telling_what_helps():
        kept = await session.host.checkpoint(sandbox, files_only=asked.files_only)
    left_out = f" Not in it: {', '.join(kept.left_out)}." if kept.left_out else ""
    async with session.using(None) as box:
        held = _what_is_in(box.sessions_at(kept.id))
    return f"Checkpoint {kept.id} of {sandbox} holds the {held}.{left_out}{await _drop_oldest(session)}"


async def rollback(session: SessionSandbox, asked: Rollback) -> str:
    """Go back to a checkpoint."""
    sandbox = await session.sandbox()
    async with session.using(None) as box:
        to = _checkpoint_meant(box, asked.to)
        kept = box.sessions_at(to)
    await session.host.rollback(sandbox, to)
    anew = [name for name, state in (("bash", kept.shell), ("Python", kept.kernel)) if state is None]
    begins = f"; {' and '.join(anew)} {'begins' if len(anew) == 1 else 'begin'} anew" if anew else ""
    return (
        f"{sandbox} is what it was at checkpoint {to}, with its {_what_is_in(kept)}. What else ran has ended{begins}."
    )


async def drop(session: SessionSandbox, asked: Drop) -> str:
    """Let go of a checkpoint."""
    async with session.using(None) as box:
        checkpoint = _checkpoint_meant(box, asked.checkpoint)
    await _let_go(session, checkpoint)
    return f"Checkpoint {checkpoint} is gone; the sandbox is as it was."


async def fork(session: SessionSandbox, asked: Fork) -> str:
    """Make a branch."""
    with _telling_what_helps():
        branch = await session.fork(files_only=asked.files_only)
    return f'Branch {branch} begins with the sandbox\'s state. Give branch="{branch}" to act in it.'


async def commit(session: SessionSandbox, asked: Commit) -> str:
    """Let the sandbox be what a branch is."""
    session.check_branch(asked.branch)
    await session.host.commit(asked.branch)
    session.forget_branch(asked.branch)
    return f"The sandbox is what {asked.branch} was; that is gone."


async def discard(session: SessionSandbox, asked: Discard) -> str:
    """Throw a branch away."""
    session.check_branch(asked.branch)
    await session.host.kill(asked.branch)
    session.forget_branch(asked.branch)
    return f"{asked.branch} is gone; the sandbox is as it was."


@contextmanager
def _telling_what_helps() -> Generator[None]:
    """Say what cannot be captured, with the cure that a tool's user has."""
    try:
        yield
    except NotCapturable as error:
        hint = "wait until it has ended, or say files_only=true (a python3 may be the one of the python tool)"
        raise NotCapturable(str(error), hint=hint, held=error.held) from error


async def _drop_oldest(session: SessionSandbox) -> str:
    """Have no more checkpoints than are kept for a session, and say what has gone for that."""
    async with session.using(None) as box:
        surplus = [each.id for each in box.checkpoints[:-_MOST_KEPT]]
    gone: list[str] = []
    for checkpoint in surplus:
        with suppress(TransactionRefused):  # somebody goes back to it now, or has dropped it
            await _let_go(session, checkpoint)
            gone.append(checkpoint)
    return f" {_MOST_KEPT} are kept, so the oldest was dropped: {', '.join(gone)}." if gone else ""


async def _let_go(session: SessionSandbox, checkpoint: str) -> None:
    """Drop a checkpoint, however often its state was asked for: that is one id.

    Raises:
        TransactionRefused: There is none, or somebody goes back to it.
    """
    has_gone = False
    while not has_gone:
        await session.host.drop(await session.sandbox(), checkpoint)
        async with session.using(None) as box:
            has_gone = checkpoint not in [each.id for each in box.checkpoints]


def _what_is_in(kept: SessionState) -> str:
    """Name all that a checkpoint holds, given what it has of what keeps its state between calls."""
    *others, last = [
        "files",
        *["bash session"] * (kept.shell is not None),
        *["Python kernel"] * (kept.kernel is not None),
    ]
    return f"{', '.join(others)} and {last}" if others else last


def _checkpoint_meant(box: Sandbox, said: str | None) -> str:
    """Return a checkpoint's whole id, or what was said if that is none's, which is told by who looks for it."""
    if said is not None:
        return id_meant(said, box.checkpoints)
    if not box.checkpoints:
        raise TransactionRefused("there is no checkpoint to go back to", hint="checkpoint makes one")
    return box.checkpoints[-1].id
