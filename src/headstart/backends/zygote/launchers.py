"""Launchers that find a Python program by name: what they would execute, found offline."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headstart.backends.contract import Command

__all__ = ["Launched", "follow_launcher"]

ASK_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """What the launcher would execute, and where, if not where it is itself."""

    argv: tuple[str, ...]
    cwd: str | None = None


def follow_launcher(program: Path, words: Sequence[str], command: Command) -> Launched | str | None:
    """Return what a launcher leads to, why it cannot be followed, or None if the program is no launcher."""
    match program.name:
        case "uvx":
            return _follow_uvx(program, [], words, command)
        case "uv":
            return _follow_uv(program, words, command)
        case "pipx" if words[:1] == ["run"]:
            return _follow_pipx(words[1:], command)
        case "pipx":
            return "pipx does not run a program"
        case _:
            return None


def _follow_uv(program: Path, words: Sequence[str], command: Command) -> Launched | str:
    """Read uv's options before its subcommand (`uv --directory D run x`), then the subcommand."""
    options, rest = _split(words, frozenset({"--directory", "--project", "--config-file", "--cache-dir", "--color"}))
    before = [part for name, value in options.items() for part in ((name, value) if value else (name,))]
    match rest:
        case ["tool", "run", *more]:
            return _follow_uvx(program, ["tool", "run"], more, command)
        case ["run", *more]:
            return _follow_uv_run([*before, *more], command)
        case _:
            return "uv does not run a program"


def _split(words: Sequence[str], with_value: frozenset[str]) -> tuple[dict[str, str], list[str]]:
    """Split a launcher's own options (those in `with_value` take one) from the command that follows."""
    options: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, joined, value = word.partition("=")
        if not joined and name in with_value and rest:
            value = rest.pop(0)
        options[name] = value
    return options, rest


def _follow_uvx(program: Path, before: list[str], words: Sequence[str], command: Command) -> Launched | str:
    """Ask uv itself, offline, which environment it would use for the tool."""
    options, rest = _split(words, frozenset({"--from", "--python", "-p", "--with", "--index", "--index-url"}))
    if not rest:
        return "uvx is given no tool"
    tool, *args = rest
    source = options.pop("--from", tool)
    kept = [part for name, value in options.items() for part in ((name, value) if value else (name,))]
    asked = (
        str(program),
        *before,
        "--offline",
        *kept,
        "--from",
        source,
        "python",
        "-c",
        "import sys; print(sys.prefix)",
    )
    prefix = _ask(asked, command.env)
    if prefix is None:
        return f"{source} is not installed for uv yet (try: uv tool install {source})"
    script = Path(prefix) / "bin" / re.split(r"[@=<>\[]", tool, maxsplit=1)[0]
    if not script.is_file():
        return f"{source} has no console script {script.name}"
    return Launched(argv=(str(script), *args))


def _ask(argv: Sequence[str], env: Mapping[str, str]) -> str | None:
    try:
        done = subprocess.run(argv, env=dict(env), capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 and done.stdout.strip() else None


def _follow_uv_run(words: Sequence[str], command: Command) -> Launched | str:
    """Use the project's own environment, as `uv run` does when it has nothing to install."""
    options, rest = _split(
        words, frozenset({"--directory", "--project", "--with", "--python", "-p", "--package", "-m", "--module"})
    )
    makes_own = {"--with", "--isolated", "--script", "--package"} & options.keys()
    if makes_own:
        return f"uv run {min(makes_own)} makes an environment of its own"
    folder = Path(command.cwd or "/") / options.get("--directory", "")
    project = folder / options.get("--project", "")
    bin_dir = project / command.env.get("UV_PROJECT_ENVIRONMENT", ".venv") / "bin"
    if not (bin_dir / "python").exists():
        return f"{project} has no environment yet (try: uv sync)"
    module = options.get("-m") or options.get("--module")
    if module is not None:
        found: Launched | str = Launched(argv=(str(bin_dir / "python"), "-m", module, *rest))
    else:
        found = _in_project(bin_dir, folder, rest)
    return replace(found, cwd=str(folder)) if isinstance(found, Launched) and "--directory" in options else found


def _in_project(bin_dir: Path, folder: Path, words: Sequence[str]) -> Launched | str:
    if not words:
        return "uv run is given no program"
    name, *args = words
    script = folder / name
    if (bin_dir / name).is_file():
        return Launched(argv=(str(bin_dir / name), *args))
    if not name.endswith(".py") or not script.is_file():
        return f"{name} is not in {bin_dir}"
    if "# /// script" in script.read_text(errors="replace"):
        return f"{name} declares its own dependencies, for which uv makes an environment"
    return Launched(argv=(str(bin_dir / "python"), str(script), *args))


def _follow_pipx(words: Sequence[str], command: Command) -> Launched | str:
    """Find the environment that an earlier `pipx run` has cached."""
    options, rest = _split(words, frozenset({"--spec", "--python", "--index-url", "--pip-args"}))
    if not rest:
        return "pipx run is given no program"
    name, *args = rest
    home = command.env.get("PIPX_HOME")
    base = Path(command.env.get("HOME", "/"))
    homes = [Path(home)] if home else [base / ".local/share/pipx", base / ".local/pipx"]
    found = [path for folder in homes for path in sorted(folder.glob(f".cache/*/bin/{name}"))]
    if len(found) != 1 or "--spec" in options:
        return (
            f"pipx has {len(found)} cached environments for {name}; one is needed (try: pipx install, and its script)"
        )
    return Launched(argv=(str(found[0]), *args))
