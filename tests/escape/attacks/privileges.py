"""Attacks that need a privilege: devices, setuid programs, namespaces, mounts, the kernel's own calls."""

from __future__ import annotations

from .attack import DENIED, Attack

__all__ = ["DEVICES", "KERNEL", "PRIVILEGES"]

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

KERNEL = [
    Attack(
        id="a kernel module",
        script=(
            "tries = ((175, b'x' * 64, 64, b''), (313, os.memfd_create('m'), b'', 0), (176, b'no-such-module', 0x800))\n"
            "said = set()\n"
            "for number, *arguments in tries:\n"
            "    try: call(number, *arguments)\n"
            "    except OSError as error: said.add(errno.errorcode[error.errno])\n"
            "tell('EPERM' if said == {'EPERM'} else f'GOT as far as {sorted(said)}')  # somebody has looked at what was given"
        ),
        reasons=DENIED,
    ),
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
