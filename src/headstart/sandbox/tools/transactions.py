"""The tools that keep a state, go back to it, and try things in a branch."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from headstart.errors import NotCapturable, TransactionRefused
from headstart.sandbox.tools.arguments import Checkpoint, Commit, Discard, Fork, Rollback
from headstart.sandbox.tools.session import SessionSandbox

__all__ = ["checkpoint", "commit", "discard", "fork", "rollback"]


async def checkpoint(session: SessionSandbox, asked: Checkpoint) -> str:
    """Keep the state."""
    sandbox = await session.sandbox()
    with _telling_what_helps():
        kept = await session.host.checkpoint(sandbox, files_only=asked.files_only)
    left_out = f" Not in it: {', '.join(kept.left_out)}." if kept.left_out else ""
    what = "the files" if asked.files_only else "the files, the bash session and the Python kernel"
    return f"Checkpoint {kept.id} of {sandbox} holds {what}.{left_out}"


async def rollback(session: SessionSandbox, asked: Rollback) -> str:
    """Go back to a checkpoint."""
    sandbox = await session.sandbox()
    to = asked.to or await _newest(session)
    await session.host.rollback(sandbox, to)
    return f"{sandbox} is what it was at checkpoint {to}. What else ran has ended."


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


async def _newest(session: SessionSandbox) -> str:
    async with session.using(None) as box:
        if not box.checkpoints:
            raise TransactionRefused("there is no checkpoint to go back to", hint="checkpoint makes one")
        return box.checkpoints[-1].id
