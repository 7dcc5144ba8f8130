"""The local backend, as root and (from root, or by itself) as an ordinary user."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from tests.machine import as_root_of_namespaces

from headstart.backends.contract import (
    Command,
    Identity,
    Leftovers,
    Mount,
    MountMode,
    Network,
    Prepared,
)
from headstart.backends.local import LocalBackend, open_local_backend
from headstart.backends.spawner.guest import processes, syscalls
from headstart.errors import BackendError, BackendUnavailable
from headstart.ids import SandboxId

from .driving import (
    ENV,
    as_root,
    as_zygote,
    backend_in,
    output,
    sandbox_in,
    shell,
    template,
)

pytestmark = pytest.mark.anyio


# ---------------------------------------------------------------- what a sandbox is


async def test_a_sandbox_has_its_own_processes_hostname_and_network(tmp_path: Path) -> None:
    identity = Identity(sandbox=SandboxId("sb_1"), hostname="mine", env={"WHOSE": "its own"})
    async with sandbox_in(tmp_path, identity=identity) as sandbox:
        assert await output(sandbox, "ls /proc | grep -c '^[0-9]'") in {"3", "4"}  # init, sh, ls, grep
        assert await output(sandbox, "hostname") == "mine"
        assert await output(sandbox, "cat /proc/net/dev | grep -c :") == "1"
        assert await output(sandbox, "echo $WHOSE") == ""  # secrets are the entry command's
        assert await output(sandbox, "pwd") == "/home/sandbox"


async def test_a_sandbox_is_an_ordinary_user_without_capabilities(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        status = await output(sandbox, "cat /proc/self/status")
        assert await output(sandbox, "id -u; id -g") == "1000\n1000"
    assert set(re.findall(r"^Cap\w+:\s+(\w+)", status, re.MULTILINE)) == {"0" * 16}
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status


_LAST_WORDS = shell("trap 'echo bye > /tmp/said; exit' TERM; cat > /dev/null; echo bye > /tmp/said")


@pytest.mark.parametrize("forked", [False, True], ids=["cold", "forked"])
@pytest.mark.parametrize(
    ("mode", "network", "said"),
    [
        (MountMode.READ_ONLY, Network.NONE, ""),
        (MountMode.OVERLAY, Network.NONE, ""),
        (MountMode.READ_WRITE, Network.NONE, "bye"),
        (MountMode.READ_ONLY, Network.HOST, "bye"),
    ],
    ids=["read-only", "overlay", "read-write", "network"],
)
async def test_only_a_command_that_reaches_out_is_given_time_to_end(
    mode: MountMode, network: Network, said: str, *, forked: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    plain = template(Mount(source=folder, target=folder, mode=mode), network=network, command=_LAST_WORDS)
    async with sandbox_in(tmp_path / "state", as_zygote(plain) if forked else plain) as sandbox:
        async with sandbox.attach():
            pass
        assert await output(sandbox, "cat /tmp/said 2> /dev/null || true") == said


def test_a_socket_that_is_mounted_reaches_out_however_it_is_mounted(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert template(Mount(source=path, target=path)).reaches_out


async def test_nothing_of_the_host_shows_but_system_folders_and_mounts(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("do not read")
    async with sandbox_in(tmp_path / "state") as sandbox:
        assert set((await output(sandbox, "ls -A /")).split()) <= {
            ".headstart", "bin", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32",
            "mnt", "opt", "proc", "run", "sbin", "srv", "tmp", "usr", "var",
        }  # fmt: skip
        assert await output(sandbox, "ls -A /opt /srv /mnt /run | grep -v : | tr -d '\\n'") == ""
        assert await output(sandbox, "ls -A /home") == "sandbox"
        for path in (str(secret), "/etc/shadow", "/root", str(tmp_path), "/sys"):
            assert (await sandbox.run(shell(f"cat {path} || ls {path}"))).status.code != 0, path


async def test_the_service_shows_neither_by_its_arguments_nor_by_its_descriptors(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        assert await output(sandbox, "tr -d '\\0' < /proc/1/cmdline") == "headstart-init"
        for path in ("/proc/1/environ", "/proc/1/fd", "/proc/1/root/", "/proc/1/cwd/", "/proc/1/mem"):
            assert (await sandbox.run(shell(f"ls {path} && cat {path}"))).status.code != 0, path


async def test_system_folders_are_read_only_and_private_ones_writable(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        for path in ("/usr/x", "/etc/x", "/x", "/dev/x", "/var/lib/x"):
            assert (await sandbox.run(shell(f"touch {path}"))).status.code != 0, path
        assert (
            await output(sandbox, "touch ~/new /tmp/new /var/tmp/new /dev/shm/new && ls -A ~ /tmp | grep -c new") == "2"
        )


async def test_two_sandboxes_share_nothing(tmp_path: Path) -> None:
    async with backend_in(tmp_path) as backend:
        prepared = await backend.prepare(template())
        first, second = [await backend.start(prepared, Identity(sandbox=SandboxId(name))) for name in ("sb_1", "sb_2")]
        await output(first, "touch ~/new /tmp/new /dev/shm/new")
        assert await output(second, "ls -A ~ /tmp /dev/shm | grep -c new || true") == "0"
        await prepared.aclose()
        assert await output(second, "echo lives on") == "lives on"
        await first.aclose()
        await second.aclose()
        assert await backend.leftovers() == Leftovers()


async def test_names_without_a_network_and_a_terminal_work(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        assert await output(sandbox, "getent hosts localhost | head -1 | tr -s ' '") in {
            "127.0.0.1 localhost sandbox", "::1 localhost ip6-localhost ip6-loopback",
        }  # fmt: skip
        assert "pts" in await output(sandbox, "script -qec tty /dev/null </dev/null")


async def test_all_is_forked_from_a_spawner_with_one_thread_and_nothing_from_the_service(tmp_path: Path) -> None:
    before = set(processes.children(os.getpid()))
    async with backend_in(tmp_path) as backend:
        for number, given in enumerate((template(), as_zygote(template()))):
            prepared = await backend.prepare(given)
            sandbox = await backend.start(prepared, Identity(sandbox=SandboxId(f"sb_{number}")))
            await output(sandbox, "true")
            (spawner,) = set(processes.children(os.getpid())) - before
            assert processes.is_below(sandbox.pid, spawner)
            assert len(threads_of(spawner)) == 1
            await sandbox.aclose()
            await prepared.aclose()


def threads_of(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


# ---------------------------------------------------------------- ends


async def test_a_daemon_goes_with_its_sandbox(tmp_path: Path) -> None:
    async with backend_in(tmp_path) as backend:
        prepared = await backend.prepare(template())
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("sb_1")))
        await output(sandbox, "(setsid sleep 1000 </dev/null >/dev/null 2>&1 &)")
        assert (await backend.leftovers()).processes == 2
        await sandbox.aclose()
        assert await backend.leftovers() == Leftovers()


async def test_when_a_sandbox_dies_it_says_so(tmp_path: Path) -> None:
    async with backend_in(tmp_path) as backend:
        prepared = await backend.prepare(template())
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("sb_1")))
        async with sandbox.attach() as stdio:
            os.kill(sandbox.pid, 9)
            with anyio.fail_after(30), pytest.raises(BackendError, match="gone"):
                await stdio.wait()
        with pytest.raises(BackendError, match="gone"):
            await sandbox.run(shell("true"))
        await sandbox.aclose()
        assert await backend.leftovers() == Leftovers()


async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    async with backend_in(tmp_path) as backend:
        prepared = await backend.prepare(template())
        for step in range(12):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_cancel_after_steps, scope, step)
                    sandbox = await backend.start(prepared, Identity(sandbox=SandboxId(f"sb_{step}")))
                    await sandbox.aclose()
                    tasks.cancel_scope.cancel()
        assert await backend.leftovers() == Leftovers()


async def _cancel_after_steps(scope: anyio.CancelScope, steps: int) -> None:
    for _ in range(steps):
        await anyio.lowlevel.checkpoint()
    scope.cancel()


async def test_thirty_starts_at_once_all_succeed(tmp_path: Path) -> None:
    async with backend_in(tmp_path) as backend:
        prepared = await backend.prepare(template())
        answers: list[str] = []
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(30):
                    tasks.start_soon(_start_and_ask, backend, prepared, number, answers)
        assert sorted(answers, key=int) == [str(number) for number in range(30)]
        assert await backend.leftovers() == Leftovers()


async def _start_and_ask(backend: LocalBackend, prepared: Prepared, number: int, answers: list[str]) -> None:
    sandbox = await backend.start(prepared, Identity(sandbox=SandboxId(f"sb_{number}")))
    answers.append(await output(sandbox, f"echo {number}"))
    await sandbox.aclose()


@pytest.mark.parametrize("also_the_spawner", [False, True])
async def test_the_service_killed_in_the_middle_of_a_load_leaves_nothing(
    tmp_path: Path, also_the_spawner: bool
) -> None:
    async with backend_in(tmp_path / "probe"):
        pass
    marker = f"{876_000_000 + os.getpid()}"
    service = Path(__file__).parents[1] / "loaded_service.py"
    command = [sys.executable, str(service), "local", str(tmp_path), marker]
    async with await anyio.open_process(command, stderr=None) as process:
        assert process.stdout is not None
        with anyio.fail_after(30):
            assert b"loaded" in await process.stdout.receive()
        assert _processes_with(marker)
        spawners = processes.children(process.pid)
        process.kill()
        for spawner in spawners if also_the_spawner else []:
            os.kill(spawner, 9)
        with anyio.fail_after(30):
            while _processes_with(marker):  # noqa: ASYNC110  the kernel tells no event
                await anyio.sleep(0.01)
    async with backend_in(tmp_path) as backend:
        with anyio.fail_after(30):  # the killed one's spawner may still be removing its own
            while len(list((tmp_path / "local").glob("run-*"))) > 1:  # noqa: ASYNC110  the kernel tells no event
                await anyio.sleep(0.01)
        assert await backend.leftovers() == Leftovers()
        own = next((tmp_path / "local").glob("run-*")).name
    assert not [group for group in _groups_of(spawners) if own not in group]


def _processes_with(marker: str) -> list[str]:
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in line and b"loaded_service" not in line:
                found.append(entry.name)
    return found


def _groups_of(spawners: list[int]) -> list[str]:
    """Control groups of runs of these spawners, wherever they were made."""
    names = {f"-{spawner}-" for spawner in spawners}
    found = subprocess.run(
        ["find", "/sys/fs/cgroup", "-maxdepth", "6", "-name", "headstart-run-*"], capture_output=True, check=False
    )
    return [path for path in found.stdout.decode().split() if any(name in path for name in names)]


# ---------------------------------------------------------------- who may


@as_root_of_namespaces
async def test_all_of_this_holds_for_an_ordinary_user(tmp_path: Path) -> None:
    helper = Path(__file__).with_name("as_ordinary_user.py")
    tests = [
        __file__,
        *(str(helper.with_name(name)) for name in ("test_layers.py", "test_limits.py", "test_mounts.py")),
    ]
    command = [sys.executable, str(helper), "-rs", "-p", "no:cacheprovider", *tests]
    done = await anyio.run_process(
        command, check=False, cwd=Path(__file__).parents[3], env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    if b"the local backend cannot run here" in done.stdout:
        pytest.skip("an ordinary user gets no user namespaces here")
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert done.stdout.split()[0].count(b".") > 15


async def test_a_machine_that_cannot_is_told_what_is_missing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(BackendUnavailable, match=r"Not a directory|File exists"):
        async with open_local_backend(blocked):
            pass


async def test_the_services_own_state_shows_in_no_mount(mappable_path: Path) -> None:
    state = mappable_path / "state"
    mounts = [
        Mount(source=mappable_path, target=Path("/seen"), mode=MountMode.READ_ONLY),
        Mount(source=mappable_path, target=Path("/covered"), mode=MountMode.OVERLAY),
        Mount(source=mappable_path, target=Path("/tmp/seen"), mode=MountMode.READ_WRITE),
    ]
    async with sandbox_in(state, template(*mounts)) as sandbox:
        (state / "secret").write_text("x")
        assert await output(sandbox, "ls -A /seen/state /covered/state /tmp/seen/state | grep -v : | tr -d '\\n'") == ""
        assert await output(sandbox, "ls -A /seen /covered /tmp/seen | grep -c state") == "3"
        for folder in ("/seen/state", "/covered/state", "/tmp/seen/state"):
            assert (await sandbox.run(shell(f"touch {folder}/made"))).status.code != 0, folder


async def test_the_services_own_state_shows_in_no_mount_that_leads_to_it(mappable_path: Path) -> None:
    state = mappable_path / "real" / "state"
    state.mkdir(parents=True)
    (mappable_path / "link").symlink_to("real")
    for source in (mappable_path / "link", mappable_path / "real"):
        mount = Mount(source=source, target=Path("/seen"), mode=MountMode.READ_WRITE)
        async with sandbox_in(mappable_path / "link" / "state", template(mount)) as sandbox:
            (state / "token").write_text("x")
            assert await output(sandbox, "ls -A /seen /seen/state | tr -d '\\n'") == "/seen:state/seen/state:"


@pytest.mark.parametrize("mode", list(MountMode))
async def test_what_is_in_the_services_own_state_cannot_be_mounted(mappable_path: Path, mode: MountMode) -> None:
    state = mappable_path / "state"
    (state / "stores").mkdir(parents=True)
    (mappable_path / "link").symlink_to(state)
    async with backend_in(state) as backend:
        for source in (state, state / "stores", mappable_path / "link", mappable_path / "link" / "stores"):
            with pytest.raises(BackendError, match="Headstart's own state"):
                await backend.prepare(template(Mount(source=source, target=Path("/seen"), mode=mode)))


async def test_on_the_hosts_network_abstract_sockets_of_the_host_are_out_of_reach(tmp_path: Path) -> None:
    if not syscalls.can_scope():
        pytest.skip("Landlock of this kernel has no scopes (Linux 6.12)")
    name = f"headstart-test-{os.getpid()}"
    reach = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
    program = Command(argv=("/usr/bin/python3", "-c", reach), env=ENV)
    if shutil.which(program.argv[0]) is None:
        pytest.skip("no Python among the system folders")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        async with sandbox_in(tmp_path, template(network=Network.HOST)) as sandbox:
            done = await sandbox.run(program)
    assert b"PermissionError" in done.stderr


@as_root
async def test_a_mount_whose_ids_cannot_be_mapped_is_told_as_weaker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unmappable = Path("/sys/kernel")  # sysfs has no id-mapped mounts
    shown = template(Mount(source=unmappable, target=Path("/shown")))
    async with backend_in(tmp_path) as backend:
        before = backend.capabilities.weaker
        for _ in range(2):
            await (await backend.prepare(shown)).aclose()
        [told] = [line for line in backend.capabilities.weaker if line not in before]
    assert told.startswith("/sys/kernel: ids cannot be mapped (")
    assert caplog.messages == [told]


@as_root
async def test_system_folders_whose_ids_cannot_be_mapped_are_no_weaker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headstart.backends.local.layout._SYSTEM_FOLDERS", ("/usr", "/bin", "/sys/kernel"))
    async with backend_in(tmp_path) as backend:
        await (await backend.prepare(template())).aclose()
        assert not [line for line in backend.capabilities.weaker if "ids cannot be mapped" in line]


async def test_on_the_hosts_network_the_services_own_port_is_refused_and_others_are_not(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as own, socket.create_server(("127.0.0.1", 0)) as other:
        reach = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)"
        async with backend_in(tmp_path, own_ports=(own.getsockname()[1],)) as backend:
            if any("cloud metadata" in line for line in backend.capabilities.weaker):
                pytest.skip("connections cannot be filtered here (that takes root and cgroup v2)")
            if shutil.which("/usr/bin/python3") is None:
                pytest.skip("no Python among the system folders")
            prepared = await backend.prepare(template(network=Network.HOST))
            sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("sb_1")))
            done = {
                name: await sandbox.run(
                    Command(argv=("/usr/bin/python3", "-c", reach, str(listener.getsockname()[1])), env=ENV)
                )
                for name, listener in {"own": own, "other": other}.items()
            }
            await sandbox.aclose()
            await prepared.aclose()
    assert (done["other"].status.code, done["other"].stderr) == (0, b"")
    assert b"PermissionError" in done["own"].stderr


async def test_parked_processes_that_died_are_replaced(tmp_path: Path) -> None:
    async with backend_in(tmp_path) as backend:
        prepared = await backend.prepare(template())
        first = await backend.start(prepared, Identity(sandbox=SandboxId("sb_1")))
        parked = {pid for pid in processes.descendants(os.getpid()) if _is_init(pid)} - {first.pid}
        for pid in parked:
            os.kill(pid, 9)
        with anyio.fail_after(30):
            while parked & set(processes.descendants(os.getpid())):  # noqa: ASYNC110  the kernel tells no event
                await anyio.sleep(0.01)
        for number in range(6):
            sandbox = await backend.start(prepared, Identity(sandbox=SandboxId(f"sb_again_{number}")))
            assert await output(sandbox, "echo fine") == "fine"
            await sandbox.aclose()
        await first.aclose()
        assert await backend.leftovers() == Leftovers()


def _is_init(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"headstart-init")
