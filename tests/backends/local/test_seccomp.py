"""The filter's promises, on an interpreter for both machines and on this kernel for real."""

from __future__ import annotations

import errno
import platform
import shutil
import signal
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.backends.local.seccomp import SeccompProfile, build_filter
from headstart.backends.local.syscall_numbers import (
    CONFINING,
    DENIED,
    NEWEST_REVIEWED,
    NUMBERS,
    Machine,
    number_of,
)
from headstart.errors import BackendUnavailable

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the filter returned, and after how many instructions."""

    raw: int
    steps: int

    @property
    def allowed(self) -> bool:
        return self.raw == ALLOW

    @property
    def killed(self) -> bool:
        return self.raw == KILL_PROCESS

    @property
    def errno(self) -> int | None:
        return self.raw & 0xFFFF if self.raw >> 16 == 0x0005 else None


def run(program: bytes, *, arch: int, number: int, arguments: tuple[int, ...] = ()) -> Verdict:
    """Interpret `program` on one `struct seccomp_data`; raises on anything the kernel would refuse."""
    padded = (*arguments, *(0,) * (6 - len(arguments)))
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, arch, 0, *(a & 0xFFFFFFFFFFFFFFFF for a in padded))
    code = list(struct.iter_unpack("<HBBI", program))
    accumulator, at, steps = 0, 0, 0
    while True:
        operation, if_true, if_false, constant = code[at]  # IndexError: it ran off its end
        at, steps = at + 1, steps + 1
        match operation:
            case 0x20:
                assert constant % 4 == 0
                (accumulator,) = struct.unpack_from("<I", data, constant)
            case 0x54:
                accumulator &= constant
            case 0x15:
                at += if_true if accumulator == constant else if_false
            case 0x35:
                at += if_true if accumulator >= constant else if_false
            case 0x45:
                at += if_true if accumulator & constant else if_false
            case 0x06:
                return Verdict(raw=constant, steps=steps)
            case _:
                raise AssertionError(f"instruction {at - 1}: opcode {operation:#x} is not of seccomp's set")


ARCH = {Machine.X86_64: 0xC000003E, Machine.AARCH64: 0xC00000B7}
I386, ARM = 0x40000003, 0x40000028
both_machines = pytest.mark.parametrize("machine", list(Machine), ids=lambda machine: machine.value)
both_profiles = pytest.mark.parametrize("profile", list(SeccompProfile), ids=lambda profile: profile.value)
everyday = {
    # name: (x86-64, arm64); what no server can live without
    "read": (0, 63),
    "write": (1, 64),
    "mmap": (9, 222),
    "execve": (59, 221),
    "futex": (202, 98),
    "epoll_pwait": (281, 22),
    "memfd_create": (319, 279),
    "getrandom": (318, 278),
    "seccomp": (317, 277),
    "prctl": (157, 167),
    "inotify_init1": (294, 26),
    "flock": (73, 32),
    "pidfd_open": (434, 434),
    "landlock_create_ruleset": (444, 444),
    "sched_setaffinity": (203, 122),
}


def verdict(
    name: str, *arguments: int, profile: SeccompProfile = SeccompProfile.SANDBOX, machine: Machine = Machine.X86_64
) -> Verdict:
    number = number_of(name, machine)
    assert number is not None
    return run(build_filter(profile, machine.value), arch=ARCH[machine], number=number, arguments=arguments)


@both_machines
@both_profiles
def test_every_denied_call_answers_eperm(profile: SeccompProfile, machine: Machine) -> None:
    for name in DENIED:
        if number_of(name, machine) is not None:
            assert verdict(name, profile=profile, machine=machine).errno == errno.EPERM, name


@both_machines
def test_only_a_zygote_may_confine_itself(machine: Machine) -> None:
    for name in CONFINING:
        assert verdict(name, machine=machine).errno == errno.EPERM, name
        assert verdict(name, machine=machine, profile=SeccompProfile.ZYGOTE).allowed, name


@both_machines
@both_profiles
def test_everyday_calls_pass(profile: SeccompProfile, machine: Machine) -> None:
    program = build_filter(profile, machine.value)
    for name, numbers in everyday.items():
        number = numbers[0] if machine is Machine.X86_64 else numbers[1]
        assert run(program, arch=ARCH[machine], number=number).allowed, name


@both_machines
@both_profiles
@pytest.mark.parametrize("foreign", [I386, ARM, 0, 0xFFFFFFFF])
def test_a_foreign_abi_kills_the_process(profile: SeccompProfile, machine: Machine, foreign: int) -> None:
    assert run(build_filter(profile, machine.value), arch=foreign, number=1).killed


def test_the_x32_abi_kills_the_process() -> None:
    program = build_filter(SeccompProfile.SANDBOX, "x86_64")
    for number in (0x40000000, 0x40000000 | 165, 0x40000000 | 520):
        assert run(program, arch=ARCH[Machine.X86_64], number=number).killed


@both_machines
def test_calls_newer_than_the_reviewed_table_do_not_exist(machine: Machine) -> None:
    program = build_filter(SeccompProfile.SANDBOX, machine.value)
    assert run(program, arch=ARCH[machine], number=NEWEST_REVIEWED).allowed
    for number in (NEWEST_REVIEWED + 1, 500, 0x3FFFFFFF, 0xFFFFFFFF):
        assert run(program, arch=ARCH[machine], number=number).errno == errno.ENOSYS


@both_machines
def test_clone3_answers_enosys_so_that_libc_uses_clone(machine: Machine) -> None:
    for profile in SeccompProfile:
        assert verdict("clone3", profile=profile, machine=machine).errno == errno.ENOSYS


@both_machines
@pytest.mark.parametrize("flag", [0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000])
def test_clone_makes_threads_and_processes_but_no_namespaces(machine: Machine, flag: int) -> None:
    thread = 0x3D0F00  # what pthread_create passes
    assert verdict("clone", thread, machine=machine).allowed
    assert verdict("clone", signal.SIGCHLD, machine=machine).allowed
    assert verdict("clone", signal.SIGCHLD | flag, machine=machine).errno == errno.EPERM
    assert verdict("clone", signal.SIGCHLD | flag, machine=machine, profile=SeccompProfile.ZYGOTE).allowed


@both_machines
@both_profiles
def test_terminals_cannot_be_typed_into_even_with_high_bits_set(profile: SeccompProfile, machine: Machine) -> None:
    for request in (0x5412, 0x541C, 0x5423, 0xFFFFFFFF_00005412):
        assert verdict("ioctl", 0, request, profile=profile, machine=machine).errno == errno.EPERM
    assert verdict("ioctl", 0, 0x5413, profile=profile, machine=machine).allowed  # TIOCGWINSZ


@both_machines
def test_sockets_are_limited_to_the_families_that_programs_use(machine: Machine) -> None:
    def socket(family: int, kind: int, protocol: int = 0) -> Verdict:
        return verdict("socket", family, kind, protocol, machine=machine)

    stream, datagram, raw, cloexec = 1, 2, 3, 0o2000000
    for family in (1, 2, 10):
        assert socket(family, stream).allowed
        assert socket(family, datagram | cloexec).allowed
    assert socket(1, raw).allowed  # a unix socket's SOCK_RAW is a datagram
    for family in (2, 10):
        for kind in (raw, raw | cloexec, 10):
            assert socket(family, kind).errno == errno.EPERM
        assert socket(family, 5).errno == errno.ESOCKTNOSUPPORT
        for kind, protocol in ((stream, 132), (stream, 33)):  # SCTP, DCCP
            assert socket(family, kind, protocol).errno == errno.EPROTONOSUPPORT
        assert socket(family, stream, 262).allowed  # MPTCP, which Go's listeners try first
    assert socket(16, raw | cloexec, 0).allowed  # getifaddrs
    for protocol in (2, 4, 9, 15, 16):
        assert socket(16, raw, protocol).errno == errno.EPROTONOSUPPORT
    for family in (0, 4, 15, 17, 21, 29, 30, 38, 40, 44):  # PACKET, RDS, CAN, TIPC, ALG, VSOCK, XDP, …
        assert socket(family, datagram).errno == errno.EAFNOSUPPORT
    assert verdict("socketpair", 1, stream, machine=machine).allowed
    assert verdict("socketpair", 30, stream, machine=machine).errno == errno.EAFNOSUPPORT


@both_machines
@both_profiles
def test_no_socket_lingers_and_no_program_notices(profile: SeccompProfile, machine: Machine) -> None:
    sol_socket, linger, tcp = 1, 13, 6
    told = verdict("setsockopt", 3, sol_socket, linger, profile=profile, machine=machine)
    assert (told.allowed, told.errno) == (False, 0)
    for level, option in ((sol_socket, 2), (tcp, linger), (sol_socket, 9)):
        assert verdict("setsockopt", 3, level, option, profile=profile, machine=machine).allowed


@both_machines
def test_device_nodes_are_refused_and_other_nodes_are_not(machine: Machine) -> None:
    for kind in (0o020000, 0o060000):
        assert verdict("mknodat", 0, 0, kind | 0o600, machine=machine).errno == errno.EPERM
    for kind in (0, 0o100000, 0o010000, 0o140000):
        assert verdict("mknodat", 0, 0, kind | 0o600, machine=machine).allowed
    assert verdict("mknod", 0, 0o020600).errno == errno.EPERM
    assert verdict("mknod", 0, 0o010600).allowed


@both_machines
@pytest.mark.parametrize("bits", [0o4000, 0o2000])
def test_nothing_becomes_setuid_or_setgid(machine: Machine, bits: int) -> None:
    create, temporary = 0o100, 0o20200000
    for name, mode_at in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2), ("creat", 1)):
        if number_of(name, machine) is not None:
            before = (0,) * mode_at
            assert verdict(name, *before, bits | 0o755, machine=machine).errno == errno.EPERM, name
            assert verdict(name, *before, 0o1777, machine=machine).allowed, name
    for flags in (create, temporary):
        assert verdict("openat", 0, 0, flags, bits | 0o755, machine=machine).errno == errno.EPERM
        assert verdict("openat", 0, 0, flags, 0o755, machine=machine).allowed
    assert verdict("openat", 0, 0, 0, 0xFFFFFFFF, machine=machine).allowed, "without O_CREAT there is no mode"
    assert verdict("mknodat", 0, 0, 0o100000 | bits, machine=machine).errno == errno.EPERM
    assert verdict("openat2", machine=machine).errno == errno.ENOSYS


@both_machines
def test_address_randomisation_cannot_be_switched_off(machine: Machine) -> None:
    assert verdict("personality", 0xFFFFFFFF, machine=machine).allowed
    assert verdict("personality", 0, machine=machine).allowed
    for persona in (0x0040000, 0x0400000, 0x0100000):  # ADDR_NO_RANDOMIZE, READ_IMPLIES_EXEC, MMAP_PAGE_ZERO
        assert verdict("personality", persona, machine=machine).errno == errno.EPERM


@given(
    profile=st.sampled_from(SeccompProfile),
    machine=st.sampled_from(Machine),
    arch=st.sampled_from([*ARCH.values(), I386, ARM]),
    number=st.integers(0, 600) | st.integers(0, 0xFFFFFFFF),
    arguments=st.tuples(*[st.integers(0, 2**64 - 1)] * 3),
)
@settings(max_examples=300, deadline=None)
def test_any_call_gets_a_verdict_that_is_known(
    profile: SeccompProfile, machine: Machine, arch: int, number: int, arguments: tuple[int, ...]
) -> None:
    result = run(build_filter(profile, machine.value), arch=arch, number=number, arguments=arguments)
    refusals = {errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT}
    assert result.allowed or result.killed or result.errno in refusals
    if arch != ARCH[machine]:
        assert result.killed


def test_the_table_agrees_with_the_header_of_this_machine() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if platform.machine() != "x86_64" or not header.exists():
        pytest.skip(f"no {header} (linux-libc-dev) to compare with")
    told = dict(line.split()[1:3] for line in header.read_text().splitlines() if line.startswith("#define __NR_"))
    for name in NUMBERS:
        if f"__NR_{name}" in told:
            assert int(told[f"__NR_{name}"]) == number_of(name, Machine.X86_64), name


def test_an_unknown_machine_is_named() -> None:
    with pytest.raises(BackendUnavailable, match="riscv64"):
        build_filter(SeccompProfile.SANDBOX, "riscv64")


# ---------------------------------------------------------------- on this kernel


@pytest.fixture
def filters(tmp_path: Path) -> dict[SeccompProfile | None, str]:
    if sys.platform != "linux" or "Seccomp_filters" not in Path("/proc/self/status").read_text():
        pytest.skip("this kernel has no seccomp filters")
    files: dict[SeccompProfile | None, str] = {None: "none"}
    for profile in SeccompProfile:
        file = tmp_path / profile.value
        file.write_bytes(build_filter(profile, platform.machine()))
        files[profile] = str(file)
    return files


def confined(filter_file: str, snippet: str) -> subprocess.CompletedProcess[str]:
    child = Path(__file__).with_name("seccomp_child.py")
    return subprocess.run(
        [sys.executable, str(child), filter_file],
        input=snippet,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def number(name: str) -> int:
    found = number_of(name, Machine(platform.machine().replace("arm64", "aarch64")))
    assert found is not None
    return found


def test_the_kernel_takes_it_and_it_denies(filters: dict[SeccompProfile | None, str]) -> None:
    names = ("keyctl", "ptrace", "unshare", "bpf", "io_uring_setup", "userfaultfd", "clone3")
    snippet = "\n".join(f"print({name!r}, call({number(name)}, 0, 0, 0, 0))" for name in names)
    told = dict(line.split() for line in confined(filters[SeccompProfile.SANDBOX], snippet).stdout.splitlines())
    assert told == {**dict.fromkeys(names, str(-errno.EPERM)), "clone3": str(-errno.ENOSYS)}
    control = dict(line.split() for line in confined(filters[None], snippet).stdout.splitlines())
    assert control["ptrace"] == "0", "without the filter the same call works"
    assert control["keyctl"] != str(-errno.EPERM)


def test_a_zygote_may_unshare_and_its_fork_may_then_lock_itself_in(
    filters: dict[SeccompProfile | None, str],
) -> None:
    unshare = number("unshare")
    if confined(filters[None], f"print(call({unshare}, 0))").stdout.strip() != "0":
        pytest.skip("unshare(2) is forbidden here already")
    snippet = (
        f"print(call({unshare}, 0))\n"
        f"install(pathlib.Path({filters[SeccompProfile.SANDBOX]!r}).read_bytes())\n"
        f"print(call({unshare}, 0))"
    )
    assert confined(filters[SeccompProfile.ZYGOTE], snippet).stdout.split() == ["0", str(-errno.EPERM)]


def test_closing_a_socket_that_was_to_linger_does_not_wait(filters: dict[SeccompProfile | None, str]) -> None:
    snippet = """
import socket, struct
one = socket.create_server(("127.0.0.1", 0)); two = socket.create_connection(one.getsockname())
two.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
print(struct.unpack("ii", two.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)))
"""
    assert confined(filters[SeccompProfile.SANDBOX], snippet).stdout.strip() == "(0, 0)"
    assert confined(filters[None], snippet).stdout.strip() == "(1, 3600)"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x32 is an ABI of x86-64 only")
def test_an_x32_call_dies_of_sigsys(filters: dict[SeccompProfile | None, str]) -> None:
    snippet = "call(0x40000000 | 39)"
    assert confined(filters[SeccompProfile.SANDBOX], snippet).returncode == -signal.SIGSYS
    assert confined(filters[None], snippet).returncode == 0


PYTHON_AT_WORK = """
import asyncio, concurrent.futures, multiprocessing, os, socket, sqlite3, ssl, subprocess, tempfile, threading, time
with tempfile.TemporaryDirectory() as d:
    db = sqlite3.connect(os.path.join(d, "x.db")); db.execute("pragma journal_mode=wal"); db.execute("create table t(x)")
    db.execute("insert into t values (1)"); db.commit(); db.close()
    os.mkfifo(os.path.join(d, "fifo"))
with concurrent.futures.ThreadPoolExecutor(2) as pool: assert list(pool.map(abs, [-1, -2])) == [1, 2]
async def main():
    p = await asyncio.create_subprocess_exec("/bin/echo", "hi", stdout=-1); assert await p.stdout.read() == b"hi\\n"
    s = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    r, w = await asyncio.open_connection(*s.sockets[0].getsockname()); await r.read(); w.close(); s.close()
asyncio.run(main())
socket.if_nameindex(); socket.getaddrinfo("127.0.0.1", 80); ssl.create_default_context()
q = multiprocessing.get_context("fork").Queue(); q.put(1); assert q.get(timeout=10) == 1
assert socket.socketpair()
print("worked")
"""


def test_python_works_under_it(filters: dict[SeccompProfile | None, str]) -> None:
    done = confined(filters[SeccompProfile.SANDBOX], PYTHON_AT_WORK)
    assert (done.stdout, done.returncode) == ("worked\n", 0), done.stderr


NODE_AT_WORK = """
const { Worker } = require('worker_threads')
require('os').networkInterfaces()
require('http').createServer().listen(0, function () { this.close() })
const inner = "console.log(require('child_process').execSync('echo worked') + '')"
require('fs').promises.readFile('/etc/passwd').then(() => new Worker(inner, { eval: true }))
"""

GIT_AT_WORK = """
cd "$1" && git init -q . && touch a && git add a && git -c user.name=x -c user.email=x@y commit -qm a
git gc -q && git log --format=tformat:worked
"""


def test_node_works_under_it(filters: dict[SeccompProfile | None, str]) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    done = confined(filters[SeccompProfile.SANDBOX], f"import os; os.execv({node!r}, {['node', '-e', NODE_AT_WORK]!r})")
    assert done.stdout.strip() == "worked", done.stderr


def test_git_works_under_it(filters: dict[SeccompProfile | None, str], tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    shell = ["sh", "-c", GIT_AT_WORK, "sh", str(tmp_path)]
    done = confined(filters[SeccompProfile.SANDBOX], f"import os; os.execv('/bin/sh', {shell!r})")
    assert done.stdout.strip() == "worked", done.stderr


def test_the_filter_survives_exec(filters: dict[SeccompProfile | None, str]) -> None:
    script = f"import ctypes; l=ctypes.CDLL(None); print(l.syscall({number('ptrace')}, 0, 0, 0, 0))"
    snippet = f"import os; os.execv({sys.executable!r}, ['python', '-S', '-c', {script!r}])"
    assert confined(filters[SeccompProfile.SANDBOX], snippet).stdout.strip() == "-1"
    assert confined(filters[None], snippet).stdout.strip() == "0"
