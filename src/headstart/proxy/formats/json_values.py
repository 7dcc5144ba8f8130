"""Reading JSON that others wrote, value by value, without trusting its shape."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json

from headstart.proxy.formats.contract import Unreadable

__all__ = ["JsonMap", "as_list", "as_map", "as_text", "map_or_none", "read_json", "read_object"]

JsonMap = dict[str, Any]


def read_json(data: bytes) -> Any:
    """Parse JSON; three times as fast as `json` on a stream's small objects.

    Raises:
        Unreadable: It is none.
    """
    try:
        return from_json(data)
    except ValueError:
        pass
    try:  # what is valid JSON but no valid Unicode (a lone surrogate) only the standard parser reads
        return json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise Unreadable(f"not JSON: {exc}") from exc


def read_object(data: bytes) -> JsonMap:
    """Parse a JSON object.

    Raises:
        Unreadable: It is none.
    """
    value = map_or_none(read_json(data))
    if value is None:
        raise Unreadable("not a JSON object")
    return value


def map_or_none(value: object) -> JsonMap | None:
    """Return `value` if it is an object."""
    return value if isinstance(value, dict) else None  # pyright: ignore[reportUnknownVariableType] - JSON keys are str


def as_map(value: object) -> JsonMap:
    """Return `value` if it is an object, else an empty one."""
    return map_or_none(value) or {}


def as_list(value: object) -> list[Any]:
    """Return `value` if it is an array, else an empty one."""
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType] - any JSON inside


def as_text(value: object) -> str:
    """Return `value` if it is a string, else ""."""
    return value if isinstance(value, str) else ""
