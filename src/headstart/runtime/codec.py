"""Frozen dataclasses to JSON and back, exactly: events in a journal, records in a database.

What a field's annotation says is what is read back: enums by value, tuples as tuples,
`NewType` ids as their text, mappings from text to text, a union of `None` and one type as either. The plan for a class
is made once. Only what our own frozen records use is supported; anything else is a
`TypeError` when the class is registered, not when the first record is read.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cached_property
from typing import Any, NewType, cast

__all__ = ["RecordCodec"]

Json = Any
_Convert = Callable[[Any], Any]

PLAIN = (str, int, float, bool, type(None))


class RecordCodec:
    """Encodes records of the given classes as `{"e": class name, …fields}`, defaults left out.

    `line` writes the JSON text itself: the journal takes every token of every stream, and a
    dictionary in between costs three times as much.

    Args:
        classes: What can be encoded.
        secret: By class, the text fields that `line` can replace.
        hide: What takes a secret field's place.
    """

    def __init__(
        self,
        classes: Iterable[type],
        *,
        secret: Mapping[type, tuple[str, ...]] | None = None,
        hide: _Convert | None = None,
    ) -> None:
        self._classes = tuple(classes)
        self._secret = secret or {}
        self._hide = hide or _same
        self._plans = {cls.__name__: _Plan(cls) for cls in self._classes}

    @cached_property
    def _lines(self) -> dict[str, _LinePlan]:
        return {cls.__name__: _LinePlan(cls) for cls in self._classes}

    @cached_property
    def _hidden_lines(self) -> dict[str, _LinePlan]:
        return {
            cls.__name__: _LinePlan(cls, secret=self._secret.get(cls, ()), hide=self._hide) for cls in self._classes
        }

    def line(self, record: object, *, hiding: bool = False) -> str:
        """Return the record as JSON text; `hiding` replaces its secret fields."""
        plans = self._hidden_lines if hiding else self._lines
        return plans[type(record).__name__].line(record)

    def encode(self, record: object) -> dict[str, Json]:
        name = type(record).__name__
        return {"e": name, **self._plans[name].encode(record)}

    def decode(self, fields: dict[str, Json]) -> object:
        """Return the record.

        Raises:
            ValueError: No such record, or a field is missing or unknown.
        """
        plan = self._plans.get(str(fields.get("e")))
        if plan is None:
            raise ValueError(f"no record is called {fields.get('e')!r}")
        try:
            return plan.decode({name: value for name, value in fields.items() if name != "e"})
        except (AttributeError, TypeError, KeyError, OverflowError) as exc:
            raise ValueError(f"{fields.get('e')}: {exc}") from exc


class _Plan:
    """How one class is written and read."""

    def __init__(self, cls: type) -> None:
        self._cls = cls
        hints = typing.get_type_hints(cls)
        self._fields = [
            (field.name, field.default, *_converters(hints[field.name])) for field in dataclasses.fields(cls)
        ]
        self._read = {name: read for name, _, _, read in self._fields}

    def encode(self, record: object) -> dict[str, Json]:
        written: dict[str, Json] = {}
        for name, default, write, _ in self._fields:
            value = getattr(record, name)
            if value is not default and value != default:
                written[name] = write(value)
        return written

    def decode(self, fields: dict[str, Json]) -> object:
        return self._cls(**{name: self._read[name](value) for name, value in fields.items()})


class _LinePlan:
    """How one class is written as text."""

    def __init__(self, cls: type, *, secret: tuple[str, ...] = (), hide: _Convert | None = None) -> None:
        hints = typing.get_type_hints(cls)
        self._head = f'{{"e":"{cls.__name__}"'
        self._fields = [
            (
                field.name,
                field.default,
                f'"{field.name}":',
                _hiding(hide) if field.name in secret and hide is not None else _text_writer(hints[field.name]),
            )
            for field in dataclasses.fields(cls)
        ]

    def line(self, record: object) -> str:
        parts = [self._head]
        for name, default, label, write in self._fields:
            value = getattr(record, name)
            if value is not default and value != default:
                parts.append(label + write(value))
        return ",".join(parts) + "}"


def _hiding(hide: _Convert) -> Callable[[Any], str]:
    def hidden(value: Any) -> str:
        shown = hide(value)
        return json.encoder.encode_basestring_ascii(shown) if isinstance(shown, str) else json.dumps(shown)

    return hidden


def _text_writer(hint: Any) -> Callable[[Any], str]:
    while isinstance(hint, NewType):
        hint = hint.__supertype__
    if hint is str:
        return json.encoder.encode_basestring_ascii
    if hint is float:
        return _number_text
    if isinstance(hint, type) and issubclass(hint, Enum):
        texts = {member: json.dumps(member.value) for member in hint}
        return texts.__getitem__
    write, _ = _converters(hint)
    return lambda value: json.dumps(write(value), separators=(",", ":"))


def _number_text(value: Any) -> str:
    text = repr(value)
    return text if text[-1].isdigit() else json.dumps(value)  # infinity has a spelling of its own


def _converters(hint: Any) -> tuple[_Convert, _Convert]:
    """Return how a value of this type is written and read."""
    while isinstance(hint, NewType):
        hint = hint.__supertype__
    if hint in PLAIN:
        return _same, _READERS[hint]
    if typing.get_origin(hint) is tuple:
        return _tuple_converters(hint)
    if typing.get_origin(hint) is Mapping and typing.get_args(hint) == (str, str):
        return dict, dict
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return _optional_converters(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_value, hint
    if isinstance(hint, type) and dataclasses.is_dataclass(cast("Any", hint)):
        plan = _Plan(hint)
        return plan.encode, plan.decode
    raise TypeError(f"records cannot hold {hint!r}")


def _tuple_converters(hint: Any) -> tuple[_Convert, _Convert]:
    item, *rest = typing.get_args(hint)
    if rest == [Ellipsis]:
        write, read = _converters(item)
        return (lambda values: [write(v) for v in values]), (lambda values: tuple(read(v) for v in values))
    pairs = [_converters(one) for one in (item, *rest)]
    return (
        lambda values: [w(v) for (w, _), v in zip(pairs, values, strict=True)],
        lambda values: tuple(r(v) for (_, r), v in zip(pairs, values, strict=True)),
    )


def _optional_converters(hint: Any) -> tuple[_Convert, _Convert]:
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    if len(options) != 1:
        raise TypeError(f"records cannot hold {hint!r}: only one type beside None")
    write, read = _converters(options[0])
    return (lambda v: None if v is None else write(v)), (lambda v: None if v is None else read(v))


def _same(value: Any) -> Any:
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


_READERS: dict[Any, _Convert] = {str: _text, int: _whole, float: float, bool: _truth, type(None): _same}


def _enum_value(value: Enum) -> Any:
    return value.value
