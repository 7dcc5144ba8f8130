"""Attacks on processes outside, and through what one has inherited."""

from __future__ import annotations

from .attack import DENIED, Attack

__all__ = ["PROCESSES"]

PROCESSES = [
    Attack(
        id="being in namespaces of the host",
        script=(
            "kinds = set(FACTS['namespaces']) - ({'cgroup'} if not FACTS['limits'] else set())\n"
            "same = [k for k in kinds if os.readlink('/proc/self/ns/' + k) == FACTS['namespaces'][k]]\n"
            "tell(f'GOT {same}' if same else 'NONE')"
        ),
        reasons=frozenset({"NONE"}),
    ),
    Attack(
        id="seeing the host's processes",
        script=(
            "pids = [p for p in os.listdir('/proc') if p.isdigit()]\n"
            "tell(f'GOT {len(pids)} processes' if len(pids) > 8 or str(FACTS['sentinel']) in pids else 'FEW')"
        ),
        reasons=frozenset({"FEW"}),
    ),
    Attack(
        id="seeing another sandbox's processes",
        script=(
            "def arguments(pid):\n"
            "    try: return open(f'/proc/{pid}/cmdline').read()\n"
            "    except OSError: return ''\n"
            "seen = [p for p in os.listdir('/proc') if p.isdigit() and FACTS['victim_sleeps'] in arguments(p).split('\\0')]\n"
            "mine = 1 if FACTS['forked'] else 0  # a fork's own entry has the same arguments\n"
            "tell(f'GOT {seen}' if len(seen) > mine else 'NONE')"
        ),
        reasons=frozenset({"NONE"}),
    ),
    Attack(
        id="signalling the host's processes",
        script="first([FACTS['sentinel'], FACTS['driver']], lambda p: os.kill(p, signal.SIGTERM))",
        control="first([FACTS['sentinel']], lambda p: os.kill(p, 0))",
        reasons=frozenset({"ESRCH"}),
    ),
    Attack(
        id="signalling everybody",
        script=(
            "if os.readlink('/proc/self/ns/pid') == FACTS['namespaces']['pid']: tell('GOT the host')\n"
            "try: os.kill(-1, signal.SIGKILL)\n"
            "except OSError as error: tell(errno.errorcode[error.errno])\n"
            "tell('ESRCH')"
        ),
        control="first([FACTS['sentinel']], lambda p: os.kill(p, 0))",
        reasons=frozenset({"ESRCH", ""}),
    ),
    Attack(
        id="killing its own init",
        script=(
            "if os.readlink('/proc/self/ns/pid') == FACTS['namespaces']['pid']: tell('GOT the host')\n"
            "os.kill(1, signal.SIGKILL); os.kill(1, signal.SIGTERM); time.sleep(0.3); tell('IMMUNE')"
        ),
        control="first([FACTS['sentinel']], lambda p: os.kill(p, 0))",
        reasons=frozenset({"IMMUNE"}),
    ),
    Attack(
        id="tracing",
        script=(
            "pid = os.fork()\n"
            "if pid == 0: time.sleep(5); os._exit(0)\n"
            "def trace():\n"
            "    try: return call(101, 16, pid, 0, 0)\n"
            "    finally: os.kill(pid, signal.SIGKILL)\n"
            "attempt(trace)"
        ),
        reasons=DENIED,
    ),
    Attack(
        id="reading another process's memory",
        script=(
            "b = ctypes.create_string_buffer(8); iov = (ctypes.c_void_p * 2)(ctypes.addressof(b), 8)\n"
            "attempt(lambda: call(310, os.getpid(), iov, 1, iov, 1, 0))"
        ),
        reasons=DENIED,
    ),
    Attack(
        id="another process's descriptors",
        script=(
            "pid = os.fork()\n"
            "if pid == 0: time.sleep(5); os._exit(0)\n"
            "def take():\n"
            "    try: return call(438, call(434, pid, 0), 1, 0)\n"
            "    finally: os.kill(pid, signal.SIGKILL)\n"
            "attempt(take)"
        ),
        reasons=DENIED,
    ),
    Attack(
        id="its init's memory and files",
        script=(
            "first(['/proc/1/mem', '/proc/1/environ', '/proc/1/maps', '/proc/1/root/usr', '/proc/1/fd', '/proc/1/cwd'],"
            " lambda p: os.listdir(p) if os.path.isdir(p) or p.endswith('fd') else open(p, 'rb').read(1))"
        ),
        control=(
            "pid = os.fork()\n"
            "if pid == 0: time.sleep(5); os._exit(0)\n"
            "seen = open(f'/proc/{pid}/maps').read(40); os.kill(pid, signal.SIGKILL); tell('GOT ' + seen)"
        ),
        reasons=frozenset({"EACCES", "EACCES/EPERM", "EACCES/ENOENT"}),
    ),
    Attack(
        id="descriptors that leaked",
        script=(
            "known = {0, 1, 2}\n"
            "open_ones = {int(f): os.readlink('/proc/self/fd/' + f) for f in os.listdir('/proc/self/fd') if os.path.lexists('/proc/self/fd/' + f)}\n"
            "leaked = {f: t for f, t in open_ones.items() if f not in known}\n"
            "odd = {f: t for f, t in open_ones.items() if f in known and not t.startswith('pipe:')}\n"
            "tell(f'GOT {leaked} {odd}' if leaked or odd else 'NONE')"
        ),
        control=(
            "fd = os.open('/etc/passwd', os.O_RDONLY)\n"
            "tell('GOT' if '/etc/passwd' in [os.readlink('/proc/self/fd/' + f) for f in os.listdir('/proc/self/fd') if os.path.lexists('/proc/self/fd/' + f)] else 'NONE')"
        ),
        reasons=frozenset({"NONE"}),
    ),
]
