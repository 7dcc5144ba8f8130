"""Run attacks inside sandboxes of the local backend, as whatever user this process is.

Stand-alone: `python driver.py < order`, one JSON object in, one out. The order holds
`state` (an empty directory of ours), `facts` (what the attacks may know), `attacks` (`id`,
`script`, `network`), `forked` (whether sandboxes are forks of one zygote, whose preloaded
module `hostile` attacks too), `stored` (whether each has its files in a store), `kept` (what has been kept of sandboxes before:
`checkpointed`, `branch`, and where the attackers are programs that can be kept, `kernel` or `rolled back kernel`), and
`private_network` (put metadata addresses on a loopback of our own).

Beside the attacker there is a victim: another sandbox with a file and a process of its own,
a sentinel process outside, and listeners on the host. What became of them is reported too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from headstart.backends.contract import (
    REVIVED_FROM,
    ByteStreams,
    Checkpoint,
    Command,
    ExitStatus,
    ForkableProcess,
    Identity,
    Limits,
    Mount,
    MountMode,
    Network,
    Preload,
    Prepared,
    Processes,
    ProcessImage,
    RunningSandbox,
    Template,
)
from headstart.backends.local import LocalBackend, open_local_backend
from headstart.errors import BackendError
from headstart.ids import SandboxId

PYTHON = "/usr/bin/python3"
PATIENCE_S = 20
DRAINED_S = 0.5
LIMITS = Limits(memory_bytes=150_000_000, pids=60, scratch_bytes=30_000_000)
SECRET = "the victim's secret"
VICTIM_SLEEPS = "119.25"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What is on the host for the attacks to reach for."""

    facts: dict[str, Any]
    sentinel: subprocess.Popen[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What branches begin with: a sandbox, its state, and a program in it, if it was kept, too."""

    sandbox: RunningSandbox
    checkpoint: Checkpoint
    image: ProcessImage | None = None


def main() -> None:
    order = json.load(sys.stdin)
    if order["private_network"]:
        child = _metadata_child()
        child.private_network()
        listening = child.listen()
        sys.stderr.write(f"{len(listening)} listeners\n")
    json.dump(anyio.run(_serve, order), sys.stdout)


async def _serve(order: dict[str, Any]) -> dict[str, Any]:
    state = Path(order["state"])
    with _surroundings(state) as around:
        async with open_local_backend(state) as backend:
            if "kernel" in order["kept"] and backend.capabilities.processes is Processes.NONE:
                return {"skipped": "no programs are kept here: nobody may trace processes"}
            return await _attack(backend, around, order)


async def _attack(backend: LocalBackend, around: Surroundings, order: dict[str, Any]) -> dict[str, Any]:
    victim = await _start(backend, "victim", order)
    async with victim.attach() as alive:
        facts = {
            **order["facts"],
            **around.facts,
            **await _let_write(victim),
            "limits": backend.capabilities.limits,
            "forked": order["forked"],
        }
        results = {attack["id"]: await _try(backend, attack, facts, order) for attack in order["attacks"]}
        return {
            "results": results,
            "weaker": list(backend.capabilities.weaker),
            "limits": backend.capabilities.limits,
            "sentinel_alive": around.sentinel.poll() is None,
            "hostile": _hostile_outcomes(Path(order["writable"])),
            "victim_alive": not await _ends_now(alive),
            "prefix": await _spoil(backend, victim, order),
            "victim_said": (await _python(victim, "print(open('/tmp/secret').read())"))["said"],
        }


async def _try(
    backend: LocalBackend, attack: dict[str, Any], facts: dict[str, Any], order: dict[str, Any]
) -> dict[str, Any]:
    sandbox = await _start(backend, f"attacker-{attack['id']}", order, Network(attack["network"]))
    script = attack["script"].replace("@FACTS@", repr(json.dumps(facts)))
    try:
        if order["kept"] == "kernel":
            async with sandbox.start_forkable(Command(argv=(PYTHON, "-I", "-c", script))) as kernel:
                return await _said_by(kernel)
        image = (await _origin(backend, order, Network(attack["network"]))).image if order["kept"] in BRANCHES else None
        if image is not None:
            async with sandbox.revive(image) as kernel:
                await kernel.streams.stdin.send(script.encode())
                await kernel.streams.stdin.aclose()
                return await _said_by(kernel)
        return await _python(sandbox, script)
    finally:
        await sandbox.aclose()


async def _start(
    backend: LocalBackend, name: str, order: dict[str, Any], network: Network = Network.NONE
) -> RunningSandbox:
    prepared, identity = await _prepared(backend, order, network), Identity(sandbox=SandboxId(name))
    if order["kept"] in BRANCHES:
        return await _branch(await _origin(backend, order, network), identity)
    if order["stored"]:
        store = "".join(letter if letter.isalnum() else "-" for letter in name)
        return await (await backend.stores.open(store, limits=LIMITS)).start(prepared, identity)
    sandbox = await backend.start(prepared, identity)
    if order["kept"] == "checkpointed":
        await sandbox.checkpoint()
    return sandbox


BRANCHES = {"branch", "rolled back kernel"}
KERNEL = f"""
import os, signal
os.chdir("/")
os.read(0, 1)
os.kill(os.getpid(), signal.SIGTRAP)
first = {REVIVED_FROM} if os.fork() == 0 else 0
for number in range(3 if first else 0): os.dup2(number + first, number); os.close(number + first)
parts = list(iter(lambda: os.read(0, 1 << 16), b""))
exec(b"".join(parts)) if first else None
"""
"""A program that is kept when it is told to, and runs what it is given where it goes on."""


async def _origin(backend: LocalBackend, order: dict[str, Any], network: Network) -> Origin:
    """Start what all sandboxes of one network are branches of, so that they are siblings."""
    known: dict[Network, Origin] = order.setdefault("origins", {})
    if network not in known:
        prepared = await _prepared(backend, order, network)
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId(f"origin-{network.value}")))
        image = await _kept_in(sandbox) if order["kept"] == "rolled back kernel" else None
        known[network] = Origin(sandbox=sandbox, checkpoint=await sandbox.checkpoint(), image=image)
    return known[network]


async def _branch(origin: Origin, identity: Identity) -> RunningSandbox:
    """Begin a branch, as soon as there is room: what one before has filled is removed when nobody waits for that."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            try:
                return await origin.sandbox.fork(origin.checkpoint, identity)
            except BackendError as error:
                if "No space left" not in str(error):
                    raise
                await anyio.sleep(0.01)


async def _kept_in(sandbox: RunningSandbox) -> ProcessImage:
    async with sandbox.start_forkable(Command(argv=(PYTHON, "-I", "-c", KERNEL))) as kernel:

        async def ask() -> bool:
            await kernel.streams.stdin.send(b".")
            return True

        image = await kernel.keep(ask)
        assert image is not None
        await image.settled()
        return image


async def _said_by(kernel: ForkableProcess) -> dict[str, Any]:
    """As `_python`, of a program that is there already. What it has left running may keep its pipes open."""
    said: list[list[bytes]] = [[], []]
    try:
        with anyio.fail_after(PATIENCE_S):
            status = await kernel.streams.wait()
    except TimeoutError:
        return _told(ExitStatus(), "TIMED OUT", "")
    except BackendError as error:
        return _told(ExitStatus(), f"LOST {error}", "")
    for stream, chunks in zip((kernel.streams.stdout, kernel.streams.stderr), said, strict=True):
        with anyio.move_on_after(DRAINED_S):
            async for chunk in stream:
                chunks.append(chunk)
    return _told(status, *(b"".join(chunks).decode().strip()[:2000] for chunks in said))


async def _prepared(backend: LocalBackend, order: dict[str, Any], network: Network) -> Prepared:
    """Prepare a template; forks of one network share their zygote, so that they are siblings."""
    known: dict[Network, Prepared] = order.setdefault("prepared", {})
    if network not in known or not order["forked"]:
        known[network] = await backend.prepare(_template(order, network))
    return known[network]


def _template(order: dict[str, Any], network: Network) -> Template:
    entry = ("/bait/become.py",) if order["forked"] else ()
    modules = ("hostile",) if order["forked"] else ()
    argv = ("sleep", VICTIM_SLEEPS)
    preload = Preload(interpreter=PYTHON, modules=modules, entry=entry, args=argv) if order["forked"] else None
    return Template(
        name="escape",
        preload=preload,
        command=Command(
            argv=(PYTHON, *entry, *argv) if order["forked"] else argv,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": "/bait"},
        ),
        mounts=(
            Mount(source=Path(order["bait"]), target=Path("/bait"), mode=MountMode.READ_ONLY),
            Mount(source=Path(order["writable"]), target=Path("/writable"), mode=MountMode.READ_WRITE),
            Mount(source=Path(order["prefix"]), target=Path("/prefix"), mode=MountMode.OVERLAY),
            Mount(source=Path(order["state"]).parent, target=Path("/parent"), mode=MountMode.READ_ONLY),
        ),
        limits=LIMITS,
        network=network,
    )


async def _python(sandbox: RunningSandbox, script: str) -> dict[str, Any]:
    try:
        done = await sandbox.run(Command(argv=(PYTHON, "-I", "-c", script)), timeout_s=PATIENCE_S)
    except TimeoutError:
        return {"said": "TIMED OUT", "code": None, "signal": None, "out_of_memory": False, "stderr": ""}
    except BackendError as error:
        return {"said": f"LOST {error}", "code": None, "signal": None, "out_of_memory": False, "stderr": ""}
    return _told(done.status, done.stdout.decode().strip(), done.stderr.decode()[-2000:])


def _told(status: ExitStatus, said: str, stderr: str) -> dict[str, Any]:
    return {
        "said": said,
        "code": status.code,
        "signal": status.signal,
        "out_of_memory": status.out_of_memory,
        "stderr": stderr,
    }


@contextmanager
def _surroundings(state: Path) -> Generator[Surroundings]:
    """Make a sentinel process, a control socket in the state directory, and listeners."""
    sentinel = subprocess.Popen(["sleep", "120"], stdin=subprocess.DEVNULL)
    (state / "state.sqlite").write_text("headstart's own state")
    (state / "state.sqlite").chmod(0o600)
    abstract = f"\0headstart-escape-{os.getpid()}"
    with (
        _listen(socket.AF_UNIX, str(state / "control.sock")),
        _listen(socket.AF_UNIX, abstract),
        _listen(socket.AF_INET, ("127.0.0.1", 0)) as loopback,
        (state / "leaky").open("w+") as leaky,
    ):
        os.set_inheritable(leaky.fileno(), True)
        try:
            yield Surroundings(
                sentinel=sentinel,
                facts={
                    "state": str(state),
                    "abstract": abstract[1:],
                    "port": loopback.getsockname()[1],
                    "sentinel": sentinel.pid,
                    "driver": os.getpid(),
                    "namespaces": {kind: str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in NAMESPACES},
                },
            )
        finally:
            sentinel.kill()
            sentinel.wait()


NAMESPACES = ("mnt", "pid", "ipc", "uts", "user", "net", "cgroup")


def _listen(family: int, address: Any) -> socket.socket:
    server = socket.socket(family)
    server.bind(address)
    server.listen(16)
    return server


async def _let_write(victim: RunningSandbox) -> dict[str, Any]:
    """Let the victim write a secret wherever it may."""
    places = "('/tmp', os.path.expanduser('~'), '/dev/shm', '/var/tmp', '/prefix')"
    script = f"import os\nfor place in {places}: open(place + '/secret', 'w').write({SECRET!r})"
    told = await _python(victim, script)
    return {"secret": SECRET, "victim_sleeps": VICTIM_SLEEPS, "victim_wrote": told["stderr"]}


SPOILING = """
import os, shutil
os.chdir('/prefix')
open('given', 'a').write('spoilt'); os.rename('kept/file', 'kept/moved'); shutil.rmtree('removed'); os.chmod('kept', 0o700)
open('made', 'w').write('made'); os.truncate('setuid-id', 0); os.symlink('/', 'link')
print(sorted(os.listdir('.')))
"""
LOOKING = """
import os
for folder, folders, files in sorted(os.walk({root!r})):
    for name in sorted(files):
        path = os.path.join(folder, name)
        print(os.path.relpath(path, {root!r}), os.stat(path).st_size, oct(os.stat(folder).st_mode))
"""


async def _spoil(backend: LocalBackend, victim: RunningSandbox, order: dict[str, Any]) -> dict[str, str]:
    """Let one sandbox do to its install prefix what it can; tell how that looks to the others."""
    vandal = await _start(backend, "vandal", order)
    done = await _python(vandal, SPOILING)
    later = await _start(backend, "later", order)
    looks = {
        name: (await _python(sandbox, LOOKING.format(root="/prefix")))["said"]
        for name, sandbox in (("vandal", vandal), ("victim", victim), ("later", later))
    }
    here = Command(argv=(PYTHON, "-I", "-c", LOOKING.format(root=order["prefix"])))
    outside = await anyio.run_process(here.argv)
    await vandal.aclose()
    await later.aclose()
    return {**looks, "spoiling": done["said"] + done["stderr"], "host": outside.stdout.decode().strip()}


def _hostile_outcomes(writable: Path) -> dict[str, str]:
    """Return what the zygote's module reported, if there was one."""
    report = writable / "hostile.json"
    return json.loads(report.read_text()) if report.exists() else {}


async def _ends_now(streams: ByteStreams) -> bool:
    with anyio.move_on_after(0.1):
        await streams.wait()
        return True
    return False


def _metadata_child() -> Any:
    path = Path(__file__).parents[1] / "backends" / "local" / "metadata_child.py"
    spec = importlib.util.spec_from_file_location("metadata_child", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
