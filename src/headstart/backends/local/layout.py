"""What a sandbox's file tree holds: system folders, a synthetic /etc, the declared mounts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from headstart.backends.contract import Identity, Mount, MountMode, Network, Template
from headstart.backends.local.guest.userns import SANDBOX_ID
from headstart.errors import BackendError

__all__ = ["base_folders", "hidden_targets", "overlay_targets", "own_files", "tree_plan"]

_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")

_PUBLIC_ETC = (
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "debian_version",
    "fonts",
    "gai.conf",
    "host.conf",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "magic",
    "magic.mime",
    "mime.types",
    "os-release",
    "pki/tls/certs",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
)
"""Files are copied, folders bound, where they exist; only what is world-readable shows."""

_FOLDERS = {"/var/lib": 0o755, "/var/cache": 0o755, "/var/log": 0o755, "/mnt": 0o755, "/opt": 0o755, "/srv": 0o755}
_SYSTEMS_OWN = frozenset(
    map(Path, (*_SYSTEM_FOLDERS, *_FOLDERS, "/", "/etc", "/var", "/home", "/dev", "/proc", "/sys", "/run"))
)
"""Folders that belong to the system, whoever runs the service."""

_SCRATCH = {"/tmp": 0o1777, "/var/tmp": 0o1777, "/dev/shm": 0o1777}  # noqa: S108  inside
_TOP_LEVEL = 2
_MACHINE_ID, _BOOT_ID = "/etc/machine-id", "/proc/sys/kernel/random/boot_id"
_OTHER_MACHINE_ID = "/var/lib/dbus/machine-id"
_LINKS = {"/var/run": "/run", "/var/lock": "/run/lock", "/etc/mtab": "/proc/self/mounts"}


def tree_plan(template: Template, *, secret: Path, extra: tuple[Mount, ...] = ()) -> dict[str, Any]:
    """Return the plan for the guest's `tree.build_and_enter`; the folder `secret` shows nowhere.

    Raises:
        BackendError: A declared mount's source is missing or the service's state, or its target cannot be one; or the
            root or the base is missing.
    """
    mounts = list[dict[str, Any]]()
    for mount in sorted((*template.mounts, *extra), key=lambda mount: len(mount.target.parts)):
        _check(template, mount, secret)
        mounts.append(_bind(mount.source, mount.target, mount.mode, owned=True))
    return {
        **(_of_the_host(template, mounts) if template.root is None else _of_a_root(template, template.root, mounts)),
        "files": _files(template),
        "hidden": hidden_targets(template, secret),
        "home": template.private_home,
        "private": _private(template),
        "overlays": overlay_targets(template),
        "plain": template.preload is not None,
        "base": None if template.base is None else str(_folder(template, template.base)),
    }


def _of_the_host(template: Template, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the parts of a plan that show the host's system folders."""
    links, system = dict(_LINKS), list[dict[str, Any]]()
    for folder in map(Path, _SYSTEM_FOLDERS):
        if folder.is_symlink():
            links[str(folder)] = str(folder.readlink())
        elif folder.is_dir():
            system.append(_bind(folder, folder, MountMode.READ_ONLY, owned=False))
    public = [_bind(folder, folder, MountMode.READ_ONLY, owned=False) for folder in _public_folders()]
    return {
        "root": None,
        "folders": _FOLDERS,
        "copies": _copies(template.network),
        "links": links,
        "binds": [*system, *mounts, *public],
    }


def _of_a_root(template: Template, root: Path, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the parts of a plan that show a root of the template's own."""
    resolved = _folder(template, root).resolve()
    if resolved == Path("/"):
        raise BackendError(
            f"{template.name}: / is no root for a sandbox", hint="leave the root out: that is the host's"
        )
    for target in (mount["target"] for mount in mounts):
        for folder in reversed(Path(target).parents):
            if Path(f"{resolved}{folder}").is_symlink():
                raise BackendError(
                    f"{template.name}: nothing can be mounted at {target}, because {folder} is a link in {root}",
                    hint="mount it where that leads to, or elsewhere",
                )
    return {
        "root": str(resolved),
        "folders": {},
        "copies": ["/etc/resolv.conf"]
        if template.network is Network.HOST and Path("/etc/resolv.conf").is_file()
        else [],
        "links": _LINKS | ({_OTHER_MACHINE_ID: _MACHINE_ID} if _has_another_machine_id(resolved) else {}),
        "binds": mounts,
    }


def _folder(template: Template, folder: Path) -> Path:
    if not folder.is_dir():
        raise BackendError(f"{template.name}: {folder} is no folder (any more)", hint="build the template again")
    return folder


def _has_another_machine_id(root: Path) -> bool:
    """Whether a root shows a machine id in a second place, and the way there is in the root."""
    *folders, _ = Path(_OTHER_MACHINE_ID).parents
    way = [Path(f"{root}{part}") for part in (_OTHER_MACHINE_ID, *folders)]
    return way[0].is_file() and not any(part.is_symlink() for part in way)


def base_folders(template: Template) -> dict[str, str]:
    """Return the private folders that a base has, each with its name in there: its place among all."""
    kept = (template.private_home, "/tmp", "/var/tmp")  # noqa: S108  inside
    return {folder: str(number) for number, folder in enumerate(_private(template)) if folder in kept}


def overlay_targets(template: Template) -> list[str]:
    """Return where a sandbox writes into a layer of its own, outer folders first."""
    targets = [mount.target for mount in template.mounts if mount.mode is MountMode.OVERLAY]
    return [str(target) for target in sorted(targets, key=lambda target: len(target.parts))]


def hidden_targets(template: Template, secret: Path) -> list[str]:
    """Return where a declared mount, or the root, would show the folder `secret`, the service's own state."""
    secret = secret.resolve()
    shown = [(mount.source.resolve(), mount.target) for mount in template.mounts]
    if template.root is not None:
        shown.append((template.root.resolve(), Path("/")))
    return [str(target / secret.relative_to(source)) for source, target in shown if secret.is_relative_to(source)]


def _private(template: Template) -> dict[str, int]:
    """Return the folders that each sandbox has to itself, and their modes; the mounts in them stay visible."""
    private = {template.private_home: 0o700, **_SCRATCH}
    return private | {str(way): 0o755 for way in _ways_of_the_users(template, [Path(folder) for folder in private])}


def _ways_of_the_users(template: Template, private: list[Path]) -> list[Path]:
    """Return the folders on the way to mounts in which the service's user could have made files.

    Of the host nothing shows in them but the mounts; to a server that is installed there, they
    are where it may write beside itself.
    """
    found: set[Path] = set()
    for mount in template.mounts:
        if mount.source != mount.target:
            continue  # what leads to it inside is nothing of the host's
        ways = [
            way
            for way in reversed(mount.target.parents)
            if not any(way.is_relative_to(folder) or folder.is_relative_to(way) for folder in private)
            and not any(way.is_relative_to(other.target) for other in template.mounts)
            and _is_the_users(way, mount.source)
        ]
        found.update(ways[:1])  # the outermost; the others are in it
    return [way for way in sorted(found) if not any(way != outer and way.is_relative_to(outer) for outer in found)]


def _is_the_users(folder: Path, source: Path) -> bool:
    """Root could write anywhere; its sandboxes are an ordinary user who owns what the owner of `source` owns."""
    if folder in _SYSTEMS_OWN or not folder.is_dir():
        return False
    if os.geteuid() != 0:
        return os.access(folder, os.W_OK)
    return len(folder.parts) > _TOP_LEVEL and folder.stat().st_uid == source.stat().st_uid


def _bind(source: Path, target: Path, mode: MountMode, *, owned: bool) -> dict[str, Any]:
    return {"source": str(source), "target": str(target), "mode": mode.value, "owned": owned}


def _check(template: Template, mount: Mount, secret: Path) -> None:
    if not mount.source.exists():
        raise BackendError(
            f"{template.name}: {mount.source} is to be mounted, but does not exist", hint="correct or remove the mount"
        )
    if mount.source.resolve().is_relative_to(secret.resolve()):
        raise BackendError(
            f"{template.name}: {mount.source} is to be mounted, but is Headstart's own state",
            hint="mount another folder, or keep the state elsewhere (--state-dir)",
        )
    if not mount.target.is_absolute() or ".." in mount.target.parts or mount.target == Path("/"):
        raise BackendError(f"{template.name}: nothing can be mounted at {str(mount.target)!r}", hint="give a full path")


def _copies(network: Network) -> list[str]:
    names = [*_PUBLIC_ETC, *(["resolv.conf"] if network is Network.HOST else [])]
    return [str(path) for path in (Path("/etc", name) for name in names) if path.is_file()]


def _public_folders() -> list[Path]:
    return [path for path in (Path("/etc", name) for name in _PUBLIC_ETC) if path.is_dir()]


def _files(template: Template) -> dict[str, str]:
    home, number = template.private_home, SANDBOX_ID
    return {
        "/etc/passwd": (
            "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n"
            f"sandbox:x:{number}:{number}:sandbox:{home}:/bin/sh\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        ),
        "/etc/group": f"root:x:0:\nsandbox:x:{number}:\nnogroup:x:65534:\n",
        "/etc/hosts": _hosts("sandbox"),
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        "/etc/hostname": "sandbox\n",
        **(
            {_MACHINE_ID: ""} if template.preload is None else {}
        ),  # forks of a zygote have no room for one of their own
        "/etc/shells": "/bin/sh\n",
        "/etc/gitconfig": "[safe]\n\tdirectory = *\n",  # where ids cannot be mapped, what is mounted is nobody's
    }


def _hosts(name: str) -> str:
    return f"127.0.0.1 localhost {name}\n::1 localhost ip6-localhost ip6-loopback\n"


def own_files(identity: Identity) -> dict[str, str]:
    """Return what tells a sandbox who it is, by path: for trees that no zygote is in."""
    files = {"/etc/hostname": f"{identity.hostname}\n", "/etc/hosts": _hosts(identity.hostname)}
    if identity.machine_id is not None:
        files[_MACHINE_ID] = f"{identity.machine_id}\n"
    if identity.boot_id is not None:
        files[_BOOT_ID] = f"{identity.boot_id}\n"
    return files
