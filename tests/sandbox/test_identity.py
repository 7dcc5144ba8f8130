"""Whose names a fork or a rollback carries, and its random numbers: through the library, over the real backend."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
from tests.machine import may_make_namespaces

import headstart
from headstart.backends.local import open_local_backend
from headstart.errors import ConfigError
from headstart.ids import RandomIds
from headstart.sandbox.sandbox import Sandbox
from headstart.sandbox.templates import TemplateStore

pytestmark = pytest.mark.anyio

LOOK = "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id"
MACHINES_BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text()
DRAW = "echo $RANDOM $RANDOM $RANDOM"


@pytest.fixture
async def boxes(tmp_path: Path) -> AsyncGenerator[headstart.Sandboxes]:
    if not may_make_namespaces():
        pytest.skip("the local backend cannot run here: no namespaces")
    async with headstart.Sandboxes.open(state_dir=tmp_path / "state") as opened:
        yield opened


@pytest.fixture
async def box(boxes: headstart.Sandboxes) -> AsyncGenerator[headstart.Sandbox]:
    async with boxes.create(headstart.SandboxOptions(env={"API_TOKEN": "t", "COLOUR": "red"})) as created:
        yield created


async def names(box: Sandbox) -> list[str]:
    done = await box.run(LOOK)
    assert done.ok, done
    hostname, machine_id, boot_id = done.stdout.split()
    assert re.fullmatch("box-[0-9a-f]{12}", hostname)
    assert re.fullmatch("[0-9a-f]{32}", machine_id)
    assert re.fullmatch("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", boot_id)
    return [hostname, machine_id, boot_id]


async def drawn(box: Sandbox) -> str:
    done = await box.run_in_shell(DRAW)
    assert done.ok, done
    return done.stdout


async def test_every_sandbox_has_names_of_its_own_and_not_the_machines(boxes: headstart.Sandboxes) -> None:
    machines = MACHINES_BOOT_ID.split()
    async with boxes.create() as one, boxes.create() as other:
        seen = [*machines, *await names(one), *await names(other)]
        assert len(set(seen)) == len(seen) == 7
        assert (await one.run(f"getent hosts {seen[1]}")).ok, "its name leads to itself"


async def test_with_the_same_identity_a_branch_shows_the_same_and_draws_the_same(box: headstart.Sandbox) -> None:
    await box.run_in_shell("RANDOM=42; export WHERE=here; cd /tmp")
    branch, other = await box.fork(), await box.fork(identity="same")
    assert await names(branch) == await names(other) == await names(box)
    assert await drawn(branch) == await drawn(other) == await drawn(box)
    look = "echo $WHERE $PWD $API_TOKEN; echo $HOSTNAME"
    told = [(await each.run_in_shell(look)).stdout for each in (branch, other, box)]
    assert told == [f"here /tmp t\n{(await names(box))[0]}\n"] * 3
    assert branch.frozen_secrets == other.frozen_secrets == (), "all of it is meant to be the same"


async def test_with_a_fresh_identity_everything_that_can_be_is_new(box: headstart.Sandbox) -> None:
    await box.run_in_shell("RANDOM=42; export WHERE=here; cd /tmp")
    branches = [await box.fork(identity="fresh") for _ in range(2)]
    seen = [name for each in (box, *branches) for name in await names(each)]
    assert len(set(seen)) == len(seen) == 9
    assert len({await drawn(each) for each in (box, *branches)}) == 3
    for branch in branches:
        told = await branch.run_in_shell('echo $WHERE $PWD; [[ $HOSTNAME == "$(hostname)" ]] && echo its own')
        assert told.stdout == "here /tmp\nits own\n", "the rest is what it was"


async def test_what_a_fresh_identity_cannot_make_anew_is_named(box: headstart.Sandbox) -> None:
    assert (
        await box.run(
            "mkdir -p .ssh .gnupg/private-keys-v1.d .aws; echo k | tee .ssh/id_ed25519 .ssh/id_ed25519.pub .ssh/config"
            " .gnupg/private-keys-v1.d/a.key .netrc > .gnupg/random_seed; : > .git-credentials"
        )
    ).ok
    await box.run_in_shell("MY_SECRET=s; SECRETS_OF=; plain=1")
    branch = await box.fork(identity="fresh")
    assert branch.frozen_secrets == (
        "~/.netrc",
        "~/.ssh/id_ed25519",
        "~/.gnupg/private-keys-v1.d/a.key",
        "~/.gnupg/random_seed",
        "$API_TOKEN",
        "$MY_SECRET",
    )


async def test_a_rollback_goes_back_to_the_names_that_were_kept_or_to_new_ones(box: headstart.Sandbox) -> None:
    await box.run_in_shell("RANDOM=42")
    await box.files.write(".netrc", "x")
    kept = await box.checkpoint()
    before, numbers = await names(box), await drawn(box)
    assert await box.rollback(kept) == ()
    assert (await names(box), await drawn(box)) == (before, numbers)
    assert await box.rollback(kept, identity="fresh") == ("~/.netrc", "$API_TOKEN")
    after = await names(box)
    assert not set(after) & set(before)
    assert await drawn(box) != numbers
    branch = await box.fork()
    assert await names(branch) == after, "it is who it is now"
    await branch.discard()
    await box.rollback(kept)
    assert (await names(box), await drawn(box)) == (before, numbers)


async def test_a_branch_that_is_committed_keeps_its_identity(box: headstart.Sandbox) -> None:
    branch = await box.fork(identity="fresh")
    seen = await names(branch)
    await branch.commit()
    assert await names(box) == seen


async def test_a_choice_that_is_none_is_refused_and_changes_nothing(box: headstart.Sandbox) -> None:
    kept = await box.checkpoint()
    with pytest.raises(ConfigError, match="'new' is no choice of an identity"):
        await box.fork(identity="new")  # pyright: ignore[reportArgumentType] users write it
    with pytest.raises(ConfigError, match="identity"):
        await box.rollback(kept, identity="")  # pyright: ignore[reportArgumentType]
    assert box.state_version == kept.version


async def test_a_template_passes_no_names_on(boxes: headstart.Sandboxes) -> None:
    order = headstart.TemplateOrder(name="mine", setup=(f"({LOOK}) > ~/of-the-build",))
    await boxes.build_template(order)
    options = headstart.SandboxOptions(template="mine")
    async with boxes.create(options) as one, boxes.create(options) as other:
        of_the_build = (await one.run("cat of-the-build")).stdout.split()
        seen = [*of_the_build, *await names(one), *await names(other)]
        assert len(set(seen)) == len(seen) == 9


async def test_a_fresh_fork_that_is_cancelled_at_any_moment_leaves_no_branch(tmp_path: Path) -> None:
    if not may_make_namespaces():
        pytest.skip("the local backend cannot run here: no namespaces")
    templates = TemplateStore(tmp_path / "templates")
    async with (
        open_local_backend(tmp_path / "state") as backend,
        headstart.Sandboxes.on(backend, templates=templates, ids=RandomIds()) as boxes,
        boxes.create() as box,
    ):
        await box.files.write("f", "x")
        await (await box.fork(identity="fresh")).discard()
        alone = (await backend.leftovers()).processes
        for number in range(40):
            with anyio.move_on_after(0.0005 * number):
                await (await box.fork(identity="fresh")).discard()
            await box.files.write("f", f"{number}")
            with anyio.fail_after(20):
                while (await backend.leftovers()).processes != alone:  # noqa: ASYNC110 nobody has a handle of it
                    await anyio.sleep(0.01)
