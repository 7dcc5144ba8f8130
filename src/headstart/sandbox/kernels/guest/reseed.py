"""Random state of a Python that was copied: each copy is to draw numbers of its own, or the same as the origin.

Handed over as text; imports nothing of ours, and nothing that is not imported already. `secrets`, `os.urandom` and
`random.SystemRandom` ask the kernel each time, so they need nothing. What stays as it was, and is not looked for:
generators that somebody holds in a variable (`random.Random()`, `numpy.random.default_rng()`), and the seed of hashes.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_NEVER_REFRESHED = ("cupy", "jax", "mxnet", "paddle", "tensorflow")


def _seed(module: "Any") -> None:
    """Called without a seed, it takes one from the system."""
    module.seed()


def _stir(ssl: "Any") -> None:
    """OpenSSL looks at the pid for that; a kernel's is the same in each sandbox."""
    ssl.RAND_add(os.urandom(32), 32.0)


def _renew_names(tempfile: "Any") -> None:
    tempfile._name_sequence = None  # noqa: SLF001


def _renew_key(process: "Any") -> None:
    process.current_process().authkey = os.urandom(32)


def _seed_libc(ctypes: "Any") -> None:
    """For `random` and `rand`; without ctypes, nobody but extensions in C can reach them."""
    ctypes.CDLL(None).srandom(int.from_bytes(os.urandom(4), "little"))


_RENEWED = (
    ("random", _seed),
    ("numpy.random", _seed),
    ("torch", _seed),
    ("ssl", _stir),
    ("tempfile", _renew_names),
    ("multiprocessing.process", _renew_key),
    ("ctypes", _seed_libc),
)
"""Modules with random state for all, and what gives them other one."""


def hold() -> "Callable[[], None]":
    """Return what, called in a fork, has `random` go on as here: Python itself seeds it anew in every fork."""
    module = sys.modules.get("random")
    if module is None:
        return lambda: None
    state = module.getstate()
    return lambda: module.setstate(state)


def unseeded() -> "list[str]":
    """Return the names of imported libraries that nobody can seed anew from outside."""
    return [name for name in _NEVER_REFRESHED if name in sys.modules]


def reseed() -> "list[str]":
    """Seed what can be seeded anew; return the names of imported libraries that may go on as the origin does."""
    left = unseeded()
    for name, renew in _RENEWED:
        if name not in sys.modules:
            continue
        try:
            renew(sys.modules[name])
        except Exception:  # noqa: BLE001 whatever a library's own code raises, it was not seeded: it is named
            left.append(name.partition(".")[0])
    return sorted(left)
