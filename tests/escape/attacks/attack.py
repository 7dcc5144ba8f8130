"""An attack: what it tries, and what it must say instead of `GOT`.

A script says `GOT …` when it gets through, else the error that stopped it. It is its own
control, run outside, unless that would hurt this machine; then a milder twin is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["ABSENT", "DENIED", "PRELUDE", "UNBOUNDED", "Attack"]

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
