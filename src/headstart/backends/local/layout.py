"""What a sandbox's file tree holds: system folders, a synthetic /etc, the declared mounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headstart.backends.contract import Mount, MountMode, Network, Template
from headstart.backends.local.guest.userns import SANDBOX_ID
from headstart.errors import BackendError

__all__ = ["covered_targets", "hidden_targets", "overlay_targets", "tree_plan"]

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
_LINKS = {"/var/run": "/run", "/var/lock": "/run/lock", "/etc/mtab": "/proc/self/mounts"}


def tree_plan(template: Template, *, secret: Path, extra: tuple[Mount, ...] = ()) -> dict[str, Any]:
    """Return the plan for the guest's `tree.build_and_enter`; the folder `secret` shows nowhere.

    Raises:
        BackendError: A declared mount's source is missing, or its target cannot be one.
    """
    links, binds = dict(_LINKS), list[dict[str, Any]]()
    for folder in map(Path, _SYSTEM_FOLDERS):
        if folder.is_symlink():
            links[str(folder)] = str(folder.readlink())
        elif folder.is_dir():
            binds.append(_bind(folder, folder, MountMode.READ_ONLY, owned=False))
    for mount in sorted((*template.mounts, *extra), key=lambda mount: len(mount.target.parts)):
        _check(template, mount)
        binds.append(_bind(mount.source, mount.target, mount.mode, owned=True))
    for folder in _public_folders():
        binds.append(_bind(folder, folder, MountMode.READ_ONLY, owned=False))
    return {
        "folders": _FOLDERS,
        "files": _files(template),
        "copies": _copies(template.network),
        "links": links,
        "binds": binds,
        "hidden": hidden_targets(template, secret),
        "home": template.private_home,
    }


def overlay_targets(template: Template) -> list[str]:
    """Return where a sandbox writes into a layer of its own, outer folders first."""
    targets = [mount.target for mount in template.mounts if mount.mode is MountMode.OVERLAY]
    return [str(target) for target in sorted(targets, key=lambda target: len(target.parts))]


def hidden_targets(template: Template, secret: Path) -> list[str]:
    """Return where a declared mount would show the folder `secret`, the service's own state."""
    return [
        str(mount.target / secret.relative_to(mount.source))
        for mount in template.mounts
        if secret.is_relative_to(mount.source)
    ]


def covered_targets(template: Template, secret: Path, extra: tuple[Mount, ...] = ()) -> list[str]:
    """Return the mounts below a folder that each sandbox covers by one of its own, outer ones first."""
    private = [Path(template.private_home), Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")]  # noqa: S108  inside
    overlays = [Path(target) for target in overlay_targets(template)]
    targets = [mount.target for mount in (*template.mounts, *extra)] + [
        Path(t) for t in hidden_targets(template, secret)
    ]
    covered = [
        target
        for target in targets
        if any(target.is_relative_to(folder) for folder in private)
        or any(target != folder and target.is_relative_to(folder) for folder in overlays)
    ]
    return [str(target) for target in sorted(covered, key=lambda target: len(target.parts))]


def _bind(source: Path, target: Path, mode: MountMode, *, owned: bool) -> dict[str, Any]:
    return {"source": str(source), "target": str(target), "mode": mode.value, "owned": owned}


def _check(template: Template, mount: Mount) -> None:
    if not mount.source.exists():
        raise BackendError(
            f"{template.name}: {mount.source} is to be mounted, but does not exist", hint="correct or remove the mount"
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
        "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        "/etc/hostname": "sandbox\n",
        "/etc/shells": "/bin/sh\n",
    }
