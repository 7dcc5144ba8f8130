"""Attacks on the install prefix of a server, and through the overlay on it."""

from __future__ import annotations

from .attack import DENIED, Attack

__all__ = ["PREFIX"]

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
