"""Random state of a Python that was copied: each copy is to draw numbers of its own, or the same as the origin.

Handed over as text; imports nothing of ours, and nothing that is not imported already. `secrets`, `os.urandom` and
`random.SystemRandom` ask the kernel each time, so they need nothing. Generators that somebody holds
(`random.Random()`, `numpy.random.default_rng()`) stay as they were: they are named where a cell has them in a
variable, and not looked for elsewhere. So does the seed of hashes.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_NEVER_REFRESHED = (
    "cryptography",
    "cupy",
    "fastuuid",
    "jax",
    "mxnet",
    "paddle",
    "tensorflow",
    "ulid_transform",
    "uuid_utils",
)
"""Libraries with random state in native code (`cryptography` may have an OpenSSL of its own)."""

_GENERATORS = (
    ("random", ("Random",)),
    ("numpy.random", ("BitGenerator", "Generator", "RandomState")),
    ("torch", ("Generator",)),
)
"""Modules, and their classes of generators that draw for who holds them."""


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


def _forget_node(uuid: "Any") -> None:
    """What `uuid1` ends with is a random number, where no network card tells another."""
    uuid._node = None  # noqa: SLF001


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
    ("uuid", _forget_node),
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
    """Return the names of imported libraries, and of cells' variables, that nobody can seed anew from outside."""
    return [*(name for name in _NEVER_REFRESHED if name in sys.modules), *_generators()]


def _generators() -> "list[str]":
    """Return the names of variables of cells that are generators."""
    kinds = [getattr(sys.modules.get(module), name, None) for module, names in _GENERATORS for name in names]
    found = tuple(kind for kind in kinds if isinstance(kind, type))
    asks = getattr(sys.modules.get("random"), "SystemRandom", ())
    variables = list(getattr(sys.modules.get("__main__"), "__dict__", {}).items())
    return [name for name, value in variables if issubclass(type(value), found) and not issubclass(type(value), asks)]


def reseed() -> "list[str]":
    """Seed what can be seeded anew; return the names of what may go on as the origin does."""
    left = unseeded()
    for name, renew in _RENEWED:
        if name not in sys.modules:
            continue
        try:
            renew(sys.modules[name])
        except Exception:  # noqa: BLE001 whatever a library's own code raises, it was not seeded: it is named
            left.append(name.partition(".")[0])
    return sorted(left)
