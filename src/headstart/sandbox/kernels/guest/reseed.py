"""Random state of a Python that was copied: each copy is to draw numbers of its own, or the same as the origin.

Handed over as text; imports nothing of ours, and nothing that is not imported already. `secrets`, `os.urandom` and
`random.SystemRandom` ask the kernel each time, so they need nothing. What stays as it was, and is not looked for:
generators that somebody holds in a variable (`random.Random()`, `numpy.random.default_rng()`), and the seed of hashes.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_REFRESHED = (("random", "seed"), ("numpy.random", "seed"), ("torch", "seed"))
"""Modules with a generator for all, and the function that seeds it from the system, if it is told no seed."""

_NEVER_REFRESHED = ("cupy", "jax", "mxnet", "paddle", "tensorflow")


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
    for name, seed in _REFRESHED:
        module = sys.modules.get(name)
        if module is None:
            continue
        try:
            getattr(module, seed)()
        except Exception:  # noqa: BLE001 whatever a library's own code raises, it was not seeded: it is named
            left.append(name.partition(".")[0])
    return sorted(left)
