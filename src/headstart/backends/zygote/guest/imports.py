"""Who imports whom, also what is loaded already.

A module that is left for after the fork must not come back with a module that imports it. The
interpreter's audit event tells only of the first import of each, so the `import` statement itself
is watched. What is imported without one (`importlib.import_module`) is not seen here.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable
from typing import Any


class Imports:
    """Notes import statements, from `watch` to `unwatch`.

    Args:
        arrived: Called after each import statement.
    """

    def __init__(self, arrived: Callable[[], None]) -> None:
        self._arrived = arrived
        self._needed: dict[str, set[str]] = {}
        self._plain = builtins.__import__

    def watch(self) -> None:
        builtins.__import__ = self._import

    def unwatch(self) -> None:
        builtins.__import__ = self._plain

    def _import(
        self,
        name: str,
        globals: Any = None,  # noqa: A002 - the names that `__import__` has
        locals: Any = None,  # noqa: A002
        fromlist: Any = (),
        level: int = 0,
    ) -> Any:
        module = self._plain(name, globals, locals, fromlist, level)
        if globals and "__name__" in globals:
            found = module.__name__ if level else name  # of a relative import, what was imported from
            needed = self._needed.setdefault(globals["__name__"], set())
            needed.update((found, *(f"{found}.{item}" for item in fromlist or ())))
        self._arrived()
        return module

    def with_importers(self, modules: Iterable[str]) -> set[str]:
        """Return the modules with all that import them, or import who does."""
        found = set(modules)
        more = found
        while more:
            more = {
                importer
                for importer, needed in self._needed.items()
                if importer not in found and any(_is_within(name, found) for name in needed)
            }
            found |= more
        return found


def _is_within(module: str, packages: set[str]) -> bool:
    parts = module.split(".")
    return any(".".join(parts[:length]) in packages for length in range(1, len(parts) + 1))
