"""Attacks from inside a local sandbox. Each must fail *for its stated reason*.

An attack is a Python script that says `GOT …` when it gets through, else the error that
stopped it. The same script (or, where that would hurt this machine, its milder twin) is
its control: run outside, it must say `GOT`. So a test can fail in both directions: by an
escape, and by an attack that would not work anyway.

All attacks run once per user and setting: a service that runs as root, and one of an ordinary user; in
sandboxes that start cold, are forks of a zygote, or have their files in a store; after a checkpoint, and in a branch; and
as a program that can be kept, also one that goes on in a branch.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .attacks import ATTACKS, DENIED, PRELUDE, Attack

_NOTHING_OUTLIVES = re.compile("no files can outlive the service: .*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bait:
    """Things outside worth stealing, made for these tests."""

    facts: dict[str, Any]
    folder: Path


@pytest.fixture(scope="module")
def ground(mappable_base: Path) -> Path:
    """A folder that an ordinary user reaches too, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="escape-", dir=mappable_base))
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def bait(ground: Path) -> Generator[Bait]:
    folder = ground / "bait"
    folder.mkdir()
    home = Path("/home" if os.geteuid() == 0 else Path.home(), f"headstart-escape-{os.getpid()}")
    (home / ".ssh").mkdir(parents=True)
    for path in (home / "diary", home / ".ssh" / "id_ed25519"):
        path.write_text("dear diary")
    shutil.copy("/usr/bin/id", folder / "setuid-id")
    (folder / "setuid-id").chmod(0o4755)
    shutil.copy(Path(__file__).with_name("hostile.py"), folder)
    shutil.copy(Path(__file__).parents[1] / "contract" / "become.py", folder)
    yield Bait(
        facts={
            "homes": [str(home / "diary"), str(Path.home() / ".profile"), str(Path.home() / ".bashrc")],
            "keys": [str(home / ".ssh" / "id_ed25519")],
            "bait": str(folder),
            "project": str(Path(__file__).parents[2]),
        },
        folder=folder,
    )
    shutil.rmtree(home)


def command_for(user: str) -> list[str]:
    """Return how to start our driver as `user`, or skip."""
    driver = str(Path(__file__).with_name("driver.py"))
    if user == "root":
        if os.geteuid() != 0:
            pytest.skip("a service that runs as root needs root")
        return [sys.executable, driver]
    if os.geteuid() != 0:
        return [sys.executable, driver]
    python = Path("/usr/bin/python3")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if shutil.which("setpriv") is None or not python.exists():
        pytest.skip("becoming an ordinary user needs setpriv and /usr/bin/python3")
    if version not in subprocess.run([str(python), "-V"], capture_output=True, text=True, check=True).stdout:
        pytest.skip(f"/usr/bin/python3 is not Python {version}, for which our libraries are installed")
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--reset-env", str(python), driver]


def run_driver(user: str, order: dict[str, Any]) -> dict[str, Any]:
    command = command_for(user)
    libraries = [str(Path(__file__).parents[2] / "src"), *(path for path in sys.path if path.endswith("site-packages"))]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(libraries), "PYTHONDONTWRITEBYTECODE": "1"}
    if command[0] == "setpriv":
        command.remove("--reset-env")
    done = subprocess.run(
        command,
        input=json.dumps(order),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env=environment,
        cwd="/",
    )
    if "BackendUnavailable" in done.stderr:
        pytest.skip(f"the local backend cannot run here as {user}: {done.stderr.strip().splitlines()[-1]}")
    if (why := _NOTHING_OUTLIVES.search(done.stderr)) is not None:
        pytest.skip(why[0])
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout)
    if "skipped" in told:
        pytest.skip(f"{told['skipped']} ({user})")
    return told


def state_for(user: str, ground: Path) -> Path:
    parent = Path(tempfile.mkdtemp(prefix=f"{user}-", dir=ground))
    state = parent / "state"
    state.mkdir(mode=0o700)
    if user == "ordinary" and os.geteuid() == 0:
        os.chown(parent, 65534, 65534)
        os.chown(state, 65534, 65534)
    return state


KEPT = ("checkpointed", "branch", "kernel", "rolled back kernel")
SETTINGS = [
    "root",
    "ordinary",
    "root, forked",
    "ordinary, forked",
    "root, stored",
    "ordinary, stored",
    *(f"{user}, {kept}" for kept in KEPT for user in ("root", "ordinary")),
]


@pytest.fixture(scope="module", params=SETTINGS)
def setting(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def user(setting: str) -> str:
    return setting.partition(",")[0]


@pytest.fixture(scope="module")
def report(user: str, setting: str, bait: Bait, ground: Path) -> dict[str, Any]:
    attacks = [{"id": a.id, "script": PRELUDE + a.script, "network": a.network} for a in ATTACKS]
    how = setting.partition(", ")[2]
    kept = how if how in KEPT else ""
    order = order_for(state_for(user, ground), bait, attacks, forked=how == "forked", stored=how == "stored", kept=kept)
    return run_driver(user, order)


def order_for(
    state: Path,
    bait: Bait,
    attacks: list[dict[str, str]],
    *,
    private_network: bool = False,
    forked: bool = False,
    stored: bool = False,
    kept: str = "",
) -> dict[str, Any]:
    owner = state.stat().st_uid
    writable = state.parent / f"{state.name}-writable"
    writable.mkdir()
    os.chown(writable, owner, -1)
    return {
        "prefix": str(install_prefix(state.parent / f"{state.name}-prefix", owner)),
        "state": str(state),
        "writable": str(writable),
        "facts": bait.facts,
        "bait": str(bait.folder),
        "attacks": attacks,
        "private_network": private_network,
        "forked": forked,
        "stored": stored,
        "kept": kept,
    }


def install_prefix(folder: Path, owner: int) -> Path:
    """Make a folder of the service's user, in which a server is installed."""
    for name in ("kept", "removed"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text("installed")
    (folder / "given").write_text("installed")
    shutil.copy("/usr/bin/id", folder / "setuid-id")
    for path in (folder, *folder.rglob("*")) if owner != os.geteuid() else ():
        os.chown(path, owner, owner)
    (folder / "setuid-id").chmod(0o4755)
    return folder


def outcome(result: dict[str, Any]) -> str:
    if result["out_of_memory"]:
        return "OOM-KILLED"
    return result["said"]


by_id = pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.id)


@by_id
def test_an_attack_fails_for_its_stated_reason(attack: Attack, user: str, setting: str, report: dict[str, Any]) -> None:
    if attack.needs_limits and not report["limits"]:
        pytest.skip(f"no limits are claimed for {user}: {report['weaker']}")
    admitted = {attack.weaker, attack.stored_weaker if "stored" in setting else None} - {None}
    if any(word in line for word in admitted for line in report["weaker"] if word is not None):
        pytest.skip(f"admitted for {user}: {report['weaker']}")
    result = report["results"][attack.id]
    assert outcome(result) in attack.expected(user), result


def test_the_victims_are_unharmed(report: dict[str, Any]) -> None:
    assert report["sentinel_alive"]
    assert report["victim_alive"]
    assert report["victim_said"] == "the victim's secret"


def test_what_a_sandbox_does_to_its_install_prefix_reaches_nobody(report: dict[str, Any]) -> None:
    told = report["prefix"]
    assert told["spoiling"] == "['given', 'kept', 'link', 'made', 'setuid-id']"
    assert "given 15 " in told["vandal"]
    for name in ("victim", "later", "host"):
        lines = [line for line in told[name].splitlines() if not line.startswith("secret ")]  # the victim's own
        assert [line.rsplit(" ", 2)[0] for line in lines] == ["given", "setuid-id", "kept/file", "removed/file"], name
        assert "given 9 " in told[name], name
        assert "setuid-id 0 " not in told[name], name
        assert "0o40700" not in told[name], name


@pytest.mark.parametrize(
    ("attack", "reasons"),
    [
        ("uncovering", {"NOTHING"}),
        ("remounting", {"EPERM", "EACCES"}),
        ("rewriting", {"EPERM", "EACCES"}),
        ("joining", {"EPERM", "EACCES"}),
        ("looking", {"FEW"}),
    ],
)
def test_a_hostile_zygote_gets_no_further_than_its_forks(
    attack: str, reasons: set[str], setting: str, report: dict[str, Any]
) -> None:
    if "forked" not in setting:
        pytest.skip("there is no zygote in this setting")
    assert report["hostile"][attack] in reasons, report["hostile"]


# ---------------------------------------------------------------- the controls


@pytest.fixture(scope="module")
def outside(bait: Bait, ground: Path) -> Generator[dict[str, Any]]:
    """The same facts, for the same scripts, on this side of the wall."""
    import socket  # noqa: PLC0415 - the listeners live as long as the module's tests

    state = state_for("control", ground)
    (state / "state.sqlite").write_text("state")
    sentinel = subprocess.Popen(["sleep", "119.25"], stdin=subprocess.DEVNULL)
    abstract = f"headstart-control-{os.getpid()}"
    with (
        socket.socket(socket.AF_UNIX) as control,
        socket.socket(socket.AF_UNIX) as named,
        socket.create_server(("127.0.0.1", 0)) as loopback,
    ):
        control.bind(str(state / "control.sock"))
        named.bind("\0" + abstract)
        control.listen()
        named.listen()
        yield {
            **bait.facts,
            "prefix": str(install_prefix(ground / "prefix", os.geteuid())),
            "state": str(state),
            "abstract": abstract,
            "port": loopback.getsockname()[1],
            "sentinel": sentinel.pid,
            "driver": os.getpid(),
            "limits": True,
            "forked": False,
            "secret": "secret",
            "victim_sleeps": "119.25",
            "namespaces": {
                k: str(Path(f"/proc/self/ns/{k}").readlink())
                for k in ("mnt", "pid", "ipc", "uts", "user", "net", "cgroup")
            },
        }
        sentinel.kill()
        sentinel.wait()


@by_id
def test_the_same_attack_gets_through_outside(attack: Attack, outside: dict[str, Any]) -> None:
    if os.geteuid() != 0:
        pytest.skip("the controls need root: much of this is denied to an ordinary user anyway")
    script = (PRELUDE + (attack.control or attack.script)).replace("@FACTS@", repr(json.dumps(outside)))
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.startswith("GOT"), (done.stdout, done.stderr[-1000:])


# ---------------------------------------------------------------- cloud metadata

METADATA = [
    Attack(
        id=f"cloud metadata at {address}",
        script=(
            f"s = socket.socket(socket.AF_INET{'6' * (':' in address)}); s.settimeout(3)\n"
            f"attempt(lambda: s.connect(({address!r}, 80)))"
        ),
        network="host",
        reasons=DENIED,
        weaker="cloud metadata",
    )
    for address in ("169.254.169.254", "169.254.170.2", "100.100.100.200", "fd00:ec2::254", "::ffff:169.254.169.254")
]
REACHABLE = Attack(
    id="what is no metadata",
    script="s = socket.socket(); s.settimeout(3); attempt(lambda: s.connect(('10.1.2.3', 80)))",
    network="host",
    reasons=DENIED,
)


@pytest.fixture(scope="module")
def cloud(bait: Bait, ground: Path) -> dict[str, Any]:
    """The attacks in a network namespace of our own, where we are the metadata service."""
    attacks = [{"id": a.id, "script": PRELUDE + a.script, "network": a.network} for a in [*METADATA, REACHABLE]]
    state = state_for("root", ground)
    return run_driver("root", order_for(state, bait, attacks, private_network=True))


@pytest.mark.parametrize("attack", METADATA, ids=lambda attack: attack.id)
def test_cloud_metadata_is_out_of_reach_on_the_hosts_network(attack: Attack, cloud: dict[str, Any]) -> None:
    if attack.weaker is not None and any(attack.weaker in line for line in cloud["weaker"]):
        pytest.skip(f"admitted: {cloud['weaker']}")
    assert outcome(cloud["results"][attack.id]) in attack.reasons, cloud["results"][attack.id]


def test_the_rest_of_the_hosts_network_is_not(cloud: dict[str, Any]) -> None:
    assert outcome(cloud["results"][REACHABLE.id]).startswith("GOT"), cloud["results"][REACHABLE.id]


def test_who_cannot_be_kept_from_cloud_metadata_is_told_so(report: dict[str, Any], user: str) -> None:
    if user == "ordinary":
        assert any("cloud metadata" in line for line in report["weaker"]), report["weaker"]
