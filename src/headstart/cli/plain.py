"""Frozen values as plain JSON objects, for `--json` and the control routes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, cast

__all__ = ["plain"]


def plain(value: object) -> Any:
    """Return dataclasses as objects, enums by value, paths as text, sequences as lists."""
    match value:
        case Enum():
            return plain(value.value)
        case None | bool() | int() | float() | str():
            return value
        case Path():
            return str(value)
        case Mapping():
            items = cast("Mapping[object, object]", value).items()
            return {str(plain(key)): plain(item) for key, item in items}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in cast("list[object]", value)]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        case _:
            raise TypeError(f"{type(value).__name__} has no plain form")
