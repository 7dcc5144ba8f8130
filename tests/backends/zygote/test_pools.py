"""Which native libraries of a process keep a pool of threads."""

from __future__ import annotations

import ctypes
from pathlib import Path

from headstart.backends.zygote.guest import pools


def test_libraries_are_known_by_the_path_they_were_loaded_from(tmp_path: Path) -> None:
    mapped = {line.split(None, 5)[-1] for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()}
    any_library = next(Path(path) for path in mapped if Path(path).name.startswith(("libm.", "libm-")))
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "libgomp-copy.so").write_bytes(any_library.read_bytes())
    (tmp_path / "shown").symlink_to("real")  # the kernel's own list of what is mapped has another path
    path = str(tmp_path / "shown" / "libgomp-copy.so")
    before = pools.libraries()
    assert path not in before
    ctypes.CDLL(path)
    assert pools.libraries() == sorted([*before, path])
