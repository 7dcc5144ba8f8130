"""What a mount shows and takes, by its mode, as root and as an ordinary user."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import anyio
import pytest

from headstart.backends.contract import (
    Identity,
    Limits,
    Mount,
    MountMode,
)
from headstart.errors import BackendError
from headstart.ids import SandboxId

from .driving import (
    as_root,
    backend_in,
    output,
    sandbox_in,
    shell,
    template,
)

pytestmark = pytest.mark.anyio

_SOMEBODY = 4242


@pytest.mark.parametrize("mode", list(MountMode))
async def test_a_mount_is_read_and_written_as_its_mode_says(mappable_path: Path, mode: MountMode) -> None:
    source = mappable_path / "project"
    (source / "folder").mkdir(parents=True)
    (source / "folder" / "file").write_text("old")
    mount = Mount(source=source, target=Path("/project"), mode=mode)
    async with sandbox_in(mappable_path / "state", template(mount)) as sandbox:
        assert await output(sandbox, "cat /project/folder/file") == "old"
        written = (await sandbox.run(shell("echo new > /project/folder/file; touch /project/made"))).status.code == 0
        inside = await output(sandbox, "cat /project/folder/file")
    outside = (source / "folder" / "file").read_text().strip()
    assert (written, inside, outside, (source / "made").exists()) == {
        MountMode.READ_ONLY: (False, "old", "old", False),
        MountMode.READ_WRITE: (True, "new", "new", True),
        MountMode.OVERLAY: (True, "new", "old", False),
    }[mode]
    if (source / "made").exists():
        assert (source / "made").stat().st_uid == os.geteuid()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
async def test_git_reads_a_mounted_repository_that_shows_as_somebody_elses(mappable_path: Path) -> None:
    source = mappable_path / "project"
    source.mkdir()
    environment = {"HOME": str(mappable_path), "PATH": os.environ["PATH"]}
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], [*identity, "commit", "-q", "--allow-empty", "-m", "first"]):
        await anyio.run_process(["git", *words], cwd=source, env=environment)
    if os.geteuid() == 0:
        for path in (source, *source.rglob("*")):
            os.chown(path, _SOMEBODY, _SOMEBODY)
    mount = Mount(source=mappable_path, target=Path("/projects"), mode=MountMode.READ_ONLY)
    async with sandbox_in(mappable_path / "state", template(mount)) as sandbox:
        assert await output(sandbox, "git -C /projects/project log --format=%s") == "first"


async def test_an_overlay_is_each_sandboxs_own_and_can_delete_what_it_covers(mappable_path: Path) -> None:
    (mappable_path / "project").mkdir()
    (mappable_path / "project" / "file").write_text("old")
    mount = Mount(source=mappable_path / "project", target=Path("/project"), mode=MountMode.OVERLAY)
    async with backend_in(mappable_path / "state") as backend:
        prepared = await backend.prepare(template(mount))
        first = await backend.start(prepared, Identity(sandbox=SandboxId("sb_1")))
        second = await backend.start(prepared, Identity(sandbox=SandboxId("sb_2")))
        assert await output(first, "rm /project/file; ls -A /project") == ""
        assert await output(second, "ls -A /project") == "file"
        await first.aclose()
        await second.aclose()


async def test_mounts_inside_an_overlay_stay_visible(mappable_path: Path) -> None:
    outer, other = mappable_path / "a project, with: odd\\name", mappable_path / "other"
    (outer / "inner").mkdir(parents=True)
    (outer / "inner" / "covered").touch()
    other.mkdir()
    (other / "shown").touch()
    mounts = [
        Mount(source=outer, target=outer, mode=MountMode.OVERLAY),
        Mount(source=other, target=outer / "inner", mode=MountMode.READ_ONLY),
    ]
    async with sandbox_in(mappable_path / "state", template(*mounts)) as sandbox:
        folder = shlex.quote(str(outer))
        assert await output(sandbox, f"touch {folder}/made; ls -A {folder} {folder}/inner | grep -v :") == (
            "inner\nmade\n\nshown"
        )
        assert (await sandbox.run(shell(f"touch {folder}/inner/made"))).status.code != 0
    assert not (outer / "made").exists()


@as_root
async def test_what_the_host_has_mounted_inside_an_overlay_stays_visible(mappable_path: Path) -> None:
    outer, volume = mappable_path / "project", mappable_path / "volume"
    (outer / "node_modules").mkdir(parents=True)
    volume.mkdir()
    (volume / "package").touch()
    mount = Mount(source=outer, target=outer, mode=MountMode.OVERLAY)
    await anyio.run_process(["mount", "--bind", str(volume), f"{outer}/node_modules"])
    try:
        async with sandbox_in(mappable_path / "state", template(mount)) as sandbox:
            assert await output(sandbox, f"ls {outer}/node_modules") == "package"
    finally:
        await anyio.run_process(["umount", f"{outer}/node_modules"])


async def test_an_overlay_is_bounded_by_the_sandboxs_scratch_space(mappable_path: Path) -> None:
    (mappable_path / "prefix").mkdir()
    mount = Mount(source=mappable_path / "prefix", target=Path("/prefix"), mode=MountMode.OVERLAY)
    limits = Limits(scratch_bytes=20_000_000)  # and 1,220 inodes
    async with sandbox_in(mappable_path / "state", template(mount, limits=limits)) as sandbox:
        full = await sandbox.run(shell("head -c 30000000 /dev/zero > /prefix/file; rm /prefix/file"))
        many = await sandbox.run(shell("for i in $(seq 2000); do : > /prefix/$i || exit 1; done"))
        used = await output(sandbox, "rm -f /prefix/*; df --output=size -B1 /prefix | tail -1")
    assert b"No space" in full.stderr
    assert b"No space" in many.stderr
    assert 15_000_000 < int(used) < 25_000_000  # it does not look like the host's disk


async def test_the_users_folders_on_the_way_to_a_mount_are_writable_in_private(
    mappable_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that writes beside its own install prefix."""
    monkeypatch.setattr("headstart.backends.local.layout._SCRATCH", {"/tmp": 0o1777})  # ours is none of them
    project = mappable_path / "theirs" / "project"
    (project / "node_modules").mkdir(parents=True)
    (project / "node_modules" / "package").touch()
    (project / "secret").write_text("not mounted")
    mount = Mount(source=project / "node_modules", target=project / "node_modules")
    async with sandbox_in(mappable_path / "state", template(mount)) as sandbox:
        assert await output(sandbox, f"touch {project}/log && ls -A {project}") == "log\nnode_modules"
        assert await output(sandbox, f"ls {project}/node_modules") == "package"
        assert (await sandbox.run(shell(f"touch {project}/node_modules/made"))).status.code != 0  # declared read-only
    assert {path.name for path in project.iterdir()} == {"node_modules", "secret"}


async def test_the_systems_folders_on_the_way_to_a_mount_are_not(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    mounts = [Mount(source=tmp_path / "file", target=Path(folder, "file")) for folder in ("/opt/x", "/srv", "/home/y")]
    async with sandbox_in(tmp_path / "state", template(*mounts)) as sandbox:
        for folder in ("/", "/opt", "/opt/x", "/srv", "/home", "/home/y", "/etc", "/var", "/mnt"):
            assert (await sandbox.run(shell(f"touch {folder}/made"))).status.code != 0, folder


async def test_a_folder_that_cannot_be_an_overlay_is_read_only_and_told_as_weaker(
    mappable_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (mappable_path / "file").write_text("here")
    mount = Mount(source=mappable_path / "file", target=Path("/shown"), mode=MountMode.OVERLAY)
    async with backend_in(mappable_path / "state") as backend:
        prepared = await backend.prepare(template(mount))
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("sb_1")))
        assert await output(sandbox, "cat /shown") == "here"
        assert (await sandbox.run(shell("echo > /shown"))).status.code != 0
        assert caplog.messages[0].startswith("/shown shows read-only; no overlay can be laid on it (")
        assert caplog.messages[0] in backend.capabilities.weaker
        await sandbox.aclose()
        await prepared.aclose()


async def test_a_mount_below_a_private_folder_stays_visible(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    mounts = [Mount(source=tmp_path / "file", target=Path(t)) for t in ("/tmp/a/file", "/home/sandbox/file")]
    async with sandbox_in(tmp_path / "state", template(*mounts)) as sandbox:
        assert await output(sandbox, "cat /tmp/a/file ~/file; touch ~/other && ls ~") == "herehere" + "file\nother"


async def test_a_missing_mount_is_an_error_that_names_it(tmp_path: Path) -> None:
    async with backend_in(tmp_path) as backend:
        with pytest.raises(BackendError, match="/does/not/exist is to be mounted"):
            await backend.prepare(template(Mount(source=Path("/does/not/exist"), target=Path("/x"))))


@as_root
async def test_files_of_another_user_are_the_sandboxs_where_they_are_mounted(mappable_path: Path) -> None:
    project = mappable_path / "project"
    project.mkdir(mode=0o700)
    os.chown(project, 4321, 4321)
    mount = Mount(source=project, target=Path("/project"), mode=MountMode.READ_WRITE)
    async with sandbox_in(mappable_path / "state", template(mount)) as sandbox:
        assert await output(sandbox, "stat -c %u /project; touch /project/made") == "1000"
    assert (project / "made").stat().st_uid == 4321
