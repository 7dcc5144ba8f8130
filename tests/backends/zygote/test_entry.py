"""A launch command is followed to the Python program behind it, or to the reason why there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headstart.backends.contract import Command
from headstart.backends.zygote import ColdReason, EntryPlan, plan_entry


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    bin_dir = tmp_path / "venv" / "bin"
    bin_dir.mkdir(parents=True)
    (bin_dir / "python").symlink_to(sys.executable)
    (bin_dir / "python3").symlink_to("python")
    executable(bin_dir / "tool", f"#!{bin_dir}/python3\nprint('tool')\n")
    return tmp_path / "venv"


def plan(*argv: str, path: Path | str = "/nowhere", cwd: Path | None = None, **env: str) -> EntryPlan | ColdReason:
    return plan_entry(Command(argv=argv, env={"PATH": str(path), **env}, cwd=str(cwd) if cwd else None))


def test_a_console_script_runs_with_the_interpreter_of_its_venv(venv: Path) -> None:
    expected = EntryPlan(
        interpreter=str(venv / "bin/python3"), entry=(str(venv / "bin/tool"),), args=("--x", "a b"), options=()
    )
    assert plan(str(venv / "bin/tool"), "--x", "a b") == expected
    assert plan("tool", "--x", "a b", path=venv / "bin") == expected


@pytest.mark.parametrize(
    ("words", "options", "entry", "args"),
    [
        (["-m", "server", "--port", "1"], (), ("-m", "server"), ("--port", "1")),
        (["-mserver"], (), ("-m", "server"), ()),
        (["-um", "server"], ("-u",), ("-m", "server"), ()),
        (["-u", "-X", "utf8", "-Wignore", "-m", "server"], ("-u", "-Xutf8", "-Wignore"), ("-m", "server"), ()),
        (["-OO", "/app/run.py", "-m"], ("-O", "-O"), ("/app/run.py",), ("-m",)),
        (["run.py"], (), ("/work/run.py",), ()),
        (["../run.py"], (), ("/run.py",), ()),
    ],
)
def test_pythons_own_command_line_is_read(
    venv: Path, words: list[str], options: tuple[str, ...], entry: tuple[str, ...], args: tuple[str, ...]
) -> None:
    found = plan("python3", *words, path=venv / "bin", cwd=Path("/work"))
    assert found == EntryPlan(interpreter=str(venv / "bin/python3"), options=options, entry=entry, args=args)


@pytest.mark.parametrize("words", [["-c", "print()"], ["-"], ["-i", "x.py"], ["--version"], ["-V"], [], ["-m"]])
def test_python_without_a_script_or_module_starts_cold(venv: Path, words: list[str]) -> None:
    assert isinstance(plan("python3", *words, path=venv / "bin"), ColdReason)


@pytest.mark.parametrize(
    "line",
    [
        "#!{bin}/python",
        "#! {bin}/python",
        "#!/usr/bin/env python",
        "#!/usr/bin/env -S python",
        "#!/bin/sh\n'''exec' \"{bin}/python\" \"$0\" \"$@\"\n' '''",
    ],
)
def test_every_common_shebang_leads_to_its_python(venv: Path, line: str) -> None:
    script = executable(venv / "bin" / "other", line.format(bin=venv / "bin") + "\nprint()\n")
    found = plan(str(script), path=venv / "bin")
    assert found == EntryPlan(interpreter=str(venv / "bin/python"), entry=(str(script),))


def test_a_script_that_looks_for_its_python_beside_itself_finds_it_through_links(venv: Path, tmp_path: Path) -> None:
    """As uv writes scripts into environments that can be moved, those of `uvx` among them."""
    environment = venv.rename(tmp_path / "an environment")
    text = "#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'python' \"$0\" \"$@\"\n' '''\n"
    script = executable(environment / "bin" / "other", text)
    link = tmp_path / "link"
    link.symlink_to(script)
    for started in (script, link):
        expected = EntryPlan(interpreter=str(environment / "bin/python"), entry=(str(started),), args=("-v",))
        assert plan(str(started), "-v") == expected


def test_options_in_a_shebang_count(venv: Path) -> None:
    script = executable(venv / "bin" / "other", f"#!{venv}/bin/python -sE\n")
    assert plan(str(script)) == EntryPlan(
        interpreter=str(venv / "bin/python"), entry=(str(script),), options=("-s", "-E")
    )


@pytest.mark.parametrize("text", ["#!/usr/bin/env node\n", "#!/bin/sh\necho\n", "\x7fELF", ""])
def test_other_programs_are_not_python(tmp_path: Path, text: str) -> None:
    script = executable(tmp_path / "server", text)
    executable(tmp_path / "node", "\x7fELF")
    found = plan(str(script), path=tmp_path)
    assert isinstance(found, ColdReason)
    assert found.text.endswith("is not a Python program")


def test_a_command_that_is_nowhere_is_told() -> None:
    assert plan("no-such-command") == ColdReason(text="no-such-command was not found")


def test_a_script_that_names_itself_does_not_go_round_for_ever(tmp_path: Path) -> None:
    script = executable(tmp_path / "loop", "#!/usr/bin/env loop\n")
    assert plan(str(script), path=tmp_path) == ColdReason(text=f"{script} leads through more than 5 launchers")


FAKE_UV = """#!/bin/sh
for word; do last=$word; [ "$word" = --from ] && from=1 && continue; [ "$from" = 1 ] && source=$word && from=0; done
[ "$source" = "tool==2" ] && exit 1
case "$*" in *--offline*) echo {prefix};; esac
"""


@pytest.mark.parametrize(
    "words",
    [["uvx", "tool", "--x"], ["uvx", "--from", "tools[all]", "tool", "--x"], ["uv", "tool", "run", "tool", "--x"]],
)
def test_uvx_is_asked_offline_where_its_tool_lives(tmp_path: Path, venv: Path, words: list[str]) -> None:
    for name in ("uv", "uvx"):
        executable(tmp_path / "bin" / name, FAKE_UV.replace("{prefix}", str(venv)))
    found = plan(*words, path=f"{tmp_path}/bin:/usr/bin:/bin")
    assert found == EntryPlan(interpreter=str(venv / "bin/python3"), entry=(str(venv / "bin/tool"),), args=("--x",))


def test_a_tool_that_uv_would_have_to_download_starts_cold(tmp_path: Path, venv: Path) -> None:
    executable(tmp_path / "bin" / "uvx", FAKE_UV.replace("{prefix}", str(venv)))
    found = plan("uvx", "tool==2", path=f"{tmp_path}/bin:/usr/bin:/bin")
    assert found == ColdReason(text="tool==2 is not installed for uv yet (try: uv tool install tool==2)")


def test_uv_run_uses_the_environment_of_the_project(tmp_path: Path, venv: Path) -> None:
    uv = executable(tmp_path / "bin" / "uv", "\x7fELF")
    venv.rename(tmp_path / ".venv")
    script = executable(tmp_path / ".venv/bin/tool", f"#!{tmp_path}/.venv/bin/python\n")
    python = str(tmp_path / ".venv/bin/python")
    assert plan(str(uv), "run", "tool", "-v", cwd=tmp_path) == EntryPlan(
        interpreter=python, entry=(str(script),), args=("-v",)
    )
    for words in (["--directory", str(tmp_path), "run"], ["run", f"--directory={tmp_path}"]):
        assert plan(str(uv), *words, "tool") == EntryPlan(interpreter=python, entry=(str(script),), cwd=str(tmp_path))
    (tmp_path / "weather.py").write_text("")
    assert plan(str(uv), "--directory", str(tmp_path), "run", "weather.py", cwd=Path("/")) == EntryPlan(
        interpreter=python, entry=(str(tmp_path / "weather.py"),), cwd=str(tmp_path)
    )
    assert plan(str(uv), "run", "-m", "server", cwd=tmp_path) == EntryPlan(interpreter=python, entry=("-m", "server"))
    assert plan(str(uv), "run", "--with", "x", "tool", cwd=tmp_path) == ColdReason(
        text="uv run --with makes an environment of its own"
    )


def test_pipx_run_uses_the_environment_it_has_cached(tmp_path: Path, venv: Path) -> None:
    pipx = executable(tmp_path / "bin" / "pipx", "\x7fELF")
    cached = tmp_path / ".local/share/pipx/.cache/abc/bin/tool"
    executable(cached, f"#!{venv}/bin/python\n")
    found = plan(str(pipx), "run", "tool", "a", HOME=str(tmp_path))
    assert found == EntryPlan(interpreter=str(venv / "bin/python"), entry=(str(cached),), args=("a",))
    assert isinstance(plan(str(pipx), "run", "other", HOME=str(tmp_path)), ColdReason)


def test_a_program_that_cannot_be_read_starts_cold_with_the_reason(tmp_path: Path) -> None:
    found = plan("./" + "x" * 300, cwd=tmp_path)
    assert isinstance(found, ColdReason)
    assert found.text.startswith("its program cannot be read: [Errno 36] File name too long")
