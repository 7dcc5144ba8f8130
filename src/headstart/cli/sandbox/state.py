"""`headstart sandbox checkpoint`, `rollback`, `drop`, `fork`, `commit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headstart.cli.plain import plain
from headstart.cli.sandbox.options import (
    FilesOnlyOption,
    IdentityOption,
    JsonOption,
    QuietOption,
    SandboxArgument,
    done,
    made,
    with_service,
)
from headstart.cli.settings import StateOption
from headstart.cli.terminal import say, shown
from headstart.errors import TransactionRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.sandbox import HostedSandbox, HostedSandboxes, SandboxCheckpoint

__all__ = ["checkpoint", "commit", "drop", "fork", "rollback"]


def checkpoint(
    sandbox: SandboxArgument,
    *,
    files_only: FilesOnlyOption = False,
    durable: Annotated[bool, typer.Option("--durable", help="Wait until it is on the disk.")] = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
    state_dir: StateOption = None,
) -> None:
    """Keep a sandbox's state as it is, to go back to."""

    async def work(service: HostedSandboxes) -> SandboxCheckpoint:
        return await (await service.get(sandbox)).checkpoint(files_only=files_only, durable=durable)

    kept = with_service(state_dir, work)
    left_out = f"; left out: {', '.join(kept.left_out)}" if kept.left_out else ""
    then = f"go back to it: headstart sandbox rollback {sandbox} {kept.id}{left_out}"
    made({"id": kept.id, **plain(kept)}, quiet=quiet, json=json, then=then)


def rollback(
    sandbox: SandboxArgument,
    to: Annotated[
        str | None, typer.Argument(metavar="CHECKPOINT", help="What to go back to; the newest, unless said.")
    ] = None,
    *,
    identity: IdentityOption = "same",
    json: JsonOption = False,
    state_dir: StateOption = None,
) -> None:
    """Go back to a checkpoint. What runs is ended."""

    async def work(service: HostedSandboxes) -> tuple[str, str, Sequence[str]]:
        from headstart.runtime.kept import id_meant

        box = await service.get(sandbox)
        kept = (await box.info()).checkpoints
        if to is None and not kept:
            hint = f"make one first: headstart sandbox checkpoint {sandbox}"
            raise TransactionRefused(f"{box.id} has no checkpoint to go back to", hint=hint)
        chosen = kept[-1].id if to is None else id_meant(to, kept)
        return box.id, chosen, await box.rollback(chosen, identity=identity)

    id_, chosen, frozen = with_service(state_dir, work)
    done({"id": id_, "checkpoint": chosen, "frozen_secrets": list(frozen)}, json=json)
    _tell_frozen(frozen, as_before="at the checkpoint")


def drop(
    sandbox: SandboxArgument,
    kept: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="Nobody will go back to it.")],
    *,
    json: JsonOption = False,
    state_dir: StateOption = None,
) -> None:
    """Let go of a checkpoint, and of the memory that only it needs."""

    async def work(service: HostedSandboxes) -> tuple[str, str]:
        from headstart.runtime.kept import id_meant

        box = await service.get(sandbox)
        chosen = id_meant(kept, (await box.info()).checkpoints)
        await box.drop(chosen)
        return box.id, chosen

    id_, chosen = with_service(state_dir, work)
    done({"id": id_, "dropped": chosen}, json=json)


def fork(
    sandbox: SandboxArgument,
    *,
    files_only: FilesOnlyOption = False,
    identity: IdentityOption = "same",
    quiet: QuietOption = False,
    json: JsonOption = False,
    state_dir: StateOption = None,
) -> None:
    """Make a branch of a sandbox: another one that begins with its state, and may become it."""

    async def work(service: HostedSandboxes) -> tuple[str, HostedSandbox]:
        box = await service.get(sandbox)
        return box.id, await box.fork(files_only=files_only, identity=identity)

    origin, made_branch = with_service(state_dir, work)
    branch, frozen = made_branch.id, list(made_branch.frozen_secrets)
    then = (
        f"headstart sandbox commit {branch} lets {sandbox} be what it is; headstart sandbox kill {branch} discards it"
    )
    made({"id": branch, "branch_of": origin, "frozen_secrets": frozen}, quiet=quiet, json=json, then=then)
    _tell_frozen(frozen, as_before="in the sandbox that it was forked from")


def _tell_frozen(secrets: Sequence[str], *, as_before: str) -> None:
    """Say what a fresh identity has not made anew."""
    if secrets:
        say(f"as {as_before}, and not made anew: {', '.join(shown(each) for each in secrets)}")


def commit(branch: SandboxArgument, *, json: JsonOption = False, state_dir: StateOption = None) -> None:
    """Let the sandbox that a branch was forked from be what the branch is."""

    async def work(service: HostedSandboxes) -> tuple[str | None, str]:
        box = await service.get(branch)
        origin = (await box.info()).branch_of
        await box.commit()
        return origin, box.id

    origin, id_ = with_service(state_dir, work)
    done({"id": origin, "committed": id_}, json=json)
