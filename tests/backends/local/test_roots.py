"""Templates with a root of their own, which somebody has made who means harm."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.machine import may_make_namespaces

from headstart.backends.contract import Identity, Mount, MountMode, Network, Template
from headstart.errors import BackendError
from headstart.ids import SandboxId
from headstart.testing.roots import make_root

from .driving import ROOT, as_root, as_zygote, backend_in, output, sandbox_in, template

pytestmark = pytest.mark.anyio

WORKS = (
    "id -un; cd ~ && echo x > x && echo y > /tmp/y && echo z > /var/tmp/z && echo w > /dev/shm/w && echo > /dev/null"
    " && cat x /tmp/y /proc/self/comm && readlink /proc/self/cwd"
)
WORKED = "sandbox\nx\ny\ncat\n/home/sandbox"


class Hostile:
    """A root in the making, and a folder outside that stays as it is."""

    def __init__(self, path: Path) -> None:
        self.root = make_root(path / "root")
        self.outside = path / "outside"
        self.outside.mkdir()
        self.outside.chmod(0o777)
        (self.outside / "canary").write_text("as it was")

    @property
    def template(self) -> Template:
        return replace(template(), root=self.root)

    def check(self) -> None:
        assert [path.name for path in self.outside.iterdir()] == ["canary"]
        assert (self.outside / "canary").read_text() == "as it was"


@pytest.fixture
def hostile(tmp_path: Path) -> Hostile:
    for folder in (tmp_path, *tmp_path.parents):  # not what keeps anybody out
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    return Hostile(tmp_path)


def as_link_out(place: Path, outside: Path) -> None:
    place.symlink_to(outside)


def as_climbing_link(place: Path, outside: Path) -> None:
    place.symlink_to("../" * 20 + str(outside)[1:])


def as_link_to_itself(place: Path, outside: Path) -> None:
    place.symlink_to(place.name)


def as_link_to_a_device(place: Path, outside: Path) -> None:
    place.symlink_to("/dev/null")


def as_file(place: Path, outside: Path) -> None:
    place.write_text("a file")


def as_folder(place: Path, outside: Path) -> None:
    (place / "with/something").mkdir(parents=True)
    place.chmod(0o700)


def as_fifo(place: Path, outside: Path) -> None:
    os.mkfifo(place)


@pytest.mark.parametrize(
    "make",
    [as_link_out, as_climbing_link, as_link_to_itself, as_link_to_a_device, as_file, as_folder, as_fifo],
    ids=lambda make: make.__name__,
)
async def test_a_root_works_whatever_is_where_we_put_things(
    make: Callable[[Path, Path], None], hostile: Hostile, tmp_path: Path
) -> None:
    async with backend_in(tmp_path / "state") as backend:
        for number, name in enumerate(PLACES):
            root = tmp_path / f"root-{number}"
            shutil.copytree(hostile.root, root, symlinks=True)
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            make(root / name, hostile.outside)
            mount = Mount(source=hostile.outside, target=Path("/srv/mounted/here"))
            prepared = await backend.prepare(replace(template(mount), root=root, network=Network.HOST))
            sandbox = await backend.start(prepared, identity(number))
            try:
                assert await output(sandbox, WORKS) == WORKED, name
                assert await output(sandbox, "cat /srv/mounted/here/canary; ls -A ~ /tmp") == (
                    "as it was/home/sandbox:\nx\n\n/tmp:\ny"
                ), name
                assert "sandbox" in await output(sandbox, "cat /etc/passwd /etc/hosts /etc/group"), name
                assert await output(sandbox, "ls -A /.headstart") == "closed\nempty\nplain\nproc", name
            finally:
                await sandbox.aclose()
                await prepared.aclose()
            hostile.check()


PLACES = (
    "etc",
    "etc/passwd",
    "etc/hostname",
    "etc/hosts",
    "etc/machine-id",
    "etc/resolv.conf",
    "etc/mtab",
    "tmp",
    "var",
    "var/tmp",
    "var/lib",
    "var/lib/dbus",
    "var/lib/dbus/machine-id",
    "var/run",
    "home",
    "home/sandbox",
    "proc",
    "dev",
    "dev/null",
    "dev/shm",
    "dev/pts",
    "run",
    ".headstart",
    ".headstart/closed",
    ".headstart/closed/scratch",
    ".headstart/empty",
    ".headstart/trial",
    "srv/mounted/here",
)
"""Where a tree has something of its own, or needs it."""


def identity(number: int) -> Identity:
    return Identity(sandbox=SandboxId(f"sb_{number}"))


async def test_a_mount_is_not_led_elsewhere_by_a_link_of_the_root(hostile: Hostile, tmp_path: Path) -> None:
    (hostile.root / "srv").symlink_to(hostile.outside)
    mount = Mount(source=tmp_path, target=Path("/srv/here"))
    async with backend_in(tmp_path / "state") as backend:
        with pytest.raises(BackendError, match=r"nothing can be mounted at /srv/here, because /srv is a link in"):
            await backend.prepare(replace(hostile.template, mounts=(mount,)))
    hostile.check()


async def test_no_device_of_a_root_can_be_used(hostile: Hostile, tmp_path: Path) -> None:
    if not ROOT:
        pytest.skip("needs root, to make devices")
    for name, kind, number in (
        ("null", stat.S_IFCHR, (1, 3)),
        ("mem", stat.S_IFCHR, (1, 1)),
        ("disk", stat.S_IFBLK, (254, 0)),
    ):
        os.mknod(hostile.root / name, kind | 0o666, os.makedev(*number))
        (hostile.root / name).chmod(0o666)
    (hostile.root / "dev").mkdir()
    os.mknod(hostile.root / "dev/mem", stat.S_IFCHR | 0o666, os.makedev(1, 1))
    async with sandbox_in(tmp_path / "state", hostile.template) as sandbox:
        tries = (
            "for name in null mem disk; do (cat < /$name) 2>&1; done; ls /dev/mem 2>&1; echo x > /dev/null && echo ok"
        )
        told = (await output(sandbox, tries)).split("\n")
        assert [line.rpartition(": ")[2] for line in told] == ["Permission denied"] * 3 + [
            "No such file or directory",
            "ok",
        ]


@as_root
async def test_nothing_in_a_root_runs_as_anybody_else(hostile: Hostile, tmp_path: Path) -> None:
    for name, mode in (("setuid", 0o4755), ("setgid", 0o2755)):
        shutil.copy(hostile.root / "bin/id", hostile.root / name)
        (hostile.root / name).chmod(mode)
    async with sandbox_in(tmp_path / "state", hostile.template) as sandbox:
        assert await output(sandbox, "/setuid -u; /setgid -g") == "1000\n1000"


@as_root
async def test_what_not_everybody_may_read_of_a_root_is_not_read(hostile: Hostile, tmp_path: Path) -> None:
    (hostile.root / "etc").mkdir()
    for name, owner, mode in (
        ("etc/shadow", 0, 0o640),
        ("home/alice/key", 1000, 0o600),  # who has the number that the sandbox has inside
        ("root/key", 0, 0o600),
        ("opt/other", 12345, 0o600),
    ):
        path = hostile.root / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("secret")
        path.chmod(mode)
        os.chown(path, owner, owner)
    (hostile.root / "readable").write_text("plain")
    async with sandbox_in(tmp_path / "state", hostile.template) as sandbox:
        tries = "cat /readable; for path in /etc/shadow /home/alice/key /root/key /opt/other; do (cat $path) 2>&1; done; true"
        told = (await output(sandbox, tries)).replace("plain", "plain\n").split("\n")
        assert told[0] == "plain"
        assert [line.rpartition(": ")[2] for line in told[1:]] == ["Permission denied"] * 4


async def test_a_link_to_what_the_host_has_leads_to_what_the_sandbox_has(hostile: Hostile, tmp_path: Path) -> None:
    for name, target in (
        ("a", "/etc/shadow"),
        ("b", str(hostile.outside / "canary")),
        ("c", "/proc/1/root/etc/shadow"),
    ):
        (hostile.root / name).symlink_to(target)
    async with sandbox_in(tmp_path / "state", hostile.template) as sandbox:
        assert (
            await output(sandbox, "for name in a b c; do (cat /$name) 2>/dev/null && echo read; done; echo none")
            == "none"
        )


async def test_the_services_own_state_does_not_show_in_a_root_that_holds_it(hostile: Hostile, tmp_path: Path) -> None:
    state = hostile.root / "var/lib/state"
    state.mkdir(parents=True)
    (state / "token").write_text("secret")
    (state.parent / "beside").write_text("plain")
    async with sandbox_in(state, hostile.template) as sandbox:
        assert await output(sandbox, "ls -A /var/lib /var/lib/state") == "/var/lib:\nbeside\nstate\n\n/var/lib/state:"


async def test_the_services_own_state_does_not_show_through_a_link_to_the_root(
    hostile: Hostile, tmp_path: Path
) -> None:
    state = hostile.root / "state"
    state.mkdir()
    (state / "token").write_text("secret")
    (tmp_path / "link").symlink_to(hostile.root)
    async with sandbox_in(tmp_path / "link/state", replace(template(), root=tmp_path / "link")) as sandbox:
        assert await output(sandbox, "ls -A /state; echo nothing") == "nothing"


async def test_declared_mounts_show_in_a_root_as_ever(hostile: Hostile, mappable_path: Path, tmp_path: Path) -> None:
    for name in (".", "ro", "rw", "overlay"):
        (mappable_path / name).mkdir(exist_ok=True)
        (mappable_path / name / "f").write_text(name)
        (mappable_path / name).chmod(0o777)
    mounts = tuple(
        Mount(source=mappable_path / mode.value, target=Path("/opt/app") / mode.value, mode=mode) for mode in MountMode
    )
    (hostile.root / "opt/app").mkdir(parents=True)
    (hostile.root / "opt/app/own").write_text("of the root")
    async with sandbox_in(tmp_path / "state", replace(hostile.template, mounts=mounts)) as sandbox:
        assert await output(sandbox, "cd /opt/app; cat own */f; ls") == "of the rootoverlayrorwoverlay\nown\nro\nrw"
        assert (
            await output(sandbox, "cd /opt/app; for m in *; do (echo > $m/new) 2>/dev/null && echo $m; done")
            == "overlay\nrw"
        )
    assert [(mappable_path / mode / "new").exists() for mode in ("ro", "rw", "overlay")] == [False, True, False]


async def test_a_root_that_is_not_there_is_told_with_the_cure(tmp_path: Path) -> None:
    async with backend_in(tmp_path / "state") as backend:
        for missing in (replace(template(), root=tmp_path / "gone"), replace(template(), base=tmp_path / "gone")):
            with pytest.raises(BackendError, match=r"test: .*/gone is no folder") as caught:
                await backend.prepare(missing)
            assert caught.value.hint == "build the template again"
        with pytest.raises(BackendError, match="/ is no root"):
            await backend.prepare(replace(template(), root=Path("/")))


async def test_what_is_preloaded_has_the_hosts_files(hostile: Hostile, tmp_path: Path) -> None:
    async with backend_in(tmp_path / "state") as backend:
        for template_ in (hostile.template, replace(template(), base=hostile.outside)):
            with pytest.raises(BackendError, match="what is preloaded has the host's files"):
                await backend.prepare(as_zygote(template_))


MOUNTED_IN_IT = """
import sys, anyio
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from dataclasses import replace
from tests.backends.local.driving import output, sandbox_in, template
async def main():
    async with sandbox_in(Path(sys.argv[2]), replace(template(), root=Path(sys.argv[1]))) as sandbox:
        print(await output(sandbox, "ls -A /opt"))
anyio.run(main)
"""


@as_root
def test_what_is_mounted_in_a_root_does_not_show(hostile: Hostile, tmp_path: Path) -> None:
    (hostile.root / "opt/below").mkdir(parents=True)
    mounted = f'mount -t tmpfs none {hostile.root}/opt && touch {hostile.root}/opt/mounted && exec "$@"'
    child = [sys.executable, "-c", MOUNTED_IN_IT, str(hostile.root), str(tmp_path / "state"), str(Path.cwd())]
    command = ["unshare", "--mount", "sh", "-c", mounted, "sh", *child]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("below\n", 0), done.stderr


@pytest.mark.skipif(ROOT, reason="root can leave out what is mounted there")
async def test_an_ordinary_user_is_told_of_what_is_mounted_in_a_root(tmp_path: Path) -> None:
    async with backend_in(tmp_path / "state") as backend:
        with pytest.raises(BackendError, match="something is mounted in it"):
            await backend.prepare(replace(template(), root=Path("/dev")))


IMPORTS = """
import os, sys
from headstart.backends.local.guest.kind import make_kind
kind = make_kind({"base": sys.argv[1], "cgroups": [], "privileged": os.geteuid() == 0}, 0)
try:
    import this
    print("imported", this)
except ImportError as error:
    print(type(error).__name__)
kind.close()
"""


@pytest.mark.skipif(not may_make_namespaces(), reason="the local backend cannot run here: no namespaces")
def test_what_stands_in_a_strangers_root_imports_nothing(tmp_path: Path) -> None:
    """Forks of the spawner have all its rights for a while there, and its /usr may have any Python modules."""
    command = [sys.executable, "-c", IMPORTS, str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "ModuleNotFoundError\n"


async def test_a_root_tells_no_machine_id_of_its_own_anywhere(hostile: Hostile, tmp_path: Path) -> None:
    (hostile.root / "etc").mkdir(exist_ok=True)
    (hostile.root / "etc/machine-id").write_text("f" * 32 + "\n")
    (hostile.root / "var/lib/dbus").mkdir(parents=True)
    (hostile.root / "var/lib/dbus/machine-id").write_text("f" * 32 + "\n")
    (hostile.root / "var/lib/dbus/other").write_text("of the root\n")
    own = Identity(sandbox=SandboxId("sb_1"), machine_id="a" * 32)
    async with sandbox_in(tmp_path / "state", hostile.template, identity=own) as sandbox:
        assert await output(sandbox, "cat /etc/machine-id /var/lib/dbus/machine-id") == "\n".join(["a" * 32] * 2)
        assert await output(sandbox, "cat /var/lib/dbus/other") == "of the root"
    hostile.check()
