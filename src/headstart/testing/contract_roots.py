"""Promises about templates with files of their own: a root, and what private folders begin with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from headstart.backends.contract import Capabilities, Limits, Template
from headstart.errors import BackendError, NotCapturable
from headstart.testing.contract_trial import Check, ContractViolation, NotClaimed, Trial, check, expect
from headstart.testing.roots import make_root

__all__ = ["ROOT_CHECKS"]

_PLENTY = 1 << 30


def _roots(capabilities: Capabilities) -> bool:
    return capabilities.roots


def _stored_roots(capabilities: Capabilities) -> bool:
    return capabilities.roots and capabilities.durable


def _no_roots(capabilities: Capabilities) -> bool:
    return not capabilities.roots


def _cold(trial: Trial) -> Template:
    template = replace(trial.template(), mounts=trial.subject.mounts)  # the shared folder may be in the host's /tmp
    if trial.subject.adapt(template).preload is not None:
        raise NotClaimed("what a zygote is preloaded from is the host's")
    return template


def _folder(trial: Trial, name: str) -> Path:
    folder = trial.shared.parent / name
    folder.mkdir()
    return folder


@check("a template's root shows in place of the host's system folders, and cannot be written to", claimed=_roots)
async def root(trial: Trial) -> None:
    folder = make_root(_folder(trial, "root") / "inner")
    (folder / "opt").mkdir()
    (folder / "opt/marker").write_text("of the root")
    async with trial.sandbox(replace(_cold(trial), root=folder)) as sandbox:
        seen = await trial.sh(sandbox, "cat /opt/marker; test ! -e /usr/bin && test ! -e /etc/debian_version")
        expect(seen.stdout == b"of the root", "what is in the root shows", seen)
        expect(seen.status.code == 0, "nothing of the host's system shows", seen)
        tried = await trial.sh(
            sandbox, "for path in /x /opt/marker /bin/sh /etc/x; do (echo x >> $path) && echo $path; done"
        )
        expect(tried.stdout == b"", "a root cannot be written to", tried)
        seen = await trial.sh(
            sandbox,
            "cd ~ && ls -A . /tmp /var/tmp && touch ~/x /tmp/x /var/tmp/x /dev/shm/x && echo >/dev/null && echo ok",
        )
        expect(seen.stdout.split() == [b".:", b"/tmp:", b"/var/tmp:", b"ok"], "private folders are as ever", seen)
        expect((folder / "opt/marker").read_text() == "of the root", "the folder is what it was", "else")


@check("a template's base is what each of its sandboxes begins with; none sees what others do", claimed=_roots)
async def base(trial: Trial) -> None:
    folder = _folder(trial, "base")
    async with trial.sandbox(_cold(trial)) as sandbox:
        made = "cd ~; mkdir -p a/b; echo 1 > a/b/c; ln -s a/b link; echo 2 > run; chmod 750 run; echo 3 > /tmp/t; echo 4 > /var/tmp/v"
        await trial.sh(sandbox, f"{made}; echo 5 > /dev/shm/gone")
        await sandbox.save_base(folder, most_bytes=_PLENTY)
        await trial.sh(sandbox, "echo later > ~/later")
    based, whole = replace(_cold(trial), base=folder), "cd ~; cat a/b/c link/c run /tmp/t /var/tmp/v; ls; ls /dev/shm"
    wanted = b"1\n1\n2\n3\n4\na\nlink\nrun\n"
    async with trial.sandbox(based) as one, trial.sandbox(based) as other:
        seen = await trial.sh(one, whole)
        expect(seen.stdout == wanted, "it begins with what there was", seen)
        seen = await trial.sh(
            one, "stat -c %a ~/run; echo more >> ~/a/b/c; rm -r ~/a ~/run; mv ~/link ~/moved; rm /tmp/t"
        )
        expect((seen.stdout, seen.stderr) == (b"750\n", b""), "all of it is its own", seen)
        for sandbox in (other, one):
            await trial.sh(sandbox, "echo x > ~/x; echo y > /dev/shm/y")
        seen = await trial.sh(other, whole.replace("; ls;", "; rm x /dev/shm/y; ls;"))
        expect(seen.stdout == wanted, "neither sees what the other does", seen)
    async with trial.sandbox(based) as sandbox:
        seen = await trial.sh(sandbox, whole)
        expect(seen.stdout == wanted, "nothing that a sandbox does stays", seen)


@check("a sandbox that began with a base can be checkpointed, forked, and saved in turn", claimed=_roots)
async def based_forks(trial: Trial) -> None:
    first, second = _folder(trial, "first"), _folder(trial, "second")
    async with trial.sandbox(_cold(trial)) as sandbox:
        await trial.sh(sandbox, "echo 1 > ~/one; echo 2 > ~/two; echo t > /tmp/t")
        await sandbox.save_base(first, most_bytes=_PLENTY)
    async with trial.sandbox(replace(_cold(trial), base=first)) as sandbox:
        await trial.sh(sandbox, "rm ~/one; echo 3 > ~/three")
        kept = await sandbox.checkpoint()
        await trial.sh(sandbox, "echo new > ~/two; rm ~/three /tmp/t")
        fork = await sandbox.fork(kept, trial.identity())
        try:
            seen = await trial.sh(fork, "cd ~; cat * /tmp/t; ls")
            expect(seen.stdout == b"3\n2\nt\nthree\ntwo\n", "a fork begins with the state, the base in it", seen)
            await fork.save_base(second, most_bytes=_PLENTY)
        finally:
            await fork.aclose()
        seen = await trial.sh(sandbox, "cd ~; cat *; ls; ls /tmp")
        expect(seen.stdout == b"new\ntwo\n", "and its origin goes on", seen)
    async with trial.sandbox(replace(_cold(trial), base=second)) as sandbox:
        seen = await trial.sh(sandbox, "cd ~; cat * /tmp/t; ls")
        expect(seen.stdout == b"3\n2\nt\nthree\ntwo\n", "what was saved is whole, also what came from below", seen)


@check("what runs, or is too much, is not saved", claimed=_roots)
async def refused(trial: Trial) -> None:
    async with trial.sandbox(_cold(trial)) as sandbox:
        async with sandbox.start(trial.shell("echo up; exec sleep 100")) as streams:
            await streams.stdout.receive()
            try:
                await sandbox.save_base(_folder(trial, "busy"), most_bytes=_PLENTY)
            except NotCapturable as refusal:
                expect(bool(refusal.held), "who runs is told", refusal)
            else:
                raise ContractViolation("while something runs, it is refused; seen: it worked")
        await trial.sh(sandbox, "head -c 3000000 /dev/zero > ~/large")
        try:
            await sandbox.save_base(_folder(trial, "large"), most_bytes=2_000_000)
        except BackendError:
            pass
        else:
            raise ContractViolation("more than is allowed is refused; seen: it worked")
        await sandbox.save_base(_folder(trial, "whole"), most_bytes=_PLENTY)


@check("a template with files of its own is refused by a backend that cannot show them", claimed=_no_roots)
async def not_shown(trial: Trial) -> None:
    for template in (
        replace(trial.template(), root=_folder(trial, "root")),
        replace(trial.template(), base=_folder(trial, "base")),
    ):
        try:
            await trial.backend.prepare(template)
        except BackendError:
            continue
        raise ContractViolation("it is refused when it is prepared; seen: it was not")


@check("what a store has goes on with the base that it began with, and with no other", claimed=_stored_roots)
async def stored(trial: Trial) -> None:
    based = [replace(_cold(trial), base=_folder(trial, name)) for name in ("base", "other")]
    identity = trial.identity()
    for template in based:
        async with trial.sandbox(_cold(trial)) as sandbox:
            await trial.sh(sandbox, "echo 1 > ~/a; echo 1 > ~/b; echo 1 > ~/c")
            await sandbox.save_base(template.base or Path(), most_bytes=_PLENTY)
    for seen_before, script in ((b"1\n1\n1\n", "cd ~; rm a; echo 2 > b"), (b"2\n1\n", "true"), (b"2\n1\n", "true")):
        async with trial.backend_on("served") as backend:
            store = await backend.stores.open("kept", limits=Limits(scratch_bytes=64_000_000))
            prepared = await backend.prepare(based[0])
            sandbox = await store.start(prepared, identity)
            seen = await trial.sh(sandbox, "cat ~/*")
            expect(seen.stdout == seen_before, "it goes on with what it has changed, and what it has not", seen)
            await trial.sh(sandbox, script)
            await sandbox.checkpoint()
            await store.stop(identity.sandbox)
            try:
                await store.start(await backend.prepare(based[1]), identity)
            except BackendError:
                continue
            raise ContractViolation("another base is refused; seen: it worked")


ROOT_CHECKS: Final[tuple[Check, ...]] = (root, base, based_forks, stored, refused, not_shown)
