"""Templates as a user has them: built, started from, built anew, removed."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from tests.machine import may_make_namespaces

import headstart
from headstart.errors import BackendError, BuildFailed, ConfigError
from headstart.sandbox.templates import TemplateOrder, TemplateRecord, TemplateStore
from headstart.sandbox.templates import login as login_module
from headstart.testing.roots import make_root

pytestmark = pytest.mark.anyio


async def build(
    boxes: headstart.Sandboxes, *setup: str, name: str = "mine", source: str | Path = "host", ready: str | None = None
) -> TemplateRecord:
    return await boxes.build_template(TemplateOrder(name=name, source=str(source), setup=setup, ready=ready))


@asynccontextmanager
async def box_of(
    boxes: headstart.Sandboxes, name: str = "mine", **options: object
) -> AsyncGenerator[headstart.Sandbox]:
    async with boxes.create(headstart.SandboxOptions(template=name, **options)) as box:  # pyright: ignore[reportArgumentType]
        yield box


async def said(box: headstart.Sandbox, line: str) -> str:
    done = await box.run(line)
    assert done.ok, done
    return done.stdout


def files(state: Path) -> list[str]:
    """What is there of templates, but for what is in their folders."""
    templates = state / "templates"
    return sorted(str(path.relative_to(templates)) for path in templates.glob("*/*"))


# ------------------------------------------------------------ set-up


async def test_what_set_up_commands_write_is_what_every_sandbox_begins_with(boxes: headstart.Sandboxes) -> None:
    record = await build(
        boxes, "echo 1 > ~/a", "cat ~/a > /tmp/b; mkdir -m 700 ~/d; echo 3 > /var/tmp/c", "test -s /tmp/b"
    )
    assert record.layer is not None
    assert (record.layer.size_bytes, record.layer.files) == (6, 7)
    async with box_of(boxes) as one, box_of(boxes) as other:
        for box in (one, other):
            assert await said(box, "cat ~/a /tmp/b /var/tmp/c; stat -c %a ~/d") == "1\n1\n3\n700\n"
            await said(box, "echo mine > ~/a; rm /tmp/b; touch ~/d/x")
    async with box_of(boxes) as box:
        assert await said(box, "cat ~/a /tmp/b; ls ~/d") == "1\n1\n"


async def test_a_sandbox_of_a_template_goes_back_and_branches_like_any_other(boxes: headstart.Sandboxes) -> None:
    await build(boxes, "echo base > ~/a; echo base > ~/b")
    async with box_of(boxes) as box:
        await said(box, "rm ~/a; echo new > ~/c")
        kept = await box.checkpoint()
        await said(box, "rm ~/b ~/c; echo base > ~/a")
        await box.rollback(kept)
        assert await said(box, "cd; cat *; ls") == "base\nnew\nb\nc\n"
        async with await box.fork() as branch:
            await said(branch, "echo branch > ~/b")
            assert await box.files.read("b") == b"base\n"
            await branch.commit()
        assert await said(box, "cat ~/b") == "branch\n"
    async with box_of(boxes) as box:
        assert await said(box, "cd; cat *; ls") == "base\nbase\na\nb\n"


async def test_a_set_up_command_that_fails_is_told_and_an_earlier_template_stays(
    boxes: headstart.Sandboxes, state: Path
) -> None:
    await build(boxes, "echo first > ~/a")
    before = files(state)
    with pytest.raises(
        BuildFailed, match=r"template mine: its set-up command 2 of 3 ended with status 3: echo no"
    ) as caught:
        await build(boxes, "echo second > ~/a", "echo no >&2; exit 3", "echo never > ~/b")
    assert caught.value.output == "no\n"
    assert files(state) == before
    async with box_of(boxes) as box:
        assert await said(box, "cat ~/a; ls ~") == "first\na\n"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("kill -9 $$", "was killed by signal 9"),
        ("head -c 300000000 /dev/zero > ~/large", "ended with status 1"),
        ("while :; do :; done", "had not ended after 0.3 s, and was killed"),
    ],
)
async def test_however_a_set_up_command_fails_it_is_said(
    line: str, told: str, boxes: headstart.Sandboxes, state: Path
) -> None:
    options = headstart.SandboxOptions(disk_mb=100)
    order = TemplateOrder(name="mine", setup=(line,), options=options, timeout_s=0.3 if "while" in line else None)
    with pytest.raises(BuildFailed, match=told):
        await boxes.build_template(order)
    assert files(state) == []


async def test_what_a_set_up_command_leaves_running_is_told_and_left_out(boxes: headstart.Sandboxes) -> None:
    told: list[str] = []
    order = TemplateOrder(name="mine", setup=("(while :; do echo x >> ~/log; sleep 0.01; done) >/dev/null 2>&1 &",))
    await boxes.build_template(order, tell=told.append)
    assert any(line.startswith("still running, and no part of the template: ") for line in told), told
    async with box_of(boxes) as box:
        size = await said(box, "stat -c %s ~/log")
        await anyio.sleep(0.1)
        assert await said(box, "stat -c %s ~/log") == size


async def test_a_set_up_command_has_the_mounts_and_the_environment_that_were_given(
    boxes: headstart.Sandboxes, tmp_path: Path
) -> None:
    (tmp_path / "given").write_text("from outside\n")
    options = headstart.SandboxOptions(mounts={str(tmp_path / "given"): "ro"}, env={"GREETING": "hello"})
    await boxes.build_template(
        TemplateOrder(name="mine", setup=(f"cat {tmp_path}/given > ~/a; echo $GREETING >> ~/a",), options=options)
    )
    async with box_of(boxes) as box:
        assert await said(box, f"cat ~/a; echo $GREETING; test ! -e {tmp_path}/given") == "from outside\nhello\nhello\n"
    async with box_of(boxes, env={"GREETING": "other"}) as box:
        assert await said(box, "echo $GREETING") == "other\n"


async def test_output_is_passed_on_as_it_comes(boxes: headstart.Sandboxes) -> None:
    heard, told = list[bytes](), list[str]()

    async def hear(chunk: bytes) -> None:
        heard.append(chunk)

    order = TemplateOrder(name="mine", setup=("echo out; echo err >&2",), ready="echo ready")
    await boxes.build_template(order, tell=told.append, on_output=hear)
    assert sorted(b"".join(heard).split()) == [b"err", b"out", b"ready"]
    assert told == ["root: host", "set-up 1 of 1: echo out; echo err >&2", "ready: echo ready"]


# ------------------------------------------------------------ readiness


async def test_a_template_is_there_once_its_readiness_command_has_passed(
    boxes: headstart.Sandboxes, state: Path
) -> None:
    with pytest.raises(BuildFailed, match=r"its readiness command ended with status 1: test -e ~/a"):
        await build(boxes, "echo 1 > ~/b", ready="test -e ~/a")
    assert files(state) == []
    await build(boxes, "echo 1 > ~/a", ready="test -e ~/a && echo changed > ~/a")
    async with box_of(boxes) as box:
        assert await said(box, "cat ~/a") == "1\n"  # it was tried in a sandbox of its own


async def test_a_template_that_is_not_ready_leaves_the_earlier_one(
    boxes: headstart.Sandboxes, state: Path, root: Path
) -> None:
    await build(boxes, "echo first > ~/a")
    before = files(state)
    with pytest.raises(BuildFailed):
        await build(boxes, "echo second > ~/a", source=root, ready="false")
    assert files(state) == before
    async with box_of(boxes) as box:
        assert await said(box, "cat ~/a; test -e /usr/bin") == "first\n"


# ------------------------------------------------------------ environment


async def test_commands_find_the_environment_of_a_login_shell(boxes: headstart.Sandboxes) -> None:
    profile = "echo welcome; echo oops >&2; export TOOL=1 PATH=$HOME/bin:$PATH; LOCAL=2; export MANY='a\nb=c'"
    record = await build(boxes, f"cat > ~/.profile <<'E'\n{profile}\nE")
    assert record.environment["TOOL"] == "1"
    assert not {"HOME", "PWD", "SHLVL", "_", "LOCAL"} & record.environment.keys()
    async with box_of(boxes) as box:
        assert await said(box, 'echo "$TOOL $PATH $MANY $HOME $LOCAL"') == (
            f"1 /home/sandbox/bin:{DEFAULT_PATH} a\nb=c /home/sandbox \n"
        )
        assert (await box.run(["env"], env={"TOOL": "3"})).stdout.count("TOOL=3\n") == 1
        assert (await box.run_in_shell("echo $TOOL")).stdout == "1\n"
    async with box_of(boxes, "host") as box:
        assert await said(box, 'echo "$TOOL$PATH"') == f"{DEFAULT_PATH}\n"


DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


@pytest.mark.parametrize(
    "profile", ["exit 3", "kill -9 $$", "sleep 1000", "export BAD=$'\\xff'", "export LONG=$(printf %100001d 1)"]
)
async def test_a_profile_that_does_not_work_leaves_the_default_environment(
    profile: str, boxes: headstart.Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_module, "_PATIENCE_S", 1.0)
    await build(boxes, f"cat > ~/.profile <<'E'\nexport TOOL=1\n{profile}\nE")
    async with box_of(boxes) as box:
        assert await said(box, "echo $TOOL$PATH") == f"{DEFAULT_PATH}\n"


# ------------------------------------------------------------ roots


async def test_a_folder_is_a_root(boxes: headstart.Sandboxes, root: Path) -> None:
    await build(boxes, "echo $FROM_PROFILE > ~/a", source=root, ready="test ! -e /usr/bin")
    async with box_of(boxes) as box:
        assert await said(box, "cat ~/a /etc/version; id -un; ls /") == (
            "a b\nroot 1\nsandbox\nbin\ndev\netc\nhome\nlib\nlib64\nproc\nrun\ntmp\nvar\n"
        )
        assert not (await box.run("echo x > /etc/version")).ok
        await box.files.write("/tmp/x", b"x")
    assert (root / "etc/version").read_text() == "root 1\n"


async def test_a_folder_shows_as_it_is_when_a_sandbox_is_started(
    boxes: headstart.Sandboxes, root: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(root, folder, symlinks=True)
    await build(boxes, source=folder)
    (folder / "etc/version").write_text("root 2\n")
    async with box_of(boxes) as box:
        assert await said(box, "cat /etc/version") == "root 2\n"


async def test_an_archive_is_unpacked_once_for_all_templates(
    boxes: headstart.Sandboxes, archive: Path, state: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.tar.gz"
    shutil.copy(archive, copy)
    first = await build(boxes, "echo 1 > ~/a", source=archive)
    [folder] = (state / "templates/roots").iterdir()
    number = folder.stat().st_ino
    second = await build(boxes, "echo 2 > ~/a", name="other", source=copy)
    assert [(path, path.stat().st_ino) for path in (state / "templates/roots").iterdir()] == [(folder, number)]
    assert first.root.kind == "archive"
    assert second.root.kind == "archive"
    assert first.root.digest == second.root.digest == folder.name
    assert (first.root.path, second.root.path) == (archive, copy)
    copy.unlink()
    async with box_of(boxes) as one, box_of(boxes, "other") as other:
        assert await said(one, "cat ~/a /etc/version; echo $FROM_PROFILE") == "1\nroot 1\na b\n"
        assert await said(other, "cat ~/a /etc/version; echo $FROM_PROFILE") == "2\nroot 1\na b\n"


async def test_what_was_unpacked_is_not_writable_from_inside_or_owned_there(
    boxes: headstart.Sandboxes, archive: Path
) -> None:
    await build(boxes, source=archive)
    async with box_of(boxes) as box:
        assert not (await box.run("echo x >> /bin/sh")).ok
        assert not (await box.run("rm /etc/version")).ok


@pytest.mark.parametrize("kind", ["folder", "archive", "image"])
async def test_a_root_without_a_shell_is_told(
    kind: str, boxes: headstart.Sandboxes, state: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    (folder / "rootfs/bin").mkdir(parents=True)
    (folder / "manifest.json").write_text("[]")
    source = folder
    if kind != "folder":
        source = tmp_path / "root.tar"
        with tarfile.open(source, "w") as tar:
            tar.add(folder, arcname=".")
    with pytest.raises(BuildFailed, match="there is no shell in it") as caught:
        await build(boxes, source=source)
    assert "docker export" in str(caught.value.hint)
    assert files(state) == []


async def test_the_services_own_state_is_no_source_by_whatever_way(tmp_path: Path) -> None:
    if not may_make_namespaces():
        pytest.skip("the local backend cannot run here: no namespaces")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for state in (tmp_path / "link" / "state", tmp_path / "real" / "state"):
        async with headstart.Sandboxes.open(state_dir=state) as boxes:
            for source in (tmp_path / "real" / "state", tmp_path / "link" / "state"):
                with pytest.raises(ConfigError, match="is Headstart's own state"):
                    await build(boxes, source=source)


async def test_what_can_be_no_source_is_told(boxes: headstart.Sandboxes, state: Path, tmp_path: Path) -> None:
    await build(boxes, "echo 1 > ~/a")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "text").write_text("text")
    for source, told in {
        tmp_path / "gone": "there is no such folder",
        tmp_path / "fifo": "there is no such folder",
        tmp_path / "text": "cannot be read as a tar archive",
        "/": "is the host itself",
        "~nobody-of-that-name/x": "cannot be found",
        state / "templates/layers": "is Headstart's own state",
        "hosts": "there is no such folder",
    }.items():
        with pytest.raises(ConfigError, match=told) as caught:
            await build(boxes, source=source)
        assert caught.value.hint


async def test_a_relative_path_is_one_from_where_we_are(
    boxes: headstart.Sandboxes, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    record = await build(boxes, source="root")
    assert record.root.kind == "folder"
    assert record.root.path == root


# ------------------------------------------------------------ coming and going


async def test_sandboxes_go_on_when_their_template_is_built_anew_or_removed(
    boxes: headstart.Sandboxes, store: TemplateStore, archive: Path, state: Path
) -> None:
    await build(boxes, "echo 1 > ~/a; mkdir ~/d; echo deep > ~/d/e", source=archive)
    async with box_of(boxes) as old:
        await build(boxes, "echo 2 > ~/a")
        async with box_of(boxes) as new:
            assert await said(new, "cat ~/a; ls -d /usr/bin") == "2\n/usr/bin\n"
            await anyio.to_thread.run_sync(store.remove, "mine")
            assert await said(old, "cat ~/a ~/d/e /etc/version; ls -d /usr || echo none") == "1\ndeep\nroot 1\nnone\n"
            assert await said(new, "cat ~/a") == "2\n"
            kept = await old.checkpoint()
            await said(old, "rm -r ~/d")
            await old.rollback(kept)
            assert await said(old, "cat ~/d/e") == "deep\n"
            with pytest.raises(ConfigError, match="there is no template 'mine'"):
                async with box_of(boxes):
                    pass
    assert len(files(state)) == 3  # a root and two layers, which this process could still start from


async def test_what_nobody_needs_is_removed(state: Path, archive: Path, boxes: headstart.Sandboxes) -> None:
    async with headstart.Sandboxes.open(state_dir=state) as others:
        await build(others, "echo 1 > ~/a", source=archive)
        async with box_of(others) as box:
            await said(box, "true")
            await build(boxes, "echo 2 > ~/a")
            assert len(files(state)) == 4  # what `box` runs on, too
    await build(boxes, "echo 3 > ~/a", name="other")
    assert [path.partition("/")[0] for path in files(state)] == ["layers", "layers", "named", "named"]
    store = TemplateStore(state / "templates")
    for name in ("mine", "other"):
        await anyio.to_thread.run_sync(store.remove, name)
    assert files(state) == []


def deep(folders: int) -> str:
    return f"""python3 -c 'import os; os.chdir(os.environ["HOME"]); [(os.mkdir("d"), os.chdir("d")) for _ in range({folders})]'"""


async def test_whatever_a_set_up_command_has_made_is_kept_and_goes_with_its_template(
    boxes: headstart.Sandboxes, store: TemplateStore, state: Path
) -> None:
    closed = "mkdir -p ~/closed/in/it; echo 1 > ~/closed/in/it/f; ln ~/closed/in/it/f ~/g; mkfifo ~/fifo; chmod 0 ~/closed/in ~/closed"
    await build(boxes, deep(700), closed)
    async with box_of(boxes) as box:
        seen = await said(
            box, "cd; cat g; stat -c '%A %h' closed g fifo; chmod 700 closed; chmod 700 closed/in; cat closed/in/it/f"
        )
        assert seen == "1\nd--------- 3\n-rw-r--r-- 2\nprw-r--r-- 1\n1\n"
        await anyio.to_thread.run_sync(store.remove, "mine")
    async with headstart.Sandboxes.open(state_dir=state):
        pass
    assert len(files(state)) == 1  # `boxes` could still start from it


async def test_the_files_of_a_template_are_removed_whatever_they_are(state: Path, store: TemplateStore) -> None:
    if not may_make_namespaces():
        pytest.skip("the local backend cannot run here: no namespaces")
    async with headstart.Sandboxes.open(state_dir=state) as boxes:
        await build(boxes, deep(700), "mkdir -p ~/a/b/c; touch ~/a/b/c/f; chmod 0 ~/a/b/c ~/a/b ~/a")
    store.remove("mine")
    assert files(state) == []


async def test_a_set_up_command_that_makes_what_cannot_be_saved_is_told(
    boxes: headstart.Sandboxes, state: Path
) -> None:
    with pytest.raises(BackendError, match="nested too deeply"):
        await build(boxes, deep(1900))
    assert files(state) == []


async def test_a_template_is_nobody_elses_to_read(boxes: headstart.Sandboxes, state: Path, archive: Path) -> None:
    await build(boxes, "echo 1 > ~/a", source=archive)
    ours = [state, state / "templates", *(path for depth in ("*", "*/*") for path in (state / "templates").glob(depth))]
    assert {path.name: path.stat().st_mode & 0o077 for path in ours if path.stat().st_mode & 0o077} == {}
    assert len(ours) == 9


async def test_no_sandbox_sees_templates_whatever_is_mounted(mappable_path: Path) -> None:
    if not may_make_namespaces():
        pytest.skip("the local backend cannot run here: no namespaces")
    state = mappable_path / "state"
    async with headstart.Sandboxes.open(state_dir=state) as boxes:
        await build(boxes, "echo 1 > ~/a")
        async with box_of(boxes, "host", mounts={str(mappable_path): "rw"}) as box:
            assert await said(box, f"touch {mappable_path}/mine; ls -A {state}; ls {mappable_path}") == "mine\nstate\n"


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        ("mien", "did you mean 'mine'? headstart template list"),
        ("hots", "did you mean 'host'? headstart template list"),
        ("../mine", "did you mean 'mine'? headstart template list"),
        ("nothing like it", "headstart template list"),
        ("", "headstart template list"),
        ("a\0b", "headstart template list"),
    ],
)
async def test_an_unknown_template_is_told_with_near_names(wanted: str, hint: str, boxes: headstart.Sandboxes) -> None:
    await build(boxes)
    with pytest.raises(ConfigError, match="template: there is no template") as caught:
        async with box_of(boxes, wanted):
            pass
    assert str(caught.value.hint).startswith(hint)


async def test_nothing_is_made_by_asking_for_an_unknown_template(boxes: headstart.Sandboxes, state: Path) -> None:
    with pytest.raises(ConfigError):
        async with box_of(boxes, "none"):
            pass
    assert not (state / "templates").exists()


@pytest.mark.parametrize("name", ["host", "", "a/b", "..", ".a", "-a", "A", "a" * 64, "a b", "ä", "a\n"])
async def test_what_can_be_no_name_is_refused(name: str, boxes: headstart.Sandboxes, state: Path) -> None:
    with pytest.raises(ConfigError, match="template: ") as caught:
        await build(boxes, name=name)
    assert caught.value.hint
    assert not (state / "templates").exists()


# ------------------------------------------------------------ damage


async def test_a_template_whose_files_were_damaged_is_told_and_built_again(
    boxes: headstart.Sandboxes, store: TemplateStore, archive: Path, state: Path
) -> None:
    record = await build(boxes, "echo 1 > ~/a", source=archive)
    for harm, what in (
        ("root/bin/cat", "what was unpacked from its archive was changed or removed"),
        ("root", "what was unpacked from its archive was changed or removed"),
        ("layer/0/a", "what its set-up commands have written was changed or removed"),
        ("layer", "what its set-up commands have written was changed or removed"),
    ):
        assert record.root.kind == "archive"
        assert record.layer is not None
        places = {"root": f"roots/{record.root.digest}", "layer": f"layers/{record.layer.id}"}
        kind, _, rest = harm.partition("/")
        path = state / "templates" / places[kind] / rest
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        async with headstart.Sandboxes.open(state_dir=state) as others:
            with pytest.raises(ConfigError, match=f"template mine: it is damaged: {what}") as caught:
                async with box_of(others):
                    pass
        assert str(caught.value.hint).startswith("build it again (headstart template build mine …)")
        assert store.damage(store.read("mine")) == what
        record = await build(boxes, "echo 1 > ~/a", source=archive)
        async with box_of(boxes) as box:
            assert await said(box, "cat ~/a /etc/version") == "1\nroot 1\n"


async def test_a_template_whose_folder_is_gone_is_told(boxes: headstart.Sandboxes, root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(root, folder, symlinks=True)
    await build(boxes, source=folder)
    folder.rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match=f"template mine: it is damaged: its root {folder} is gone"):
        async with box_of(boxes):
            pass


@pytest.mark.parametrize("content", ["", "{}", '{"version": 2}', "[1]", "\0\xff", None])
async def test_a_template_that_cannot_be_read_is_told_and_can_be_removed_or_built_again(
    content: str | None, boxes: headstart.Sandboxes, store: TemplateStore, state: Path
) -> None:
    await build(boxes, "echo 1 > ~/a")
    await build(boxes, "echo 2 > ~/a", name="other")
    path = state / "templates/named/mine.json"
    if content is None:
        path.unlink()
        path.mkdir()
    else:
        path.write_text(content, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"template mine: it is damaged: .*mine.json cannot be read"):
        async with box_of(boxes):
            pass
    if content is None:
        return
    async with box_of(boxes, "other") as box:
        assert await said(box, "cat ~/a") == "2\n"
    await build(boxes, "echo 3 > ~/a")
    async with box_of(boxes) as box:
        assert await said(box, "cat ~/a") == "3\n"
    path.write_text(content, encoding="latin-1")
    store.remove("mine")
    assert store.names() == ["other"]


# ------------------------------------------------------------ ends and crowds


async def test_a_build_that_is_given_up_leaves_nothing(boxes: headstart.Sandboxes, state: Path) -> None:
    for line in ("echo up; sleep 1000", "echo up"):
        with anyio.CancelScope() as scope:

            async def hear(_: bytes, scope: anyio.CancelScope = scope) -> None:
                scope.cancel()
                await anyio.lowlevel.checkpoint()

            await boxes.build_template(TemplateOrder(name="mine", setup=(line,)), on_output=hear)
        assert scope.cancelled_caught
        assert files(state) == []


async def test_builds_at_once_do_not_disturb_each_other(boxes: headstart.Sandboxes, archive: Path, state: Path) -> None:
    async with anyio.create_task_group() as building:
        for number in range(6):
            building.start_soon(lambda n=number: build(boxes, f"echo {n} > ~/a", name=f"t{n % 3}", source=archive))
    kinds = [path.partition("/")[0] for path in files(state)]
    assert kinds == ["layers"] * 3 + ["named"] * 3 + ["roots"]
    for number in range(3):
        async with box_of(boxes, f"t{number}") as box:
            assert int(await said(box, "cat ~/a")) % 3 == number


# ------------------------------------------------------------ without isolation


async def test_without_isolation_only_the_hosts_files_are_there(tmp_path: Path, root: Path) -> None:
    async with headstart.Sandboxes.open(backend="process", state_dir=tmp_path / "state") as boxes:
        record = await build(boxes, ready="true")
        assert record.layer is None
        async with box_of(boxes) as box:
            assert (await box.run("true")).ok
        for source, setup in ((root, ()), ("host", ("true",))):
            with pytest.raises(BackendError) as caught:
                await build(boxes, *setup, source=source)
            assert caught.value.hint == 'use the backend "local"'


async def test_what_needs_isolation_is_refused_without(boxes: headstart.Sandboxes, state: Path) -> None:
    await build(boxes, "echo 1 > ~/a")
    async with headstart.Sandboxes.open(backend="process", state_dir=state) as others:
        with pytest.raises(BackendError, match="mine has files of its own"):
            async with box_of(others):
                pass


async def test_a_root_need_not_have_bash(boxes: headstart.Sandboxes, tmp_path: Path) -> None:
    folder = make_root(tmp_path / "folder")
    assert not (folder / "bin/bash").exists()
    record = await build(boxes, "echo $0 > ~/a", source=folder)
    assert record.shell == "sh"
    async with box_of(boxes) as box:
        assert await said(box, "cat ~/a; echo $0") == "sh\nsh\n"
        async with await box.fork() as branch:
            assert await said(branch, "echo $0") == "sh\n"


# ------------------------------------------------------------ kept for somebody


async def test_who_was_given_a_template_gets_the_same_again_whatever_becomes_of_it(
    state: Path, store: TemplateStore
) -> None:
    if not may_make_namespaces():
        pytest.skip("the local backend cannot run here: no namespaces")
    async with headstart.Sandboxes.open(state_dir=state) as boxes:
        await build(boxes, "echo 1 > ~/a")
        with store.held("mine", owner="box_1") as first:
            pass
        await build(boxes, "echo 2 > ~/a")
        with store.held("mine", owner="box_2") as second:
            pass
    store.remove("mine")
    assert first.base is not None
    assert second.base is not None
    assert [(held.base / "0/a").read_text() for held in (first, second) if held.base] == ["1\n", "2\n"]
    with store.held("mine", owner="box_1") as again:
        assert again == first
    with pytest.raises(ConfigError, match="there is no template 'mine'"), store.held("mine", owner="box_3"):
        pass
    assert [path.partition("/")[0] for path in files(state)] == ["kept", "kept", "layers", "layers"]
    store.let_go("box_1")
    store.let_go("box_1")
    assert not first.base.exists()
    assert second.base.exists()
    store.let_go_of_all_but(["box_1"])
    assert files(state) == []
