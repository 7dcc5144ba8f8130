"""What is mounted where, as /proc tells it."""

from __future__ import annotations

import os
import re

__all__ = ["mount_points"]


def mount_points(process: str) -> list[tuple[int, str]]:
    """Return each mount's id and place, in a process's (`/proc/PID`) mount namespace."""
    with open(f"{process}/mountinfo", "rb") as file:
        content = os.fsdecode(file.read())
    fields = [line.split(" ", 5) for line in content.split("\n") if line]
    return [(int(number), _unescaped(point)) for number, _, _, _, point, _ in fields]


def _unescaped(path: str) -> str:
    """Read a path as it is written there: blanks and the like as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), path)
