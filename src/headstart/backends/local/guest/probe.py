"""Try what the kernel allows: each trial in a process of its own, which leaves nothing behind.

    python -I -S launch.py headstart.backends.local.guest.probe FILTER

FILTER is a seccomp program in hexadecimal. Prints one JSON object: for each trial
`{"status", "found", "cure"}`. A trial that raises is `missing`, with the system's own
words; one that takes longer than two seconds is killed and said to hang.

Whatever is mounted is mounted in a namespace that ends with the trial; the only thing
that is ever made outside, a cgroup, is removed by the trial, or by the parent if it died.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import platform
import select
import signal
import sys
from collections.abc import Callable
from typing import Any

from headstart.backends.local.guest import images, places, private
from headstart.backends.spawner.guest import syscalls

__all__ = ["main"]

TRIAL_S = 2
NOBODY = 65534
INOTIFY_ENOUGH = 512
CGROUP_NAME = "headstart-probe"
IMAGE_BYTES, IMAGE_INODES = 16 << 20, 1024
SCRATCH = "/tmp"  # only as a place to mount over, in a namespace of our own

Finding = tuple[str, str, str | None]  # status, found, cure (None where there is nothing to do)
OK, WEAK, MISSING = "ok", "weak", "missing"
_LIMITING = ("cpu", "memory", "pids")

_NR_USERFAULTFD = {"x86_64": 323, "aarch64": 282}.get(platform.machine(), -1)
_NR_LANDLOCK_CREATE_RULESET = 444
_KVM_GET_API_VERSION, _KVM_CREATE_VM = 0xAE00, 0xAE01

_USERNS_SYSCTLS = (
    # file, the value that allows
    ("kernel/unprivileged_userns_clone", "1"),
    ("kernel/apparmor_restrict_unprivileged_userns", "0"),
)


def user_namespaces() -> Finding:
    if os.geteuid() != 0:
        return WEAK, "not tried: you are not root", "run as root for id-mapped roots and control groups"
    _enter_user_namespace(0)
    return OK, "root can make them", None


def user_namespaces_unprivileged() -> Finding:
    try:
        _become_ordinary()
        _enter_user_namespace(os.geteuid())
        _private_mounts()
        syscalls.mount("tmpfs", SCRATCH, "tmpfs")
    except OSError as error:
        return MISSING, str(error), _cure_for_user_namespaces()
    return OK, "an ordinary user can make them, and mount in them", None


def overlayfs() -> Finding:
    if os.geteuid() != 0:
        return WEAK, "not tried: you are not root", "see 'overlayfs in a user namespace'"
    _private_mounts()
    syscalls.mount("tmpfs", SCRATCH, "tmpfs")
    _overlay("/usr", "plain", "")
    if not _show_mapped("/usr", f"{SCRATCH}/mapped"):
        return OK, "root can mount it", None
    try:
        _overlay(f"{SCRATCH}/mapped", "over-mapped", ",userxattr")
    except OSError as error:
        return WEAK, f"root can mount it, but not over an id-mapped folder: {error}", _CURES["id_mapped_mounts"]
    return OK, "root can mount it, also over an id-mapped folder", None


def overlayfs_unprivileged() -> Finding:
    _become_ordinary()
    _enter_user_namespace(os.geteuid())
    _private_mounts()
    syscalls.mount("tmpfs", SCRATCH, "tmpfs")
    _overlay("/usr", "plain", ",userxattr")
    return OK, "an ordinary user can mount it; what belongs to others stays read-only in it", None


def id_mapped_mounts() -> Finding:
    if os.geteuid() != 0:
        return MISSING, "only root can make them", "run as root"
    _private_mounts()
    namespace, kind = _foreign_user_namespace(), _filesystem_of("/")
    try:
        _map_ids("/", namespace)
    except OSError:
        syscalls.mount("tmpfs", SCRATCH, "tmpfs")
        _map_ids(SCRATCH, namespace)
        found = f"the root file system ({kind}) cannot be id-mapped, others can"
        return WEAK, found, "keep what servers are to own on another file system: ext4, xfs, btrfs, tmpfs; a volume"
    return OK, f"the root file system ({kind}) can be id-mapped", None


def disk_images() -> Finding:
    if os.geteuid() != 0:
        return WEAK, "not tried: you are not root", "run as root for files on disk that keep to a limit"
    _private_mounts()
    syscalls.mount("tmpfs", SCRATCH, "tmpfs")
    os.mkdir(f"{SCRATCH}/files")
    images.make(f"{SCRATCH}/image", content_bytes=IMAGE_BYTES, inodes=IMAGE_INODES)
    images.mount(f"{SCRATCH}/image", f"{SCRATCH}/files")
    private.overlay(["/usr"], f"{SCRATCH}/files", f"{SCRATCH}/files/layer", (0, 0), on_disk=True)
    return OK, "a file system in a file holds layers", None


def pidfd() -> Finding:
    trial = os.getpid()
    child = os.fork()
    if child == 0:
        syscalls.be_a_helper_of(trial, [])
        signal.pause()
    descriptor = os.pidfd_open(child)
    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    if not select.select([descriptor], [], [], 1)[0]:
        return WEAK, "it opens, but does not report the end of its process", "use Linux 5.4 or newer"
    os.waitpid(child, 0)
    return OK, "opens, signals, reports", None


def seccomp() -> Finding:
    syscalls.forbid_new_privileges()
    syscalls.install_seccomp(bytes.fromhex(sys.argv[1]))
    try:
        syscalls.unshare(syscalls.CLONE_NEWUTS)
    except PermissionError:
        return OK, "the sandbox filter installs and denies", None
    return MISSING, "the filter installed and denied nothing", "report this, with your kernel's version"


def landlock() -> Finding:
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    version = syscall(ctypes.c_long(_NR_LANDLOCK_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(1))
    if version < 0:
        return MISSING, os.strerror(ctypes.get_errno()), "boot with lsm=landlock,… on Linux 5.13 or newer"
    if version < 6:
        return WEAK, f"ABI {version} cannot scope signals and abstract sockets", "use Linux 6.12 or newer"
    return OK, f"ABI {version}", None


def kvm() -> Finding:
    try:
        device = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return MISSING, "no /dev/kvm", "not needed yet; enable virtualisation (nested, on a virtual machine)"
    except PermissionError:
        return MISSING, "/dev/kvm: permission denied", "not needed yet; usermod -aG kvm $USER"
    version = fcntl.ioctl(device, _KVM_GET_API_VERSION, 0)
    os.close(fcntl.ioctl(device, _KVM_CREATE_VM, 0))
    where = " (nested: this machine is virtual itself)" if _is_virtual() else ""
    return OK, f"API {version}, a virtual machine can be made{where}", None


def userfaultfd() -> Finding:
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    for flags, told in ((0, "user and kernel faults"), (1, "user faults only")):
        descriptor = syscall(ctypes.c_long(_NR_USERFAULTFD), ctypes.c_int(os.O_CLOEXEC | flags))
        if descriptor >= 0:
            os.close(descriptor)
            return OK if flags == 0 else WEAK, told, None if flags == 0 else "sysctl vm.unprivileged_userfaultfd=1"
    return MISSING, os.strerror(ctypes.get_errno()), "not needed yet; sysctl vm.unprivileged_userfaultfd=1"


def control_groups() -> Finding:
    kinds = _cgroup_versions()
    if not kinds:
        return MISSING, "none mounted", "mount -t cgroup2 none /sys/fs/cgroup"
    usable = {
        name: place.version for place in places.find_places() if _can_make_group(place) for name in place.controllers
    }
    told = ", ".join(f"{name} (v{usable[name]})" for name in _LIMITING if name in usable) or "none"
    present = " and ".join(kinds)
    lacking = [name for name in _LIMITING if name not in usable]
    if not lacking:
        return OK, f"{present}; usable: {told}", None
    cure = _cure_for_control_groups(kinds)
    return WEAK if usable else MISSING, f"{present}; usable: {told}; not: {', '.join(lacking)}", cure


def _cure_for_control_groups(kinds: list[str]) -> str:
    if "v2" in kinds and os.path.isdir("/run/systemd/system"):
        whose = "" if os.geteuid() == 0 else "--user "
        return f"systemd-run {whose}--scope -p Delegate=yes headstart serve"
    return "boot with systemd.unified_cgroup_hierarchy=1" if os.geteuid() == 0 else "run as root"


def inotify() -> Finding:
    """All sandboxes of a service count as one user to the kernel, and each that watches files needs an instance."""
    instances = int(_read("/proc/sys/fs/inotify/max_user_instances"))
    if instances < INOTIFY_ENOUGH:
        return WEAK, f"{instances} instances for all sandboxes", "sysctl fs.inotify.max_user_instances=8192"
    return OK, f"{instances} instances for all sandboxes", None


TRIALS: dict[str, Callable[[], Finding]] = {
    "user namespaces (root)": user_namespaces,
    "user namespaces (ordinary user)": user_namespaces_unprivileged,
    "overlayfs": overlayfs,
    "overlayfs in a user namespace": overlayfs_unprivileged,
    "id-mapped mounts": id_mapped_mounts,
    "disk images": disk_images,
    "control groups": control_groups,
    "pidfd": pidfd,
    "seccomp": seccomp,
    "landlock": landlock,
    "inotify": inotify,
    "KVM": kvm,
    "userfaultfd": userfaultfd,
}


def main() -> None:
    """Run all trials at once and print what they found."""
    running = {name: _fork_trial(trial) for name, trial in TRIALS.items()}
    found = {name: _finding(pid, pipe) for name, (pid, pipe) in running.items()}
    for place in places.find_places():
        _remove_group(place)
    json.dump(found, sys.stdout)


def _fork_trial(trial: Callable[[], Finding]) -> tuple[int, int]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(TRIAL_S)
            os.write(writing, json.dumps(_tried(trial)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    return pid, reading


def _tried(trial: Callable[[], Finding]) -> list[Any]:
    try:
        return list(trial())
    except OSError as error:
        return [MISSING, str(error), _CURES.get(trial.__name__, "use a newer kernel, or run as root")]


_CURES = {
    "user_namespaces": "sysctl user.max_user_namespaces=10000",
    "overlayfs": "modprobe overlay",
    "overlayfs_unprivileged": "use Linux 5.11 or newer; without it, install prefixes are read-only inside",
    "id_mapped_mounts": "use Linux 5.19 or newer, and ext4, xfs, btrfs or tmpfs for the root",
    "disk_images": "install e2fsprogs; modprobe loop; in a container, give it /dev/loop-control and CAP_SYS_ADMIN",
    "seccomp": "use a kernel with CONFIG_SECCOMP_FILTER",
    "pidfd": "use Linux 5.3 or newer",
    "kvm": "not needed yet; load kvm_intel or kvm_amd",
}


def _finding(pid: int, pipe: int) -> dict[str, Any]:
    """Read what a trial wrote before it closed its end: it ends within TRIAL_S, by SIGALRM at the latest."""
    told = b""
    if select.select([pipe], [], [], TRIAL_S + 0.5)[0]:
        told = os.read(pipe, 65536)
    os.close(pipe)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    status, found, cure = json.loads(told) if told else (MISSING, f"no answer within {TRIAL_S} s", "try again")
    return {"status": status, "found": found, "cure": cure}


# ---------------------------------------------------------------- namespaces and mounts


def _enter_user_namespace(inside_as: int) -> None:
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{inside_as} {uid} 1")
    _write("/proc/self/gid_map", f"{inside_as} {gid} 1")  # files of an unmapped group cannot be made


def _become_ordinary() -> None:
    """Give up root, as far as we are root."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # else /proc/self/uid_map belongs to root


def _private_mounts() -> None:
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)


def _overlay(lower: str, name: str, options: str) -> None:
    """Mount an overlay over a folder and write through it, all of it in our scratch space."""
    folder = f"{SCRATCH}/{name}"
    for part in ("upper", "work", "merged"):
        os.makedirs(f"{folder}/{part}")
    layers = f"lowerdir={lower},upperdir={folder}/upper,workdir={folder}/work{options}"
    syscalls.mount("overlay", f"{folder}/merged", "overlay", 0, layers)
    with open(f"{folder}/merged/headstart-probe", "w"):
        pass


def _show_mapped(source: str, target: str) -> bool:
    """Mount a folder with its ids mapped; False if its file system has no such mounts."""
    tree = syscalls.open_tree(source, syscalls.OPEN_TREE_CLONE)
    try:
        syscalls.mount_setattr(tree, syscalls.MOUNT_ATTR_IDMAP, userns=_foreign_user_namespace())
        os.mkdir(target)
        syscalls.move_mount(tree, target)
    except OSError:
        return False
    finally:
        os.close(tree)
    return True


def _map_ids(path: str, namespace: int) -> None:
    tree = syscalls.open_tree(path, syscalls.OPEN_TREE_CLONE)
    syscalls.mount_setattr(tree, syscalls.MOUNT_ATTR_IDMAP, userns=namespace)
    os.close(tree)


def _foreign_user_namespace() -> int:
    """Return a descriptor of a user namespace whose ids are shifted, kept alive by that descriptor."""
    ready, done = os.pipe()
    trial = os.getpid()
    child = os.fork()
    if child == 0:
        syscalls.be_a_helper_of(trial, [done])
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        os.write(done, b"x")
        signal.pause()
    os.read(ready, 1)
    for kind in ("uid_map", "gid_map"):
        _write(f"/proc/{child}/{kind}", "0 100000 65536")
    namespace = os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return namespace


def _cure_for_user_namespaces() -> str:
    for name, wanted in _USERNS_SYSCTLS:
        if os.path.exists("/proc/sys/" + name) and _read("/proc/sys/" + name) != wanted:
            return f"sysctl {name.replace('/', '.')}={wanted}"
    return "sysctl user.max_user_namespaces=10000; inside a container, allow unshare(2) in its seccomp profile"


def _filesystem_of(path: str) -> str:
    kinds = [fields[fields.index("-") + 1] for fields in _mounts() if fields[4] == path]
    return kinds[-1] if kinds else "unknown"


# ---------------------------------------------------------------- control groups


def _cgroup_versions() -> list[str]:
    kinds = {fields[fields.index("-") + 1] for fields in _mounts()}
    return [version for version, kind in (("v1", "cgroup"), ("v2", "cgroup2")) if kind in kinds]


def _can_make_group(place: places.Place) -> bool:
    try:
        os.mkdir(f"{place.folder}/{CGROUP_NAME}")
    except FileExistsError:
        return True
    except OSError:
        return False
    _remove_group(place)
    return True


def _remove_group(place: places.Place) -> None:
    try:
        os.rmdir(f"{place.folder}/{CGROUP_NAME}")
    except OSError:
        pass  # it was never made


# ---------------------------------------------------------------- files


def _mounts() -> list[list[str]]:
    return [line.split() for line in _read("/proc/self/mountinfo").splitlines()]


def _is_virtual() -> bool:
    return " hypervisor" in _read("/proc/cpuinfo")


def _read(path: str) -> str:
    with open(path) as file:
        return file.read().strip()


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
