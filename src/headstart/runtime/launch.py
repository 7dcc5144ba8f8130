"""What a server's launch needs to see of the host: found by reading it, asking only version managers.

A sandbox has a minimal root, so a server that lives in a virtual environment, in
`node_modules` or in a tool's cache must be given exactly its own install prefix. This
module follows the command: symlinks hop by hop, the script's `#!` line, the virtual
environment it belongs to, that environment's base interpreter and the source folders of
its editable installs, the outermost `node_modules`, the caches of `npx` and `uvx`.

On a normal machine a server can write to what its user may write to, often its own install
prefix. Such a folder is mounted as an overlay: written to inside, unchanged outside. Of a
home only programs show, and the code beside one that lies directly in it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headstart.backends.contract import Mount, MountMode
from headstart.config.homes import SHARED, code_beside, is_crowded, python_in
from headstart.config.model import ServerSettings
from headstart.config.named import relative_paths
from headstart.errors import ServerUnavailable
from headstart.runtime.shims import behind_shim

__all__ = ["HostFacts", "Launch", "find_launch"]

SYSTEM = tuple(Path(p) for p in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"))
"""What every sandbox's root has already."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MAX_LINKS = 40
HOMES_PROGRAMS = ("bin", "lib", "lib64", "libexec", "pyvenv.cfg")
"""What of a home (or its `.local`) is a program's install prefix; the rest is its user's."""
INTERPRETERS = ("python", "node", "bun", "deno", "ruby", "perl", "bash", "sh")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What of the service's own surroundings servers are started from.

    Attributes:
        search_path: Where commands without a slash are looked for.
        home: Whose `npx` and `uvx` caches are shown.
        cache: Where caches of our own are kept.
    """

    search_path: str = SYSTEM_PATH
    home: Path = Path("/nonexistent")
    cache: Path = Path("/nonexistent")

    @classmethod
    def here(cls) -> HostFacts:
        """Read them from the environment of this process."""
        home = Path.home()
        cache = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "headstart"
        return cls(search_path=os.environ.get("PATH", SYSTEM_PATH), home=home, cache=cache)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a server is started, and what it must see for it.

    Attributes:
        program: Absolute path to execute.
        cwd: Where it is started; None for its private home.
        path: The `PATH` for inside.
        env: More environment that the launcher needs (caches).
        mounts: Host paths, without what the system directories cover.
        stamps: Changes when what is installed changes.
        package: `npx mcp-server-x` and the like share a download cache: starts of one
            package must not overlap. None for everything else.
        filled: The cache that the first start may write to, if there is one.
    """

    program: str
    cwd: Path | None
    path: str
    env: dict[str, str]
    mounts: tuple[Mount, ...]
    stamps: tuple[str, ...]
    package: str | None
    filled: Path | None = None


def find_launch(server: ServerSettings, host: HostFacts) -> Launch:
    """Find what a stdio server's command needs; reads the file system.

    Raises:
        ServerUnavailable: The command does not exist or cannot be executed.
        OSError: What it leads to cannot be read, or went away meanwhile.
    """
    search = server.env.get("PATH", host.search_path)
    resolve = partial(behind_shim, server=server.name, cwd=server.base, search=search)
    program = _find_program(server, search, resolve)
    seen = _Seen(resolve, host.home)
    seen.follow(program, search)
    script = _script_argument(program, server)
    if script is not None:
        seen.follow_script(script)
    cache = _launcher_cache(program, server, host)
    caches = tuple(Mount(source=one, target=one, mode=MountMode.OVERLAY) for one in cache.folders)
    if server.cwd is not None and not is_crowded(server.cwd, host.home):
        seen.add(server.cwd)
    declared = tuple(Mount(source=m.path, target=m.target or m.path, mode=MountMode(m.mode)) for m in server.mounts)
    mounts = _without_covered(declared, (*seen.mounts(), *caches), kept=cache.filled)
    return Launch(
        program=str(program),
        cwd=_start_folder(server, mounts),
        path=":".join(dict.fromkeys((*seen.bin_dirs, *SYSTEM_PATH.split(":")))),
        env=cache.env,
        mounts=mounts,
        stamps=tuple(sorted(seen.stamps)),
        package=_package(program, server),
        filled=cache.filled,
    )


def _find_program(server: ServerSettings, search: str, resolve: Callable[[Path], Path]) -> Path:
    command = server.command or ""
    if "/" in command:
        base = server.base or Path("/")
        path = Path(os.path.normpath(base / command))
        found = str(path) if os.access(path, os.X_OK) and path.is_file() else None
    else:
        found = shutil.which(command, path=search)
    if found is None:
        raise ServerUnavailable(
            f"{server.name}: command {command!r} was not found",
            server=server.name,
            hint=f"install it, or give its full path as mcpServers.{server.name}.command",
        )
    path = resolve(Path(found))
    return path if _venv_of(path) else path.resolve()


def _start_folder(server: ServerSettings, mounts: tuple[Mount, ...]) -> Path | None:
    """Its `cwd`, else where relative paths reach what is mounted for them; None, its private home, if neither shows.

    Such a folder, and a `cwd` that is a home, shows only as the way to these mounts.
    """
    folder = server.base
    if folder is None:
        return None
    standing = _is_system(folder) or folder in (Path("/"), *SHARED)
    if folder == server.cwd and (standing or any(folder.is_relative_to(mount.target) for mount in mounts)):
        return folder
    shown = [mount.target for mount in mounts if mount.source == mount.target]
    inside = (path for path in relative_paths(server) if path.is_relative_to(folder))
    return folder if any(path.is_relative_to(one) for path in inside for one in shown) else None


class _Seen:
    """Collects host paths while following a command; `resolve` looks behind shims."""

    def __init__(self, resolve: Callable[[Path], Path], home: Path) -> None:
        self._resolve = resolve
        self._home = home
        self._mounts: dict[Path, MountMode] = {}
        self.bin_dirs: list[str] = []
        self.stamps: set[str] = set()

    def mounts(self) -> tuple[Mount, ...]:
        return tuple(Mount(source=p, target=p, mode=mode) for p, mode in self._mounts.items())

    def add(self, path: Path) -> None:
        if not _is_system(path) and path != Path("/"):
            writable = path.is_dir() and os.access(path, os.W_OK)
            self._mounts.setdefault(path, MountMode.OVERLAY if writable else MountMode.READ_ONLY)

    def follow(self, program: Path, search: str) -> None:
        self._stamp(program)
        self.bin_dirs.append(str(program.parent))
        self._install_of(program)
        interpreter = _shebang(program, search)
        if interpreter is not None and interpreter != program:
            interpreter = self._resolve(interpreter)
            self.bin_dirs.append(str(interpreter.parent))
            self._install_of(interpreter)

    def follow_script(self, script: Path) -> None:
        """A script that an interpreter is given: its folder is its program."""
        self._stamp(script)
        if not self._node_modules(script.resolve()):
            self._folder_of(script)
        if script.is_symlink():
            self._folder_of(script.resolve())

    def _folder_of(self, program: Path) -> None:
        """Add the folder that a program lies in; of a home, only the code beside it."""
        if is_crowded(program.parent, self._home):
            for path in code_beside(program):
                self.add(path)
        else:
            self.add(program.parent)

    def _install_of(self, program: Path) -> None:
        venv = _venv_of(program)
        if venv is not None:
            self._venv(venv)
        for hop in _links(program):
            if not self._node_modules(hop):
                self._prefix(hop, venv)

    def _venv(self, venv: Path) -> None:
        self._add_prefix(venv)
        for site in venv.glob("lib/python3*/site-packages"):
            self._stamp(site)
            for source in _editable_sources(site):
                self._sources(source)
        for python in (venv / "bin" / "python", venv / "bin" / "python3"):
            for hop in _links(python):
                self._prefix(hop, venv)

    def _prefix(self, program: Path, venv: Path | None) -> None:
        """Add the install prefix of a program outside of the system directories."""
        if _is_system(program) or (venv is not None and program.is_relative_to(venv)):
            return
        if program.parent.name != "bin" or len(program.parent.parent.parts) <= 2:
            self._folder_of(program)
        else:
            self._add_prefix(program.parent.parent)

    def _add_prefix(self, prefix: Path) -> None:
        if is_crowded(prefix.parent if prefix.name == ".local" else prefix, self._home):
            for path in (prefix / name for name in HOMES_PROGRAMS):
                if path.exists():
                    self.add(path)
        else:
            self.add(prefix)

    def _sources(self, folder: Path) -> None:
        for path in python_in(folder) if is_crowded(folder, self._home) else (folder,):
            self.add(path)

    def _node_modules(self, path: Path) -> bool:
        names = path.parts
        if "node_modules" not in names:
            return False
        self.add(Path(*names[: names.index("node_modules") + 1]))
        manifest = Path(*names[: names.index("node_modules")]) / "package.json"
        if manifest.exists():
            self._stamp(manifest)
            self.add(manifest)
        return True

    def _stamp(self, path: Path) -> None:
        stat = path.stat()
        self.stamps.add(f"{path}:{stat.st_mtime_ns}:{stat.st_size if path.is_file() else 0}")


def _is_system(path: Path) -> bool:
    return any(path.is_relative_to(root) for root in SYSTEM)


def _venv_of(program: Path) -> Path | None:
    root = program.parent.parent
    return root if (root / "pyvenv.cfg").is_file() else None


def _links(path: Path) -> Iterator[Path]:
    """Yield a path and every place its symlinks lead to, in order, also through linked folders."""
    for _ in range(MAX_LINKS):
        yield path
        real_parent = path.parent.resolve()
        if real_parent != path.parent:
            path = real_parent / path.name
        elif path.is_symlink():
            path = Path(os.path.normpath(path.parent / path.readlink()))
        else:
            return


def _shebang(program: Path, search: str) -> Path | None:
    with program.open("rb") as file:
        first = file.readline(4096)
    if not first.startswith(b"#!"):
        return None
    words = first[2:].decode("utf-8", "replace").split()
    if not words:
        return None
    if Path(words[0]).name == "env":
        named = next((w for w in words[1:] if not w.startswith("-") and "=" not in w), "")
        found = shutil.which(named, path=f"{program.parent}:{search}")
        return Path(found) if found else None
    return Path(words[0]) if Path(words[0]).exists() else None


def _editable_sources(site: Path) -> Iterator[Path]:
    for pth in site.glob("*.pth"):
        for line in pth.read_text("utf-8", "replace").splitlines():
            if line.startswith("/") and Path(line).is_dir():
                yield Path(line)


def _script_argument(program: Path, server: ServerSettings) -> Path | None:
    if not program.name.startswith(INTERPRETERS):
        return None
    base = server.base or Path("/")
    script = next((a for a in server.args if not a.startswith("-")), None)
    if script is None or "-m" in server.args or "-c" in server.args:
        return None
    path = Path(os.path.normpath(base / script))
    return path if path.is_file() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cache:
    """Where a launcher keeps what it has downloaded.

    Attributes:
        env: Tells the launcher.
        folders: What of the host it shows.
        filled: The one that learning may write to, so that later starts need not download.
    """

    env: dict[str, str]
    folders: tuple[Path, ...] = ()
    filled: Path | None = None


def _launcher_cache(program: Path, server: ServerSettings, host: HostFacts) -> _Cache:
    """A private home must not download again.

    With a network, each package has a cache of its own, which its learning fills: sandboxes
    of different packages cannot change each other's. Without one, what the user has
    downloaded by hand is shown. Either way what a sandbox writes stays in it.
    """
    kind = _launcher(program)
    if kind is None:
        return _Cache(env={})
    if server.network == "none":
        return _Cache(env=_cache_env(kind, host.home, offline=True), folders=_user_caches(kind, host.home))
    name = hashlib.blake2b(str(_package(program, server)).encode(), digest_size=8).hexdigest()
    own = host.cache / "packages" / f"{kind}-{name}"
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _Cache(env=_cache_env(kind, own, offline=False), folders=(own,), filled=own)


def _cache_env(kind: str, home: Path, *, offline: bool) -> dict[str, str]:
    match kind:
        case "npx":
            mode = "npm_config_offline" if offline else "npm_config_prefer_offline"
            return {"npm_config_cache": str(home / ".npm"), "npm_config_update_notifier": "false", mode: "true"}
        case "uv":
            env = {
                "UV_CACHE_DIR": str(home / ".cache/uv"),
                "UV_PYTHON_INSTALL_DIR": str(home / ".local/share/uv/python"),
                "UV_TOOL_DIR": str(home / ".local/share/uv/tools"),
            }
            return env | {"UV_OFFLINE": "1"} if offline else env
        case _:
            return {"PIPX_HOME": str(home / ".local/share/pipx"), "PIP_CACHE_DIR": str(home / ".cache/pip")}


def _user_caches(kind: str, home: Path) -> tuple[Path, ...]:
    names = {
        "npx": (".npm",),
        "uv": (".cache/uv", ".local/share/uv"),
        "pipx": (".local/share/pipx", ".local/pipx", ".cache/pipx"),
    }
    return tuple(home / name for name in names[kind] if (home / name).is_dir())


def _launcher(program: Path) -> str | None:
    name = program.name
    if name in ("npx", "npm", "npx-cli.js", "npm-cli.js"):
        return "npx"
    return {"uv": "uv", "uvx": "uv", "pipx": "pipx"}.get(name)


def _package(program: Path, server: ServerSettings) -> str | None:
    kind = _launcher(program)
    if kind is None:
        return None
    words = [a for a in server.args if not a.startswith("-") and a not in ("run", "tool", "exec", "x")]
    return f"{kind} {words[0]}" if words else kind


def _without_covered(declared: tuple[Mount, ...], found: tuple[Mount, ...], *, kept: Path | None) -> tuple[Mount, ...]:
    """Drop what another mount shows already; declared mounts win. The folder `kept` needs a mount of its own."""
    mounts: list[Mount] = []
    for mount in sorted(dict.fromkeys((*declared, *found)), key=lambda m: len(m.target.parts)):
        covering = [outer for outer in mounts if mount.target.is_relative_to(outer.target)]
        shown = any(_shows(outer, mount, found=mount not in declared) for outer in covering)
        if not shown or (mount.source == kept and mount.target not in {outer.target for outer in covering}):
            mounts.append(mount)
    return tuple(mounts)


def _shows(outer: Mount, inner: Mount, *, found: bool) -> bool:
    """Whether `inner` adds nothing: what is found need only be there, and lets writes go where they are declared to."""
    same_place = outer.source / inner.target.relative_to(outer.target) == inner.source
    return same_place and (
        outer.mode == inner.mode
        or inner.mode is MountMode.READ_ONLY
        or outer.target == inner.target
        or (found and outer.mode is MountMode.READ_WRITE)
    )
