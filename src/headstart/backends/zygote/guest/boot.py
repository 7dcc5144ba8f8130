"""The script that a foreign interpreter is started with: `python boot.py record|preload …`.

It ends up *being* the program: whatever the program raises goes up through here to the
interpreter itself, which alone knows exactly what exit codes, tracebacks, `atexit`,
SIGINT and the last flush of stdout mean. Only our own frames are taken out of a traceback.
"""

from __future__ import annotations

import importlib.util
import os
import sys

PACKAGE = "_headstart_zygote"


def load_package(here: str) -> None:
    """Make this folder importable under a name that no program has."""
    spec = importlib.util.spec_from_file_location(
        PACKAGE, os.path.join(here, "__init__.py"), submodule_search_locations=[here]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{here}: not the folder of Headstart's guest code")
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)


def forget_package() -> None:
    """Leave no trace in `sys.modules`; what still runs holds its own references."""
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    if sys.path and os.path.abspath(sys.path[0]) == here:
        del sys.path[0]
    load_package(here)
    program = importlib.import_module(PACKAGE + ".program")
    mode = importlib.import_module(f"{PACKAGE}.{sys.argv[1]}")
    job = mode.main(sys.argv[2:])
    forget_package()
    try:
        program.run(job)
    except SystemExit:
        raise
    except BaseException:
        program.hide_own_frames(here)
        raise
    finally:
        if program.at_end is not None:
            program.at_end()


if __name__ == "__main__":
    main()
