"""Run one of our guest modules in a Python that must not see our other dependencies.

    python -I -S launch.py headstart.backends.spawner.guest.spawner ARGUMENTS…

Guest code lives inside the package, so that editors, type checkers and tests see ordinary
imports; but the interpreter that runs it may be a stranger's (a server's venv), and even
our own starts faster without site-packages. `expose` therefore registers empty stand-ins
for the packages on the way to the `guest` folders: `import headstart.backends.local.guest.x`
then loads exactly that file, and no `__init__` of ours runs.
"""

from __future__ import annotations

import importlib
import sys
import types

__all__ = ["expose", "main"]

_GUESTS = ("spawner", "process", "local", "zygote")


def expose(package_root: str) -> None:
    """Make the guest folders below `package_root` (the `headstart` folder) importable."""
    stand_ins = {"headstart": package_root, "headstart.backends": package_root + "/backends"}
    for part in _GUESTS:
        folder = f"{package_root}/backends/{part}"
        stand_ins["headstart.backends." + part] = folder
        stand_ins[f"headstart.backends.{part}.guest"] = folder + "/guest"
    for name, folder in stand_ins.items():
        module = types.ModuleType(name)
        module.__path__ = [folder]
        sys.modules[name] = module


def main() -> None:
    """Import the module named in `argv[1]` and call its `main`."""
    here = __file__.rsplit("/", 4)
    expose(here[0])
    del sys.argv[0]
    importlib.import_module(sys.argv[0]).main()


if __name__ == "__main__":
    main()
