"""A version manager's shim is followed to the program that it would run."""

from pathlib import Path

import pytest

from headstart.config.model import ServerSettings
from headstart.errors import ServerUnavailable
from headstart.ids import ResourceId
from headstart.runtime.launch import HostFacts, find_launch

from .test_launch import executable

PYENV = '#!/usr/bin/env bash\nset -e\nprogram="${{0##*/}}"\nexec "{manager}" exec "$program" "$@"\n'
ASDF = '#!/usr/bin/env bash\n# asdf-plugin: nodejs 22.0.0\nexec asdf exec "tool" "$@" # asdf_allow: \' asdf \'\n'


def launched(command: Path, *, search: str = "/usr/bin:/bin", cwd: Path | None = None) -> str:
    server = ServerSettings(name=ResourceId("srv"), command=str(command), cwd=cwd)
    return find_launch(server, HostFacts(search_path=search)).program


@pytest.fixture
def real(tmp_path: Path) -> Path:
    return executable(tmp_path / "versions" / "3.11" / "bin" / "tool")


def test_a_shim_with_its_managers_path_is_followed(tmp_path: Path, real: Path) -> None:
    manager = executable(tmp_path / "libexec" / "pyenv", f'#!/bin/sh\n[ "$*" = "which tool" ] && echo {real}\n')
    assert launched(executable(tmp_path / "shims" / "tool", PYENV.format(manager=manager))) == str(real)


def test_a_shim_that_names_its_manager_is_followed(tmp_path: Path, real: Path) -> None:
    executable(tmp_path / "bin" / "asdf", f'#!/bin/sh\n[ "$*" = "which tool" ] && echo {real}\n')
    shim = executable(tmp_path / "shims" / "tool", ASDF)
    assert launched(shim, search=f"{tmp_path / 'bin'}:/usr/bin:/bin") == str(real)


def test_a_script_whose_interpreter_is_a_shim_finds_the_real_one(tmp_path: Path, real: Path) -> None:
    manager = executable(tmp_path / "libexec" / "pyenv", f'#!/bin/sh\n[ "$*" = "which tool" ] && echo {real}\n')
    executable(tmp_path / "shims" / "tool", PYENV.format(manager=manager))
    script = executable(tmp_path / "app" / "serve", "#!/usr/bin/env tool\n")
    server = ServerSettings(name=ResourceId("srv"), command=str(script))
    launch = find_launch(server, HostFacts(search_path=f"{tmp_path / 'shims'}:/usr/bin:/bin"))
    assert launch.path.split(":")[:2] == [str(script.parent), str(real.parent)]
    assert real.parent.parent in {mount.target for mount in launch.mounts}


@pytest.mark.parametrize(("binary", "manager"), [("mise", "mise"), ("volta-shim", "volta")])
def test_a_shim_that_is_a_link_is_followed(tmp_path: Path, real: Path, binary: str, manager: str) -> None:
    executable(tmp_path / "bin" / binary)
    executable(tmp_path / "bin" / manager, f'#!/bin/sh\n[ "$*" = "which tool" ] && echo {real}\n')
    (tmp_path / "shims").mkdir()
    (shim := tmp_path / "shims" / "tool").symlink_to(tmp_path / "bin" / binary)
    assert launched(shim) == str(real)


def test_the_servers_working_directory_decides_the_version(tmp_path: Path, real: Path) -> None:
    other = executable(tmp_path / "versions" / "3.12" / "bin" / "tool")
    script = f"#!/bin/sh\n[ -f .version ] && echo {other} || echo {real}\n"
    manager = executable(tmp_path / "libexec" / "pyenv", script)
    shim = executable(tmp_path / "shims" / "tool", PYENV.format(manager=manager))
    (project := tmp_path / "project").mkdir()
    (project / ".version").touch()
    assert (launched(shim), launched(shim, cwd=project)) == (str(real), str(other))


@pytest.mark.parametrize("answer", ["echo 'pyenv: tool: command not found' >&2; exit 127", "echo nonsense", "exit 0"])
def test_a_manager_that_does_not_know_is_told_with_its_words(tmp_path: Path, answer: str) -> None:
    manager = executable(tmp_path / "libexec" / "pyenv", f"#!/bin/sh\n{answer}\n")
    shim = executable(tmp_path / "shims" / "tool", PYENV.format(manager=manager))
    with pytest.raises(ServerUnavailable, match=r"srv: .*/shims/tool only leads to what pyenv chooses") as told:
        launched(shim)
    assert ("command not found" in str(told.value)) == ("not found" in answer)
    assert "mcpServers.srv.command" in str(told.value.hint)


def test_a_program_that_only_lives_in_such_a_folder_is_none(tmp_path: Path) -> None:
    program = executable(tmp_path / "shims" / "tool", "#!/bin/sh\nexec sleep 1\n")
    assert launched(program) == str(program)
