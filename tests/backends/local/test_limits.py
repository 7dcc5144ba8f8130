"""What a sandbox of the local backend may use up, and who has to yield."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from headstart.backends.contract import Identity, Limits, RunningSandbox
from headstart.backends.local import LocalBackend
from headstart.errors import BackendError
from headstart.ids import SandboxId

from .driving import ORDINARY, ROOT, as_zygote, backend_in, output, sandbox_in, shell, template

pytestmark = pytest.mark.anyio


def limited(backend: LocalBackend) -> None:
    if not backend.capabilities.limits:
        pytest.skip("no control groups that this user may use")


async def test_a_fork_bomb_stops_at_the_limit_and_harms_nobody(tmp_path: Path) -> None:
    async with backend_in(tmp_path) as backend:
        prepared = await backend.prepare(template(limits=Limits(pids=30)))
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("sb_1")))
        done = await sandbox.run(shell("for i in $(seq 100); do sleep 100 & done; wait"), timeout_s=10)
        assert done.status.code != 0
        assert b"fork" in done.stderr.lower() or b"resource" in done.stderr.lower()
        other = await backend.start(prepared, Identity(sandbox=SandboxId("sb_2")))
        assert await output(other, "echo fine") == "fine"
        await sandbox.aclose()
        await other.aclose()


async def test_a_memory_bomb_is_killed_and_told_apart_from_other_kills(tmp_path: Path) -> None:
    async with backend_in(tmp_path) as backend:
        limited(backend)
        prepared = await backend.prepare(template(limits=Limits(memory_bytes=60_000_000)))
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("sb_1")))
        bomb = await sandbox.run(shell("exec tail /dev/zero"), timeout_s=30)
        assert (bomb.status.signal, bomb.status.out_of_memory) == (9, True)
        killed = await sandbox.run(shell("kill -9 $$"))
        assert (killed.status.signal, killed.status.out_of_memory) == (9, False)
        await sandbox.aclose()


async def test_files_that_use_up_the_memory_cost_the_command_and_not_the_sandbox(tmp_path: Path) -> None:
    async with backend_in(tmp_path) as backend:
        limited(backend)
        prepared = await backend.prepare(template(limits=Limits(memory_bytes=60_000_000, scratch_bytes=None)))
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("sb_1")))
        spared = "until [ $(cat /proc/1/oom_score_adj) = 0 ]; do :; done"  # as soon as it has started this
        assert (await sandbox.run(shell(spared), timeout_s=20)).status.code == 0
        done = await sandbox.run(shell("exec head -c 200000000 /dev/zero > /tmp/big"), timeout_s=30)
        assert (done.status.signal, done.status.out_of_memory) == (9, True)
        await sandbox.aclose()


async def test_a_kill_for_memory_is_told_of_the_command_that_it_ended_alone(tmp_path: Path) -> None:
    async with backend_in(tmp_path) as backend:
        limited(backend)
        prepared = await backend.prepare(template(limits=Limits(memory_bytes=60_000_000)))
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("sb_1")))
        below = await sandbox.run(shell("tail /dev/zero; exit $?"), timeout_s=30)
        assert (below.status.code, below.status.out_of_memory) == (137, True)
        survived = await sandbox.run(shell("tail /dev/zero; exit 0"), timeout_s=30)
        assert (survived.status.code, survived.status.out_of_memory) == (0, False)
        after = await sandbox.run(shell("kill -9 $$"))
        assert (after.status.signal, after.status.out_of_memory) == (9, False)
        await sandbox.aclose()
        with pytest.raises(BackendError) as gone:
            await sandbox.run(shell("true"))
        assert "memory" not in str(gone.value), "whoever ended it knows why"


async def test_the_private_folders_are_limited_together(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path, template(limits=Limits(scratch_bytes=5_000_000))) as sandbox:
        done = await sandbox.run(shell("head -c 3000000 /dev/zero > ~/a && head -c 3000000 /dev/zero > /tmp/b"))
    assert b"No space" in done.stderr


async def test_usage_counts_what_the_sandbox_holds(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        before = await sandbox.usage()
        await output(sandbox, "head -c 30000000 /dev/zero > /tmp/a; (sleep 1000 >/dev/null 2>&1 &)")
        after = await sandbox.usage()
    assert (before.processes, after.processes) == (0, 1)
    if ROOT:
        assert after.memory_bytes - before.memory_bytes > 25_000_000


async def test_background_sandboxes_yield_until_somebody_waits(tmp_path: Path) -> None:
    async with backend_in(tmp_path) as backend:
        limited(backend)
        prepared = await backend.prepare(template())
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("sb_1")), background=True)
        shares = [_shares(_cpu_group(sandbox))]
        await sandbox.raise_priority()
        shares.append(_shares(_cpu_group(sandbox)))
        await sandbox.aclose()
    assert shares in ([256, 1024], [25, 100])


async def test_all_sandboxes_together_weigh_two_for_each_core(tmp_path: Path) -> None:
    async with backend_in(tmp_path) as backend:
        limited(backend)
        prepared = await backend.prepare(template())
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("sb_1")))
        cores = os.cpu_count() or 1
        assert _shares(_cpu_group(sandbox).parent) in (1024 * 2 * cores, 100 * 2 * cores)
        await sandbox.aclose()


async def test_a_sandbox_gets_as_much_of_a_cpu_as_it_may(tmp_path: Path) -> None:
    async with backend_in(tmp_path) as backend:
        limited(backend)
        for limits, cores in ((Limits(cpu_cores=0.5), 0.5), (ORDINARY, None)):
            prepared = await backend.prepare(template(limits=limits))
            sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("sb_1")))
            assert _cores_allowed(_cpu_group(sandbox)) == cores
            await sandbox.aclose()


async def test_a_fork_gets_as_much_of_a_cpu_as_it_may(tmp_path: Path) -> None:
    async with backend_in(tmp_path) as backend:
        limited(backend)
        prepared = await backend.prepare(as_zygote(template(limits=Limits(cpu_cores=0.5))))
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("sb_1")))
        with anyio.fail_after(30):
            while not _cpu_group(sandbox).name.startswith("fork"):  # noqa: ASYNC110  it is moved behind its back
                await anyio.sleep(0.01)
        assert _cores_allowed(_cpu_group(sandbox)) == 0.5
        await sandbox.aclose()
        await prepared.aclose()


def _cpu_group(sandbox: RunningSandbox) -> Path:
    """Ask the host: find the group of the sandbox's init, where CPU is shared out."""
    pid = sandbox.pid  # type: ignore[attr-defined]
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, own = line.split(":", 2)
        for group in (Path(f"/sys/fs/cgroup/cpu{own}"), Path(f"/sys/fs/cgroup{own}")):
            if names in {"cpu", "cpu,cpuacct", ""} and _read(group, "cpu.shares", "cpu.weight"):
                return group
    raise AssertionError("the sandbox is in no group with a CPU share")


def _shares(group: Path) -> int:
    (shares,) = _read(group, "cpu.shares", "cpu.weight")
    return int(shares)


def _cores_allowed(group: Path) -> float | None:
    """Version 1 has quota and period in two files, version 2 in one; without a limit the quota is -1 or "max"."""
    quota_us, period_us = _read(group, "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.max")
    return int(quota_us) / int(period_us) if quota_us not in {"-1", "max"} else None


def _read(group: Path, *names: str) -> list[str]:
    """Return the words of those of these files that this version has."""
    return [word for name in names if (group / name).exists() for word in (group / name).read_text().split()]
