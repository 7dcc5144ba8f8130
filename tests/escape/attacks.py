"""The attacks: what each tries, and what it must say instead of `GOT`.

A script says `GOT …` when it gets through, else the error that stopped it. It is its own
control, run outside, unless that would hurt this machine; then a milder twin is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PRELUDE = """
import ctypes, errno, json, os, signal, socket, sys, time
FACTS = json.loads(@FACTS@)
libc = ctypes.CDLL(None, use_errno=True); libc.syscall.restype = ctypes.c_long
def tell(word): os.write(1, str(word).encode()); os._exit(0)
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if result == -1: raise OSError(ctypes.get_errno(), "call")
    return result
def attempt(action):
    try: result = action()
    except OSError as error: tell(errno.errorcode.get(error.errno, error))
    tell(f"GOT {result!r}"[:200])
def first(paths, action=lambda path: open(path).read(40)):
    said = {}
    for path in paths:
        try: tell(f"GOT {path}: {action(path)!r}"[:200])
        except OSError as error: said[path] = errno.errorcode.get(error.errno)
    tell("/".join(sorted(set(said.values()))))
"""

ABSENT = frozenset({"ENOENT"})
DENIED = frozenset({"EPERM"})


UNBOUNDED = "the kernel does not hold the limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attempt.

    Attributes:
        script: Says `GOT …` if it gets through.
        reasons: What it has to say instead, one of these.
        control: Run outside in place of `script`, where that one would do harm.
        network: Of the sandbox.
        ordinary: Reasons for a service of an ordinary user, where they differ.
        needs_limits: Only promised where the backend claims limits.
        weaker: A word by which the backend may admit in `weaker` that this gets through.
        stored_weaker: Likewise, where its files are in a store.
    """

    id: str
    script: str
    reasons: frozenset[str]
    control: str | None = None
    network: str = "none"
    ordinary: frozenset[str] = field(default=frozenset())
    needs_limits: bool = False
    weaker: str | None = None
    stored_weaker: str | None = None

    def expected(self, user: str) -> frozenset[str]:
        return self.ordinary if user == "ordinary" and self.ordinary else self.reasons


FILES = [
    Attack(id="another home", script="first(FACTS['homes'])", reasons=ABSENT),
    Attack(id="ssh keys", script="first(FACTS['keys'])", reasons=ABSENT),
    Attack(
        id="the password file",
        script="first(['/etc/shadow', '/etc/gshadow', '/proc/1/root/etc/shadow'])",
        reasons=frozenset({"EACCES/ENOENT"}),
    ),
    Attack(
        id="Headstart's own state",
        script="first([FACTS['state'] + '/state.sqlite', '/proc/1/root' + FACTS['state'] + '/state.sqlite'])",
        reasons=frozenset({"EACCES/ENOENT"}),
    ),
    Attack(
        id="Headstart's control socket",
        script="s = socket.socket(socket.AF_UNIX); attempt(lambda: s.connect(FACTS['state'] + '/control.sock'))",
        reasons=ABSENT,
    ),
    Attack(
        id="folders of the host",
        script=(
            "seen = {p: os.listdir(p) for p in ('/opt', '/srv', '/mnt', '/home', '/root', '/run', '/var/lib', '/boot',"
            " '/sys/fs/cgroup', '/sys', '/media') if os.path.isdir(p)}\n"
            "mine = set(os.path.expanduser('~').split('/'))\n"
            "full = {p: n for p, n in seen.items() if set(n) - mine - {'lock'}}\n"
            "tell(f'GOT {full}'[:200] if full else 'EMPTY')"
        ),
        reasons=frozenset({"EMPTY"}),
    ),
    Attack(
        id="Headstart's own source and settings",
        script="first([FACTS['project'] + name for name in ('/pyproject.toml', '/tests/conftest.py', '/src/headstart/errors.py')])",
        reasons=ABSENT,
    ),
    Attack(
        id="another sandbox's files",
        script=(
            "places = ('/tmp', os.path.expanduser('~'), '/dev/shm', '/var/tmp', '/prefix')\n"
            "found = [p for p in places if os.path.exists(p + '/secret') and FACTS['secret'] in open(p + '/secret').read()]\n"
            "tell(f'GOT {found}' if found else 'ENOENT')"
        ),
        control="open('/tmp/secret', 'w').write(FACTS['secret']); tell('GOT ' + open('/tmp/secret').read())",
        reasons=ABSENT,
    ),
    Attack(
        id="writing to the system",
        script=(
            "first(['/usr/bin/headstart-escape', '/usr/lib/headstart-escape', '/etc/headstart-escape', '/headstart-escape'],"
            " lambda path: (open(path, 'w'), os.unlink(path)))"
        ),
        reasons=frozenset({"EROFS"}),
    ),
    Attack(
        id="writing to a read-only mount",
        script="attempt(lambda: open('/bait/new', 'w'))",
        control="attempt(lambda: open(FACTS['bait'] + '/new', 'w').close())",
        reasons=frozenset({"EROFS"}),
    ),
    Attack(
        id="a setuid file on the host's disk",
        script=(
            "def make():\n"
            "    path = '/writable/setuid'\n"
            "    open(path, 'w').close(); os.chmod(path, 0o4755); return os.stat(path).st_mode\n"
            "attempt(make)"
        ),
        control=(
            "path = FACTS['bait'] + '/setuid-control'\n"
            "open(path, 'w').close(); os.chmod(path, 0o4755); os.unlink(path); tell('GOT')"
        ),
        reasons=DENIED,
    ),
    Attack(
        id="a setuid file, made so at once",
        script="attempt(lambda: os.open('/writable/setuid2', os.O_CREAT | os.O_WRONLY, 0o4755))",
        control=(
            "path = FACTS['bait'] + '/setuid-control'\n"
            "os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o4755)); os.unlink(path); tell('GOT')"
        ),
        reasons=DENIED,
    ),
    Attack(
        id="Headstart's state inside a declared mount",
        script=(
            "first(['/parent/' + os.path.basename(FACTS['state']) + '/' + n for n in ('state.sqlite', 'control.sock', 'local')],"
            " lambda path: os.stat(path))"
        ),
        control="first([FACTS['state'] + '/state.sqlite'])",
        reasons=ABSENT,
    ),
    Attack(
        id="a file by its handle",
        script="attempt(lambda: call(304, -100, ctypes.create_string_buffer(128), 0))",
        control=(
            "h = ctypes.create_string_buffer(b'\\x78\\0\\0\\0' + bytes(140)); m = ctypes.c_int(0)\n"
            "bait = FACTS['bait']  # an overlay, say a container's root, gives no handles\n"
            "call(303, -100, bait.encode(), h, ctypes.byref(m), 0); d = os.open(bait, os.O_RDONLY)\n"
            "attempt(lambda: call(304, d, h, 0))"
        ),
        reasons=DENIED,
    ),
    Attack(
        id="kernel settings",
        script=(
            "first(['/proc/sys/kernel/core_pattern', '/proc/sys/kernel/modprobe', '/proc/sysrq-trigger', '/sys/power/state',"
            " '/proc/sys/vm/overcommit_memory'], lambda path: os.open(path, os.O_WRONLY))"
        ),
        reasons=frozenset({"EACCES/ENOENT", "EROFS/ENOENT", "EACCES/ENOENT/EROFS", "EACCES/EROFS", "EACCES"}),
    ),
]

PREFIX = [
    Attack(
        id="the layers of its own overlays",
        script="attempt(lambda: os.listdir('/.headstart/closed/scratch'))",
        control="attempt(lambda: os.listdir(FACTS['prefix']))",
        reasons=frozenset({"EACCES"}),
    ),
    Attack(
        id="opening the folder that its layers are in",
        script="attempt(lambda: os.chmod('/.headstart/closed', 0o777))",
        control="attempt(lambda: os.chmod(os.environ['HOME'], 0o700))",
        reasons=frozenset({"EROFS"}),
    ),
    Attack(
        id="the install prefix beside its overlay",
        script="first(['/.headstart/plain/0/given', '/.headstart/plain/1/given', '/proc/1/root/prefix/given'])",
        control="first([FACTS['prefix'] + '/given'])",
        reasons=frozenset({"EACCES/ENOENT"}),
    ),
    Attack(
        id="a whiteout of its own",
        script="attempt(lambda: os.mknod('/prefix/whiteout', 0o20000, os.makedev(0, 0)))",
        control=(
            "path = FACTS['prefix'] + '/whiteout-control'\n"
            "attempt(lambda: (os.mknod(path, 0o20000, os.makedev(0, 0)), os.unlink(path)))"
        ),
        reasons=DENIED,
    ),
    Attack(
        id="a folder that redirects to others",
        script=(
            "os.mkdir('/prefix/made')\n"
            "for name, value in (('redirect', b'/kept'), ('opaque', b'n'), ('metacopy', b''), ('origin', b'')):\n"
            "    for names in ('user', 'trusted'):\n"
            "        try: os.setxattr('/prefix/made', f'{names}.overlay.{name}', value)\n"
            "        except OSError: pass\n"
            "os.rename('/prefix/made', '/prefix/again')  # it is looked up anew\n"
            "found = os.listdir('/prefix/again')\n"
            "tell(f'GOT {found}' if found else 'NOTHING')"
        ),
        control=(
            "call(272, 0x20000); call(165, b'x', b'/', 0, 0x44000, 0); call(165, b'x', b'/mnt', b'tmpfs', 0, 0)\n"
            "for name in ('lower/kept', 'upper/made', 'work', 'merged'): os.makedirs('/mnt/' + name)\n"
            "open('/mnt/lower/kept/secret', 'w').close(); os.setxattr('/mnt/upper/made', 'trusted.overlay.redirect', b'/kept')\n"
            "call(165, b'x', b'/mnt/merged', b'overlay', 0,"
            " b'lowerdir=/mnt/lower,upperdir=/mnt/upper,workdir=/mnt/work,redirect_dir=on')\n"
            "found = os.listdir('/mnt/merged/made'); tell(f'GOT {found}' if found else 'NOTHING')"
        ),
        reasons=frozenset({"NOTHING"}),
    ),
    Attack(
        id="a setuid program of an install prefix",
        script=(
            "import subprocess\n"
            "open('/prefix/setuid-id', 'ab').close()  # a copy of its own\n"
            "told = subprocess.run(['/prefix/setuid-id', '-u'], capture_output=True, text=True).stdout.strip()\n"
            "tell(f'GOT {told}' if told != str(os.getuid()) else 'MYSELF')"
        ),
        control=(
            "import subprocess\n"
            "told = subprocess.run([FACTS['prefix'] + '/setuid-id', '-u'], capture_output=True, text=True, user=65534).stdout.strip()\n"
            "tell('GOT 0' if told == '0' else told)"
        ),
        reasons=frozenset({"MYSELF"}),
    ),
    Attack(
        id="a setuid file in an install prefix",
        script="attempt(lambda: os.chmod('/prefix/given', 0o4755))",
        control=(
            "path = FACTS['prefix'] + '/setuid-control'\n"
            "open(path, 'w').close(); attempt(lambda: (os.chmod(path, 0o4755), os.unlink(path)))"
        ),
        reasons=DENIED,
    ),
]

DEVICES = [
    Attack(
        id="device nodes that are there",
        script=(
            "allowed = {'null', 'zero', 'full', 'random', 'urandom', 'tty', 'ptmx', 'pts', 'shm', 'fd', 'stdin', 'stdout',"
            " 'stderr', 'mqueue', 'console'}\n"
            "found = set(os.listdir('/dev')) - allowed\n"
            "tell(f'GOT {sorted(found)}'[:200] if found else 'NONE')"
        ),
        reasons=frozenset({"NONE"}),
    ),
    Attack(
        id="a device node of its own",
        script="attempt(lambda: os.mknod('/tmp/kmem', 0o20600, os.makedev(1, 2)))",
        control="attempt(lambda: (os.mknod('/tmp/kmem', 0o20600, os.makedev(1, 2)), os.unlink('/tmp/kmem')))",
        reasons=DENIED,
    ),
    Attack(
        id="typing into a terminal",
        script=("import fcntl, pty\na, b = pty.openpty()\nattempt(lambda: fcntl.ioctl(b, 0x5412, b'x'))"),
        control=(
            "import fcntl, pty\npid, fd = pty.fork()\n"
            "if pid == 0:\n"
            "    try: fcntl.ioctl(0, 0x5412, b'x'); os._exit(0)\n"
            "    except OSError as error: os._exit(error.errno)\n"
            "code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
            "tell('GOT' if code in (0, errno.EIO) else code)  # EIO: this kernel has switched it off for everybody"
        ),
        reasons=DENIED,
    ),
]

PRIVILEGES = [
    Attack(
        id="capabilities",
        script=(
            "status = dict(l.rstrip().split(':\\t') for l in open('/proc/self/status') if l.startswith(('Cap', 'NoNew', 'Seccomp:')))\n"
            "held = {k: v for k, v in status.items() if k.startswith('Cap') and int(v, 16)}\n"
            "ok = not held and status['NoNewPrivs'] == '1' and status['Seccomp'] == '2'\n"
            "tell('NONE' if ok else f'GOT {status}')"
        ),
        reasons=frozenset({"NONE"}),
    ),
    Attack(
        id="a setuid program",
        script=(
            "import subprocess\n"
            "mounts = [l.split() for l in open('/proc/self/mountinfo')]\n"
            "devices = {'/null', '/zero', '/full', '/random', '/urandom', '/tty'}  # single nodes, bound\n"
            "suid = [m[4] for m in mounts if 'nosuid' not in m[5].split(',') and m[3] not in devices]\n"
            "told = subprocess.run(['/bait/setuid-id', '-u'], capture_output=True, text=True).stdout.strip()\n"
            "tell(f'GOT {told} {suid}' if told != str(os.getuid()) or suid else 'MYSELF')"
        ),
        control=(
            "import subprocess\n"
            "told = subprocess.run([FACTS['bait'] + '/setuid-id', '-u'], capture_output=True, text=True, user=65534).stdout.strip()\n"
            "tell('GOT 0' if told == '0' else told)"
        ),
        reasons=frozenset({"MYSELF"}),
    ),
    Attack(
        id="a user namespace",
        script="attempt(lambda: call(272, 0x10000000))",
        reasons=DENIED,
    ),
    Attack(
        id="a user namespace by clone",
        script="attempt(lambda: call(56, 0x10000000 | 17, 0, 0, 0, 0))",
        control="pid = call(56, 0x10000000 | 17, 0, 0, 0, 0)\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0); tell('GOT')",
        reasons=DENIED,
    ),
    Attack(
        id="mounting",
        script="attempt(lambda: call(165, b'x', b'/tmp', b'tmpfs', 0, 0))",
        control=(
            "call(272, 0x20000); call(165, b'x', b'/', 0, 0x44000, 0)\n"
            "attempt(lambda: call(165, b'x', b'/tmp', b'tmpfs', 0, 0))"
        ),
        reasons=DENIED,
    ),
    Attack(
        id="unmounting what covers",
        script="first(['/tmp', '/proc', '/dev/shm', '/'], lambda path: call(166, path.encode(), 2))",
        control=(
            "call(272, 0x20000); call(165, b'x', b'/', 0, 0x44000, 0); call(165, b'x', b'/tmp', b'tmpfs', 0, 0)\n"
            "attempt(lambda: call(166, b'/tmp', 2))"
        ),
        reasons=DENIED,
    ),
    Attack(
        id="joining the host's namespaces",
        script="first([f'/proc/{p}/ns/{n}' for p, n in ((1, 'mnt'), (1, 'net'), ('self', 'uts'))], lambda p: call(308, os.open(p, 0), 0))",
        reasons=frozenset({"EACCES/EPERM", "EPERM"}),
    ),
    Attack(
        id="chroot",
        script="attempt(lambda: os.chroot('/tmp'))",
        reasons=DENIED,
    ),
]

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
        script="first([FACTS['sentinel'], FACTS['driver'], os.getppid() and FACTS['driver']], lambda p: os.kill(p, signal.SIGTERM))",
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

KERNEL = [
    Attack(id="the keyring", script="attempt(lambda: call(250, 0, -4, 1))", reasons=DENIED),
    Attack(
        id="bpf",
        script="attempt(lambda: call(321, 0, ctypes.create_string_buffer(b'\\2\\0\\0\\0\\4\\0\\0\\0\\4\\0\\0\\0\\1\\0\\0\\0' + bytes(56)), 72))",
        reasons=DENIED,
    ),
    Attack(
        id="perf",
        script="attempt(lambda: call(298, ctypes.create_string_buffer(b'\\1\\0\\0\\0\\x80\\0\\0\\0' + bytes(120)), 0, -1, -1, 0))",
        reasons=DENIED,
    ),
    Attack(id="userfaultfd", script="attempt(lambda: call(323, 1))", reasons=DENIED),
    Attack(id="io_uring", script="attempt(lambda: call(425, 1, ctypes.create_string_buffer(120)))", reasons=DENIED),
    Attack(
        id="the kernel's log",
        script="attempt(lambda: call(103, 10, 0, 0))",
        reasons=DENIED,
    ),
    Attack(
        id="the clock",
        script="attempt(lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()))",
        control="tell('GOT' if os.geteuid() == 0 else 'EPERM')  # setting it would disturb the machine",
        reasons=DENIED,
    ),
    Attack(
        id="the host's name",
        script="attempt(lambda: socket.sethostname('pwned'))",
        control="call(272, 0x4000000); attempt(lambda: socket.sethostname('pwned'))",
        reasons=DENIED,
    ),
]

NETWORK = [
    Attack(
        id="the host's loopback",
        script="s = socket.socket(); s.settimeout(3); attempt(lambda: s.connect(('127.0.0.1', FACTS['port'])))",
        reasons=frozenset({"ECONNREFUSED"}),
    ),
    Attack(
        id="the host's interfaces",
        script="others = [n for _, n in socket.if_nameindex() if n != 'lo']; tell(f'GOT {others}' if others else 'NONE')",
        control="tell(f'GOT {socket.if_nameindex()}')",
        reasons=frozenset({"NONE"}),
    ),
    Attack(
        id="an abstract socket of the host",
        script="s = socket.socket(socket.AF_UNIX); attempt(lambda: s.connect('\\0' + FACTS['abstract']))",
        reasons=frozenset({"ECONNREFUSED"}),
    ),
    Attack(
        id="an abstract socket of the host, on its network",
        script="s = socket.socket(socket.AF_UNIX); attempt(lambda: s.connect('\\0' + FACTS['abstract']))",
        network="host",
        reasons=DENIED,
        weaker="abstract",
    ),
    Attack(
        id="raw packets",
        script="attempt(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))",
        reasons=frozenset({"EAFNOSUPPORT"}),
    ),
    Attack(
        id="raw packets on the host's network",
        script="attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))",
        network="host",
        reasons=DENIED,
    ),
    Attack(
        id="the host's interfaces, changed",
        script=(
            "import fcntl, struct\ns = socket.socket()\n"
            "attempt(lambda: fcntl.ioctl(s, 0x8914, struct.pack('16sH14x', b'lo', 0x49)))"
        ),
        network="host",
        reasons=DENIED,
    ),
]

BOMBS = [
    Attack(
        id="a fork bomb",
        script=(
            "count = 0\n"
            "while count < 500:\n"
            "    try: pid = os.fork()\n"
            "    except OSError as error: tell(errno.errorcode[error.errno])\n"
            "    if pid == 0: time.sleep(20); os._exit(0)\n"
            "    count += 1\n"
            "tell(f'GOT {count} processes')"
        ),
        control=(
            "pids = []\n"
            "while len(pids) < 80:\n"
            "    pid = os.fork()\n"
            "    if pid == 0: time.sleep(20); os._exit(0)\n"
            "    pids.append(pid)\n"
            "for pid in pids: os.kill(pid, 9); os.waitpid(pid, 0)\n"
            "tell('GOT 80 processes')"
        ),
        reasons=frozenset({"EAGAIN"}),
    ),
    Attack(
        id="a memory bomb",
        script=(
            "try: hoard = [b'x' * 10_000_000 for _ in range(40)]\n"
            "except MemoryError: tell('ENOMEM')\n"
            "tell(f'GOT {sum(map(len, hoard))}')"
        ),
        reasons=frozenset({"OOM-KILLED"}),
        ordinary=frozenset({"OOM-KILLED", "ENOMEM"}),
    ),
    Attack(
        id="a memory bomb of many processes",
        script=(
            "held, holding = os.pipe()  # ends when everybody has the memory, or was refused it\n"
            "for _ in range(8):\n"
            "    if os.fork() == 0:\n"
            "        try: hoard = b'x' * 60_000_000\n"
            "        except MemoryError: os._exit(3)\n"
            "        os.close(holding); os.read(held, 1); os._exit(0)\n"
            "os.close(holding)\n"
            "codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(8)]\n"
            "tell(f'GOT {codes}' if codes == [0] * 8 else 'SOME KILLED')"
        ),
        reasons=frozenset({"SOME KILLED", "OOM-KILLED"}),
        needs_limits=True,
    ),
    *(
        Attack(
            id=f"filling {place}",
            stored_weaker=UNBOUNDED,
            script=(
                f"f = open(os.path.expanduser({place!r}) + '/fill', 'wb')\n"
                "try:\n"
                "    for _ in range(60): f.write(bytes(1_000_000)); f.flush()\n"
                "except OSError as error: tell(errno.errorcode[error.errno])\n"
                "tell(f'GOT {f.tell()}')"
            ),
            control=(
                "import tempfile\nf = tempfile.TemporaryFile()\n"
                "for _ in range(60): f.write(bytes(1_000_000))\ntell(f'GOT {f.tell()}')"
            ),
            reasons=frozenset({"ENOSPC"}),
        )
        for place in ("~", "/tmp", "/var/tmp", "/dev/shm", "/prefix")
    ),
    *(
        Attack(
            id=f"using up inodes in {place}",
            stored_weaker=UNBOUNDED,
            script=(
                "try:\n"
                f"    for index in range(20000): os.close(os.open(f'{place}/{{index}}', os.O_CREAT | os.O_WRONLY))\n"
                "except OSError as error: tell(errno.errorcode[error.errno])\n"
                "tell('GOT 20000 files')"
            ),
            control=(
                "import tempfile\n"
                "with tempfile.TemporaryDirectory() as d:\n"
                "    for index in range(20000): os.close(os.open(f'{d}/{index}', os.O_CREAT | os.O_WRONLY))\n"
                "tell('GOT 20000 files')"
            ),
            reasons=frozenset({"ENOSPC"}),
        )
        for place in ("/tmp", "/prefix")
    ),
    Attack(
        id="hiding memory in files without names",
        script=(
            "fd = os.memfd_create('x')\n"
            "try:\n"
            "    for _ in range(40): os.write(fd, bytes(10_000_000))\n"
            "except OSError as error: tell(errno.errorcode[error.errno])\n"
            "tell(f'GOT {os.fstat(fd).st_size}')"
        ),
        reasons=frozenset({"OOM-KILLED"}),
        needs_limits=True,
    ),
]

ATTACKS = [*FILES, *PREFIX, *DEVICES, *PRIVILEGES, *PROCESSES, *KERNEL, *NETWORK, *BOMBS]
