"""What a server's launch needs to see of the host."""

import os
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from headstart.backends.contract import Mount, MountMode, Network
from headstart.config.model import MountSetting, ServerSettings
from headstart.errors import ServerUnavailable
from headstart.ids import ResourceId
from headstart.runtime.launch import HostFacts, find_launch
from headstart.runtime.templates import launch_spec, remote_digest

NAME = ResourceId("srv")


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def server(command: str | Path, *args: str, **more: Any) -> ServerSettings:
    return ServerSettings(name=NAME, command=str(command), args=args, **more)


def seen(launched: ServerSettings, host: HostFacts | None = None) -> dict[Path, MountMode]:
    return {mount.target: mount.mode for mount in find_launch(launched, host or HostFacts()).mounts}


@pytest.fixture(scope="module")
def a_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("venvs") / "one"
    venv.create(folder, symlinks=True)
    return folder


def test_a_system_command_needs_no_mounts_of_its_own() -> None:
    launch = find_launch(server("sh"), HostFacts())
    assert launch.mounts == ()
    assert Path(launch.program).name in {"sh", "dash", "bash"}


def test_a_script_of_a_virtual_environment_sees_it_and_its_base_interpreter(a_venv: Path) -> None:
    script = executable(a_venv / "bin" / "mcp-server-x", f"#!{a_venv}/bin/python\n")
    visible = seen(server(script))
    base = Path(sys.base_prefix).resolve()
    assert visible[a_venv] is MountMode.OVERLAY
    assert base.is_relative_to("/usr") or base in {path.resolve() for path in visible}


def test_the_python_of_a_virtual_environment_is_not_resolved_away(a_venv: Path) -> None:
    launch = find_launch(server(a_venv / "bin" / "python", "-m", "x"), HostFacts())
    assert launch.program == f"{a_venv}/bin/python"
    assert launch.path.split(":")[0] == f"{a_venv}/bin"


def test_editable_installs_show_their_sources(a_venv: Path, tmp_path: Path) -> None:
    source = tmp_path / "project" / "src"
    source.mkdir(parents=True)
    site = next(a_venv.glob("lib/python3*/site-packages"))
    (site / "__editable__.x.pth").write_text(f"import _x\n{source}\n/no/such/folder\n")
    assert source in seen(server(a_venv / "bin" / "python", "-m", "x"))


def test_a_script_that_an_interpreter_is_given_shows_with_its_folder(tmp_path: Path) -> None:
    script = executable(tmp_path / "srv" / "main.py", "")
    assert tmp_path / "srv" in seen(server(sys.executable, "-u", str(script)))


def test_a_data_path_among_the_arguments_is_not_shown(tmp_path: Path) -> None:
    executable(tmp_path / "srv" / "main.py", "")
    (tmp_path / "data").mkdir()
    launched = server(sys.executable, str(tmp_path / "srv" / "main.py"), str(tmp_path / "data"))
    assert tmp_path / "data" not in seen(launched)


def test_a_command_in_node_modules_shows_the_outermost_one(tmp_path: Path) -> None:
    inner = executable(tmp_path / "node_modules/pkg/node_modules/dep/cli.js", "#!/usr/bin/env sh\n")
    link = tmp_path / "node_modules" / ".bin" / "dep"
    link.parent.mkdir()
    link.symlink_to(inner)
    visible = seen(server(link))
    assert tmp_path / "node_modules" in visible
    assert tmp_path not in visible


def test_a_command_through_links_shows_every_place_on_the_way(tmp_path: Path) -> None:
    real = executable(tmp_path / "store" / "v1" / "bin" / "tool")
    current = tmp_path / "store" / "current"
    current.symlink_to(real.parent.parent)
    shim = tmp_path / "shims" / "tool"
    shim.parent.mkdir()
    shim.symlink_to(current / "bin" / "tool")
    launch = find_launch(server("tool"), HostFacts(search_path=str(shim.parent)))
    assert launch.program == str(real)
    assert real.parent.parent in {mount.source for mount in launch.mounts}


@pytest.mark.parametrize("launcher", ["npx", "uvx", "pipx"])
def test_a_launchers_cache_shows_but_is_not_written(launcher: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    folders = {"npx": ".npm", "uvx": ".cache/uv", "pipx": ".local/share/pipx"}
    (home / folders[launcher]).mkdir(parents=True)
    executable(tmp_path / "tools" / "bin" / launcher)
    host = HostFacts(search_path=str(tmp_path / "tools" / "bin"), home=home)
    launch = find_launch(server(launcher, "-y", "mcp-server-x@1.0", network="none"), host)
    mount = Mount(source=home / folders[launcher], target=home / folders[launcher], mode=MountMode.OVERLAY)
    assert mount in launch.mounts
    assert launch.package is not None
    assert launch.package.endswith("mcp-server-x@1.0")
    assert any(str(home) in value for value in launch.env.values())


@pytest.mark.parametrize("launcher", ["npx", "uvx", "pipx"])
def test_with_a_network_each_package_has_a_cache_that_only_its_learning_fills(launcher: str, tmp_path: Path) -> None:
    executable(tmp_path / "bin" / launcher)
    host = HostFacts(search_path=str(tmp_path / "bin"), home=tmp_path / "home", cache=tmp_path / "cache")
    one = launch_spec(server(launcher, "-y", "pkg-one", network="host"), host)
    two = launch_spec(server(launcher, "-y", "pkg-two", network="host"), host)
    assert one.filled is not None
    assert one.filled.is_relative_to(tmp_path / "cache")
    assert one.filled.stat().st_mode & 0o777 == 0o700
    assert one.filled != two.filled
    modes = {mount.source: mount.mode for mount in one.template.mounts}
    filling = {mount.source: mount.mode for mount in one.filling.mounts}
    assert modes[one.filled] is MountMode.OVERLAY
    assert filling == modes | {one.filled: MountMode.READ_WRITE}
    assert any(str(one.filled) in value for value in one.template.command.env.values())


def test_the_environment_inside_is_the_configs_and_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    spec = launch_spec(server("sh", env={"TOKEN": "t", "MINE": "m"}, session_env=("MINE",)), HostFacts.here())
    assert set(spec.template.command.env) == {"PATH", "LANG", "TOKEN"}
    assert spec.session_env == {"MINE": "m"}
    assert spec.template.network is Network.NONE


def test_a_missing_command_and_a_missing_mount_are_named(tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailable, match="srv: command '/no/such' was not found") as command:
        launch_spec(server("/no/such"), HostFacts())
    missing = MountSetting(path=tmp_path / "gone")
    with pytest.raises(ServerUnavailable, match=f"srv: mount {tmp_path}/gone does not exist") as mount:
        launch_spec(server("sh", mounts=(missing,)), HostFacts())
    assert command.value.hint == "install it, or give its full path as mcpServers.srv.command"
    assert mount.value.hint == "create it, or correct mcpServers.srv.headstart.mounts"


def test_a_working_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailable, match=f"srv: its cwd {tmp_path}/gone does not exist") as told:
        launch_spec(server("sh", cwd=tmp_path / "gone"), HostFacts())
    assert told.value.hint == "create it, or correct mcpServers.srv.cwd"


def test_a_relative_mount_that_is_not_there_is_told_as_written(tmp_path: Path) -> None:
    mount = MountSetting(path=tmp_path / "gone", written="gone")
    with pytest.raises(ServerUnavailable, match=r"gone \(written as 'gone', which is relative to the file's folder\)"):
        launch_spec(server("sh", mounts=(mount,)), HostFacts())


def test_what_cannot_be_read_is_the_servers_trouble_alone(tmp_path: Path) -> None:
    npx = executable(tmp_path / "bin" / "npx")
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(ServerUnavailable, match=r"srv: what it is started from cannot be read: .*Not a directory"):
        launch_spec(server(npx, "some-server", network="host"), HostFacts(cache=tmp_path / "cache"))


def test_a_relative_path_that_is_mounted_is_reached_from_where_the_server_starts(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    mount = MountSetting(path=tmp_path / "db", mode="rw")
    given = server("sh", "--db-path", "db/data.db", folder=tmp_path, mounts=(mount,))
    assert launch_spec(given, HostFacts()).template.command.cwd == str(tmp_path)
    assert seen(given) == {tmp_path / "db": MountMode.READ_WRITE}
    assert find_launch(server("sh", "db/data.db", folder=tmp_path), HostFacts()).cwd is None


def test_a_relative_script_is_found_and_run_in_its_folder(tmp_path: Path) -> None:
    executable(tmp_path / "src" / "main.py", "")
    given = server(sys.executable, "src/main.py", folder=tmp_path)
    assert find_launch(given, HostFacts()).cwd == tmp_path
    assert seen(given)[tmp_path / "src"] is MountMode.OVERLAY


def test_a_declared_mount_wins_over_a_found_one(tmp_path: Path) -> None:
    script = executable(tmp_path / "srv" / "main.py", "")
    declared = MountSetting(path=tmp_path / "srv", mode="rw")
    visible = seen(server(sys.executable, str(script), mounts=(declared,)))
    assert visible[tmp_path / "srv"] is MountMode.READ_WRITE


def test_what_is_found_lets_writes_go_where_a_declared_mount_sends_them(tmp_path: Path) -> None:
    script = executable(tmp_path / "project" / "srv" / "main.py", "")
    launched = {
        mode: seen(server(sys.executable, str(script), mounts=(MountSetting(path=tmp_path / "project", mode=mode),)))
        for mode in ("ro", "rw", "overlay")
    }
    assert launched["rw"][tmp_path / "project"] is MountMode.READ_WRITE
    assert script.parent not in launched["rw"]
    assert script.parent not in launched["overlay"]
    assert launched["ro"][tmp_path / "project"] is MountMode.READ_ONLY
    assert launched["ro"][script.parent] is MountMode.OVERLAY


def test_a_declared_overlay_in_a_writable_mount_stays_an_overlay(tmp_path: Path) -> None:
    outer, inner = tmp_path / "outer", tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    mounts = (MountSetting(path=outer, mode="rw"), MountSetting(path=inner, mode="overlay"))
    visible = seen(server("sh", mounts=mounts))
    assert (visible[outer], visible[inner]) == (MountMode.READ_WRITE, MountMode.OVERLAY)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_install_prefix_of_somebody_else_is_read_only(tmp_path: Path) -> None:
    script = executable(tmp_path / "srv" / "main.py", "")
    script.parent.chmod(0o555)
    assert seen(server(sys.executable, str(script)))[script.parent] is MountMode.READ_ONLY


def test_a_cache_that_is_filled_has_a_mount_of_its_own_inside_a_prefix(tmp_path: Path) -> None:
    executable(tmp_path / "bin" / "npx")
    host = HostFacts(search_path=str(tmp_path / "bin"), cache=tmp_path / "cache")
    spec = launch_spec(server("npx", "-y", "package", network="host"), host)
    assert spec.filled is not None
    modes = {mount.source: mount.mode for mount in spec.filling.mounts}
    assert (modes[tmp_path], modes[spec.filled]) == (MountMode.OVERLAY, MountMode.READ_WRITE)


@pytest.mark.parametrize("prefix", [".", ".local"])
def test_of_a_home_only_what_belongs_to_programs_is_an_install_prefix(prefix: str, tmp_path: Path) -> None:
    tool = executable(tmp_path / "home" / prefix / "bin" / "tool")
    (tool.parents[1] / "lib").mkdir()
    (tool.parents[1] / "share").mkdir()
    visible = seen(server("tool"), HostFacts(search_path=str(tool.parent), home=tmp_path / "home"))
    assert set(visible) == {tool.parent, tool.parents[1] / "lib"}


SOURCES = ("server.py", "helpers.py", "package")
"""What of `home` is Python's."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a program in it, a module of that, and what is nobody else's business."""
    home = tmp_path / "home"
    for name in (
        "server.py",
        "helpers.py",
        "notes.txt",
        ".netrc",
        ".ssh/id_ed25519",
        ".config/token",
        "package/__init__.py",
    ):
        executable(home / name, "")
    return home


@pytest.mark.parametrize("known_by", ["place", "keys"])
def test_of_a_home_only_the_code_beside_a_script_in_it_shows(home: Path, known_by: str) -> None:
    launched = server(sys.executable, str(home / "server.py"))
    visible = seen(launched, HostFacts(home=home if known_by == "place" else Path("/nonexistent")))
    expected = {home / name for name in SOURCES}
    assert {path for path in visible if path.is_relative_to(home)} == expected
    assert not any(home.is_relative_to(path) for path in visible)


def test_a_program_that_lies_in_a_home_or_leads_there_shows_alone(home: Path) -> None:
    program = executable(home / "tool")
    link = home.parent / "bin" / "tool"
    link.parent.mkdir()
    link.symlink_to(program)
    for command in (program, link):
        visible = seen(server(command), HostFacts(home=home))
        assert {path for path in visible if path.is_relative_to(home)} == {program}
        assert home not in visible


def test_a_home_as_cwd_does_not_show_and_the_server_starts_in_its_own(home: Path) -> None:
    launch = find_launch(server("sh", cwd=home), HostFacts(home=home))
    assert (launch.cwd, launch.mounts) == (None, ())
    script = find_launch(server(sys.executable, "server.py", cwd=home), HostFacts(home=home))
    assert script.cwd == home, "there is a way to what shows in it"
    declared = MountSetting(path=home, mode="ro")
    assert find_launch(server("sh", cwd=home, mounts=(declared,)), HostFacts(home=home)).cwd == home


@pytest.mark.parametrize("cwd", ["/", "/tmp", "/usr"])
def test_what_every_sandbox_has_can_be_a_cwd_and_shows_nothing_of_the_host(cwd: str) -> None:
    launch = find_launch(server("sh", cwd=Path(cwd)), HostFacts())
    assert (launch.cwd, launch.mounts) == (Path(cwd), ())


def test_an_environment_and_sources_that_are_a_home_show_without_its_keys(a_venv: Path, home: Path) -> None:
    (home / "pyvenv.cfg").touch()
    python = executable(home / "bin" / "python")
    site = next(a_venv.glob("lib/python3*/site-packages"))
    pth = site / "__editable__.home.pth"
    pth.write_text(f"{home}\n")
    try:
        for command in (python, a_venv / "bin" / "python"):
            visible = seen(server(command, "-m", "x"), HostFacts(home=home))
            assert not any(home.is_relative_to(path) or (home / ".ssh").is_relative_to(path) for path in visible)
            shown = {home / "bin"} if command == python else {home / name for name in SOURCES}
            assert shown <= set(visible)
    finally:
        pth.unlink()


def test_whatever_changes_what_a_server_says_changes_its_digest(a_venv: Path, tmp_path: Path) -> None:
    script = executable(tmp_path / "srv.py", "one")
    base = server(sys.executable, str(script), env={"A": "1"})
    others = [
        server(sys.executable, str(script), "more", env={"A": "1"}),
        server(sys.executable, str(script), env={"A": "2"}),
        server(sys.executable, str(script), env={"A": "1"}, network="host"),
        server(sys.executable, str(script), env={"A": "1"}, memory_mb=100),
        server(sys.executable, str(script), env={"A": "1"}, cwd=tmp_path),
    ]
    digests = [launch_spec(one, HostFacts()).digest for one in (base, *others)]
    script.write_text("another one")
    digests.append(launch_spec(base, HostFacts()).digest)
    assert len(set(digests)) == len(digests)
    assert launch_spec(base, HostFacts()).digest == digests[-1]


def test_a_remote_servers_digest_is_its_place_and_its_headers() -> None:
    one = ServerSettings(name=NAME, url="http://a/mcp", headers={"X": "1"})
    other = ServerSettings(name=NAME, url="http://a/mcp", headers={"X": "2"})
    assert remote_digest(one) != remote_digest(other)
