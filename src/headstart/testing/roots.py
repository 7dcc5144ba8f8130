"""A root file system as small as can be, put together from the host's own programs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

__all__ = ["ROOT_PROGRAMS", "make_root"]

ROOT_PROGRAMS = ("cat", "env", "id", "ln", "ls", "mkdir", "readlink", "rm", "sleep", "stat", "touch")

_LIBRARY = re.compile(r"(/\S+) \(0x")


def make_root(folder: Path, programs: Sequence[str] = ROOT_PROGRAMS) -> Path:
    """Fill a folder, which is made, with a shell, some programs and what these are linked with; return it."""
    binaries = folder / "bin"
    binaries.mkdir(parents=True)
    for name in ("sh", *programs):
        program = shutil.which(name)
        if program is None:
            raise FileNotFoundError(name)
        shutil.copy(os.path.realpath(program), binaries / name)
        linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        for library in map(Path, _LIBRARY.findall(linked)):
            place = folder / library.relative_to("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library.resolve(), place)
    return folder
