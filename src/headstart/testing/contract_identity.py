"""Promises about what tells a sandbox who it is: its names, and whose they are in a fork."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from headstart.backends.contract import Capabilities, Identity, RunningSandbox
from headstart.testing.contract_trial import Check, NotClaimed, Trial, check, expect

__all__ = ["IDENTITY_CHECKS"]

_PLACES: Final = "/etc/hostname /etc/machine-id /proc/sys/kernel/random/boot_id"
_LOOK: Final = f"cat /proc/sys/kernel/hostname {_PLACES}"


def _identities(capabilities: Capabilities) -> bool:
    return capabilities.identities


def _named(trial: Trial, number: int) -> Identity:
    boot_id = f"{number:08x}-0000-4000-8000-{number:012x}"
    return replace(trial.identity(), hostname=f"contract-{number}", machine_id=f"{number:032x}", boot_id=boot_id)


def _shown(identity: Identity) -> bytes:
    names = (identity.hostname, identity.hostname, identity.machine_id, identity.boot_id)
    return "".join(f"{name}\n" for name in names).encode()


@asynccontextmanager
async def _carrying(trial: Trial, identity: Identity) -> AsyncGenerator[RunningSandbox]:
    if trial.subject.adapt(trial.template()).preload is not None:
        raise NotClaimed("forks of a zygote have no machine id and no boot id of their own")
    async with trial.sandbox(identity=identity) as sandbox:
        yield sandbox


@check("a sandbox shows the names of its identity, and nothing in it can change them", claimed=_identities)
async def shown(trial: Trial) -> None:
    one, other = _named(trial, 1), _named(trial, 2)
    async with _carrying(trial, one) as first, _carrying(trial, other) as second:
        for sandbox, identity in ((first, one), (second, other)):
            seen = await trial.sh(sandbox, _LOOK)
            expect(seen.stdout == _shown(identity), "it shows its own names", seen)
        tried = await trial.sh(
            first,
            f"for place in {_PLACES}; do (echo x > $place) 2>&1; rm -f $place; mv /tmp $place; done; hostname x; {_LOOK}",
        )
        expect(tried.stdout.endswith(_shown(one)), "nothing in it changes them", tried)
        found = await trial.sh(first, "getent hosts contract-1")
        expect(found.status.code == 0, "its hostname leads to itself", found)


@check(
    "a fork shows the names that it is given, its origin's or others, and a checkpoint changes none",
    claimed=_identities,
)
async def given(trial: Trial) -> None:
    own, other = _named(trial, 1), _named(trial, 2)
    async with _carrying(trial, own) as sandbox:
        await sandbox.files.write("changed", b"x")
        checkpoint = await sandbox.checkpoint()
        seen = await trial.sh(sandbox, _LOOK)
        expect(seen.stdout == _shown(own), "a checkpoint changes none of its names", seen)
        for identity in (replace(own, sandbox=trial.identity().sandbox), other):
            fork = await sandbox.fork(checkpoint, identity)
            try:
                seen = await trial.sh(fork, _LOOK)
                expect(seen.stdout == _shown(identity), "a fork shows the names that it is given", seen)
                await fork.files.write("more", b"x")
                await fork.checkpoint()
                again = await trial.sh(fork, _LOOK)
                expect(again.stdout == seen.stdout, "and keeps them", again)
            finally:
                await fork.aclose()


IDENTITY_CHECKS: Final[tuple[Check, ...]] = (shown, given)
