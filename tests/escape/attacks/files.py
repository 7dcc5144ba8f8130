"""Attacks on files of the host, of Headstart and of other sandboxes."""

from __future__ import annotations

from .attack import ABSENT, DENIED, Attack

__all__ = ["FILES"]

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
            "names = ('state.sqlite', 'control.sock', 'local', 'sandboxes.sock', 'service.json', 'hosted', 'stores', 'templates')\n"
            "first(['/parent/' + os.path.basename(FACTS['state']) + '/' + n for n in names],"
            " lambda path: os.stat(path))"
        ),
        control="first([FACTS['state'] + '/state.sqlite'])",
        reasons=ABSENT,
    ),
    Attack(
        id="a hard link to a file of the host",
        script="attempt(lambda: os.link('/bait/setuid-id', '/writable/linked'))",
        control=(
            "path = FACTS['bait'] + '/linked-control'\n"
            "attempt(lambda: (os.link(FACTS['bait'] + '/setuid-id', path), os.unlink(path)))"
        ),
        reasons=frozenset({"EXDEV"}),
    ),
    Attack(
        id="links to files of the host",
        script=(
            "def through_a_link(path):\n"
            "    link = f'/tmp/headstart-link-{os.getpid()}'; os.symlink(path, link)\n"
            "    try: return open(link).read(9)\n"
            "    finally: os.unlink(link)\n"
            "first(FACTS['homes'] + FACTS['keys'], through_a_link)"
        ),
        reasons=ABSENT,
    ),
    Attack(
        id="climbing out of a mount",
        script=(
            "folder = '/writable'; opened = os.open(folder, os.O_DIRECTORY)\n"
            "def climbing(path):\n"
            "    up = '../' * 40 + path.lstrip('/')\n"
            "    try: return open(folder + '/' + up).read(9)\n"
            "    except OSError: return os.read(os.open(up, os.O_RDONLY, dir_fd=opened), 9)\n"
            "first(FACTS['homes'] + FACTS['keys'], climbing)"
        ),
        control="opened = os.open(FACTS['bait'], os.O_DIRECTORY)\n"
        "first(FACTS['homes'], lambda path: os.read(os.open('../' * 40 + path.lstrip('/'), os.O_RDONLY, dir_fd=opened), 9))",
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
