"""A module that attacks while it is being preloaded: a zygote may do more than its forks.

It has to be able to make namespaces, for its forks to confine themselves. It uses that to
look under what covers the host. Reports to /writable/hostile.json.
"""

import contextlib
import ctypes
import errno
import json
import os
import pathlib
import sys
from collections.abc import Callable

NEW_MOUNTS, NEW_USER = 0x20000, 0x10000000
DETACH, REMOUNT_BIND = 2, 0x1020
libc = ctypes.CDLL(None, use_errno=True)


def check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), "")


def become_root_of_nothing() -> None:
    uid, gid = os.geteuid(), os.getegid()
    check(libc.unshare(NEW_USER | NEW_MOUNTS))
    pathlib.Path("/proc/self/setgroups").write_text("deny")
    pathlib.Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    pathlib.Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def mount_points() -> "list[str]":
    return [line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]


def uncover() -> str:
    """Take away every mount that can be taken away, then look for the host."""
    become_root_of_nothing()
    for path in reversed(mount_points()):
        libc.umount2(path.encode(), DETACH)
    places = ("/etc/shadow", "/root", "/boot", "/sys/kernel", "/.headstart/proc/1")
    seen = [place for place in places if pathlib.Path(place).exists()]
    return f"GOT {seen}" if seen else "NOTHING"


def write_to_usr() -> str:
    become_root_of_nothing()
    check(libc.mount(None, b"/usr", None, ctypes.c_ulong(REMOUNT_BIND), None))
    return "GOT it writable"


def write_to_prefix() -> str:
    """Change what later forks lay their overlays on."""
    become_root_of_nothing()
    check(libc.mount(None, b"/.headstart/plain/0", None, ctypes.c_ulong(REMOUNT_BIND), None))
    pathlib.Path("/.headstart/plain/0/given").write_text("spoilt")
    return "GOT it writable"


def enter_init() -> str:
    become_root_of_nothing()
    check(libc.setns(os.open("/proc/1/ns/mnt", os.O_RDONLY), 0))
    return "GOT in"


def host_processes() -> str:
    pids = [entry.name for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit()]
    return f"GOT {len(pids)} processes" if len(pids) > 10 else "FEW"


def tried(attack: Callable[[], str]) -> str:
    try:
        return attack()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))


def in_a_child(attack: Callable[[], str]) -> str:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, tried(attack).encode())
        os._exit(0)
    os.close(writing)
    said = os.read(reading, 1000).decode()  # to its end: the child writes once
    os.close(reading)
    with contextlib.suppress(ChildProcessError):  # somebody else reaps here
        os.waitpid(pid, 0)
    return said


ATTACKS = {
    "uncovering": uncover,
    "remounting": write_to_usr,
    "rewriting": write_to_prefix,
    "joining": enter_init,
    "looking": host_processes,
}
REPORT = pathlib.Path("/writable/hostile.json")

if __name__ == "hostile" and REPORT.parent.exists():
    REPORT.write_text(json.dumps({name: in_a_child(attack) for name, attack in ATTACKS.items()}))
elif __name__ == "__main__":
    sys.stdout.write(in_a_child(ATTACKS[sys.argv[1]]))
