"""Thread pools of native libraries: held to one thread while preloading, found, and widened in the fork."""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

THREAD_POOL_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)

THREADED = ("openblas", "libgomp", "libiomp", "libomp", "mkl_rt", "libblis")
"""How libraries are called that keep a pool of threads (OpenBLAS, OpenMP, MKL)."""


class _Loaded(ctypes.Structure):
    """The beginning of `struct dl_phdr_info` (link.h)."""

    _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))


@contextmanager
def held() -> Generator[None]:
    """Load native libraries with pools of one thread; the environment is as before afterwards."""
    before = {name: os.environ.get(name) for name in THREAD_POOL_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_POOL_VARIABLES, "1"))
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def libraries() -> list[str]:
    """List the loaded libraries that keep a pool of threads, by the paths that they were loaded from.

    The loader is asked, not `/proc/self/maps`: of a file that is mapped from one overlay on another, the
    kernel shows a path there that nobody can open.
    """
    found: set[str] = set()

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Loaded), ctypes.c_size_t, ctypes.c_void_p)
    def note(library: Any, size: int, data: Any) -> int:  # noqa: ARG001  the loader's signature
        path = os.fsdecode(library.contents.name or b"")
        if any(name in os.path.basename(path) for name in THREADED):
            found.add(path)
        return 0

    ctypes.CDLL(None).dl_iterate_phdr(note, None)
    return sorted(found)


def control(libraries: Sequence[str]) -> Callable[..., Any] | None:
    """Return what widens the thread pools again: threadpoolctl, or the libraries' own functions, or None."""
    try:
        return importlib.import_module("threadpoolctl").threadpool_limits
    except ImportError:
        setters = [setter for path in libraries for setter in _setters(path)]

    def widen(limits: int) -> None:
        for setter in setters:
            setter(limits)

    return widen if setters else None


def _setters(path: str) -> list[Callable[[int], Any]]:
    """Find the functions of an OpenBLAS (numpy's wheels rename them) or OpenMP library that set its threads."""
    library = ctypes.CDLL(path)
    names = ["omp_set_num_threads"] if "omp" in os.path.basename(path) else []
    names += [f"{before}openblas_set_num_threads{after}" for before in ("", "scipy_") for after in ("", "64_", "_64")]
    return [getattr(library, name) for name in names if hasattr(library, name)]
