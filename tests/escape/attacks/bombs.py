"""Attacks by using up what the machine has."""

from __future__ import annotations

from .attack import UNBOUNDED, Attack

__all__ = ["BOMBS"]

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
