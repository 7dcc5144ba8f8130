"""The doctor's facts: tried for real, quickly, leaving nothing behind."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest
from tests.machine import as_root_of_namespaces

from headstart.backends import probes
from headstart.backends.local.seccomp import SeccompProfile, build_filter
from headstart.backends.probes import Probe, ProbeStatus, probe_all
from headstart.backends.spawner.guest.processes import is_alive

EXPECTED = [
    "kernel",
    "user namespaces (root)",
    "user namespaces (ordinary user)",
    "overlayfs",
    "overlayfs in a user namespace",
    "id-mapped mounts",
    "disk images",
    "control groups",
    "pidfd",
    "seccomp",
    "landlock",
    "inotify",
    "KVM",
    "userfaultfd",
    "bpf cgroup hooks",
    "Python",
    "node",
    "npx",
    "uvx",
    "docker",
    "runsc",
    "criu",
]


def traces() -> tuple[str, list[str], list[str]]:
    """What a probe could leave: mounts, groups, children."""
    mounts = Path("/proc/self/mountinfo").read_text()
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob("**/headstart-probe")]
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return mounts, groups, children


@pytest.mark.anyio
async def test_every_fact_is_told_once_and_in_order() -> None:
    assert [probe.name for probe in await probe_all()] == EXPECTED


@pytest.mark.anyio
async def test_whatever_is_not_ok_has_a_cure() -> None:
    for probe in await probe_all():
        assert probe.found
        assert (probe.cure is None) == (probe.status is ProbeStatus.OK), probe


@pytest.mark.anyio
async def test_nothing_is_left_behind() -> None:
    before = traces()
    await probe_all()
    assert traces() == before


@pytest.mark.anyio
async def test_an_answer_never_takes_long() -> None:
    start = time.monotonic()
    await probe_all()
    assert time.monotonic() - start < 30


def by_name(found: tuple[Probe, ...], name: str) -> Probe:
    return next(probe for probe in found if probe.name == name)


@pytest.mark.anyio
async def test_a_program_that_hangs_is_killed_with_its_children_and_said_to_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid_file = tmp_path / "pid"
    hanging = tmp_path / "docker"
    hanging.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {pid_file}\nwait\n")
    hanging.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(probes, "PROGRAM_S", 0.5)
    docker = by_name(await probe_all(), "docker")
    assert (docker.status, docker.found) == (ProbeStatus.MISSING, "no answer within 0.5 s")
    with anyio.fail_after(30):
        while is_alive(int(pid_file.read_text())):  # noqa: ASYNC110 - whoever is the machine's init need not reap it
            await anyio.sleep(0.01)


@pytest.mark.anyio
async def test_a_program_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = tmp_path / "criu"
    failing.write_text("#!/bin/sh\necho 'Error: no vDSO for you' >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    criu = by_name(await probe_all(), "criu")
    assert (criu.status, criu.found) == (ProbeStatus.MISSING, "Error: no vDSO for you")


@pytest.mark.anyio
async def test_criu_is_told_to_be_of_no_use_whether_it_passes_its_check_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    absent = by_name(await probe_all(), "criu")
    assert absent.status is ProbeStatus.MISSING
    assert absent.cure is not None
    assert "no checkpoint uses it" in absent.cure
    passing = tmp_path / "criu"
    passing.write_text('#!/bin/sh\necho "Warn  (criu/kerndat.c:1285): Can\'t keep kdat cache" >&2\necho Looks good.\n')
    passing.chmod(0o755)
    found = by_name(await probe_all(), "criu")
    told = f"it passes its own check; no checkpoint uses it ({passing})"
    assert (found.status, found.found) == (ProbeStatus.OK, told)


@pytest.mark.anyio
async def test_what_is_not_installed_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    node = by_name(await probe_all(), "node")
    assert (node.status, node.found) == (ProbeStatus.MISSING, "not installed")
    assert node.cure is not None
    assert "apt-get install nodejs" in node.cure


def trials_as_nobody() -> dict[str, dict[str, str]]:
    python = Path("/usr/bin/python3")
    if os.geteuid() != 0 or shutil.which("setpriv") is None or not python.exists():
        pytest.skip("becoming an ordinary user needs root, setpriv and /usr/bin/python3")
    launch = Path(probes.__file__).parent / "spawner/guest/launch.py"
    program = build_filter(SeccompProfile.SANDBOX, platform.machine()).hex()
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", str(python), "-I", "-S", str(launch),
         "headstart.backends.local.guest.probe", program],
        capture_output=True, text=True, timeout=20, check=False, cwd="/",
    )  # fmt: skip
    if "Permission denied" in done.stderr:
        pytest.skip("the source tree is not readable for an ordinary user")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_ordinary_user_gets_the_ordinary_users_answers() -> None:
    found = trials_as_nobody()
    assert found["id-mapped mounts"]["status"] == "missing"
    assert found["seccomp"]["status"] == "ok"
    assert found["pidfd"]["status"] == "ok"
    assert "you are not root" in found["overlayfs"]["found"]


@as_root_of_namespaces
def test_the_seccomp_trial_notices_a_filter_that_denies_nothing() -> None:
    launch = Path(probes.__file__).parent / "spawner/guest/launch.py"
    allow_everything = "060000000000ff7f"
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(launch), "headstart.backends.local.guest.probe", allow_everything],
        capture_output=True, text=True, timeout=20, check=True,
    )  # fmt: skip
    told = json.loads(done.stdout)["seccomp"]
    assert told["found"] == "the filter installed and denied nothing"
