"""Turning what is wrong with a file into one line that names file, line, key and its cure.

mcp.json:7: playwright.headstart.instnace: unknown key. hint: did you mean "instance"?
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from json_source_map import calculate  # pyright: ignore[reportMissingTypeStubs] has none
from pydantic import BaseModel, ValidationError

from headstart.errors import ConfigError

__all__ = [
    "broken_json",
    "broken_toml",
    "duplicate_key",
    "first_location",
    "invalid_value",
    "line_in_json",
    "line_in_toml",
]

Path = Sequence[str | int]

_JSON_CURES = {
    "Expecting property name": 'names stand in "double quotes"; no comma goes before a }, and JSON has no comments',
    "Expecting value": 'a value is missing: text stands in "double quotes", and no comma goes before a ]',
    "Expecting ',' delimiter": "put a comma between two entries, or close the bracket that was opened above",
    "Expecting ':' delimiter": 'write "name": value',
    "Illegal trailing comma": "take the comma before the bracket away",
    "Extra data": "the file is one JSON object: take away what follows its last }",
    "Unterminated string": 'end the text with "',
    "Invalid control character": "write a line break inside of text as \\n",
    "Invalid \\": "write a backslash inside of text as \\\\",
}
_TOML_CURES = {
    "Expected '=' after a key": "write name = value; the name of a table stands in [brackets]",
    "Expected ']'": "close the bracket",
    "Expected newline or end of document": "one name = value stands on a line",
    "Invalid value": 'a value is text in "quotes", a number, true, false, or a [list]',
    "Invalid statement": "a line is name = value, [table], or a # comment",
    "Cannot": "the same name is there already: remove one of the two",
    "Unclosed": "close the bracket that was opened above",
    "Unterminated": "close the text or the bracket that was opened above",
    "Illegal character": "end the text with a quote on the same line",
    "Unescaped": "write a backslash inside of text as \\\\, or put the text in 'single quotes'",
}
_VALUE_CURES = {
    "string": 'write text, in "quotes"',
    "int": "write a whole number, without quotes",
    "float": "write a number, without quotes",
    "bool": "write true or false, without quotes",
    "list": "write a list: [ … ]",
    "dict": "write names with values: { … }",
    "model": "write names with values: { … }",
    "greater": "choose a bigger number",
    "less": "choose a smaller number",
}
"""What to do, by how the parser's or the checker's own words begin."""


def line_in_json(text: str, path: Path) -> int:
    """Return the 1-based line of a key (or of the nearest parent that exists) in JSON text."""
    places = calculate(text)
    for end in range(len(path), -1, -1):
        pointer = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path[:end])
        if pointer in places:
            entry = places[pointer]
            return int((entry.key_start or entry.value_start).line) + 1
    return 1


def line_in_toml(text: str, path: Path) -> int:
    """Return the 1-based line on which a TOML key or its table stands, as far as a line scan can tell."""
    names = [str(part) for part in path if isinstance(part, str)]
    best = 1
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if header := re.fullmatch(r"\[\[?([^\[\]]+)\]\]?\s*(#.*)?", stripped):
            table = [part.strip().strip("\"'") for part in header.group(1).split(".")]
            if names[: len(table)] == table:
                best = number
        elif assignment := re.match(r"""["']?([\w.-]+)["']?\s*=""", stripped):
            here = [*table, *assignment.group(1).split(".")]
            if names[: len(here)] == here:
                return number
    return best


def duplicate_key(text: str, *, file: str) -> ConfigError | None:
    """Return an error if an object in JSON text has the same key twice (the second would win silently)."""
    found: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: set[str] = set()
        for key, _ in items:
            if key in seen:
                found.append(key)
            seen.add(key)
        return dict(items)

    json.loads(text, object_pairs_hook=pairs)
    if not found:
        return None
    key = found[0]
    places = [m.start() for m in re.finditer(re.escape(json.dumps(key, ensure_ascii=False)) + r"\s*:", text)]
    line = text.count("\n", 0, places[-1]) + 1 if places else 1
    return ConfigError("appears twice", where=f"{file}:{line}", key=key, hint="rename or remove one of the two")


def broken_json(error: json.JSONDecodeError, *, file: str) -> ConfigError:
    """Tell where JSON text cannot be read, what is wrong there, and what to write."""
    hint = _cure(_JSON_CURES, error.msg) or "compare with docs/reference/configuration.md"
    where = f"{file}:{error.lineno}:{error.colno}"
    return ConfigError(f"not valid JSON: {error.msg[0].lower()}{error.msg[1:]}", where=where, hint=hint)


def broken_toml(error: tomllib.TOMLDecodeError, text: str, *, file: str) -> ConfigError:
    """Tell where TOML text cannot be read, what is wrong there, and what to write."""
    found = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", str(error), re.DOTALL)
    message = found.group(1) if found else str(error)
    if found and found.group(2):
        place = f"{found.group(2)}:{found.group(3)}"
    else:
        last = text.rstrip().splitlines() or [""]
        place = f"{len(last)}:{len(last[-1]) + 1}"
    hint = _cure(_TOML_CURES, message) or "compare with docs/reference/configuration.md"
    return ConfigError(f"not valid TOML: {message[0].lower()}{message[1:]}", where=f"{file}:{place}", hint=hint)


def invalid_value(error: ValidationError, *, model: type[BaseModel], where: str, prefix: Path) -> ConfigError:
    """Tell the first thing that pydantic found wrong, the way a person would."""
    problem = error.errors(include_url=False)[0]
    location = [part for part in problem["loc"] if not _is_branch(part)]
    key = ".".join(str(part) for part in [*prefix, *location])
    match problem["type"]:
        case "extra_forbidden":
            known = _fields_at(model, location[:-1])
            near = difflib.get_close_matches(str(location[-1]), known, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"known keys: {', '.join(sorted(known))}"
            return ConfigError("unknown key", where=where, key=key, hint=hint)
        case "missing":
            return ConfigError("missing", where=where, key=key, hint="add it")
        case "literal_error":
            expected = problem.get("ctx", {}).get("expected", "")
            return ConfigError(
                f"{problem['input']!r} is not possible here", where=where, key=key, hint=f"use {expected}"
            )
        case _:
            said = problem["msg"].partition(" or instance of")[0].replace("Input should", "should").strip()
            said = said[0].lower() + said[1:]
            hint = _cure(_VALUE_CURES, problem["type"]) or "docs/reference/configuration.md says what goes here"
            return ConfigError(f"{said}, not {_short(problem['input'])}", where=where, key=key, hint=hint)


def first_location(error: ValidationError) -> list[str | int]:
    """The path of the first problem, without pydantic's names for union branches."""
    return [part for part in error.errors(include_url=False)[0]["loc"] if not _is_branch(part)]


def _cure(cures: Mapping[str, str], problem: str) -> str | None:
    return next((cure for beginning, cure in cures.items() if problem.startswith(beginning)), None)


def _is_branch(part: str | int) -> bool:
    return isinstance(part, str) and (
        part in {"str", "MountOption", "SandboxMountOption", "UpstreamOption"} or part.startswith(("list[", "dict["))
    )


def _short(value: object) -> str:
    told = repr(value)
    return told if len(told) <= 60 else told[:57] + "…"


def _fields_at(model: type[BaseModel], path: Path) -> list[str]:
    current: type[BaseModel] | None = model
    for part in path:
        if current is None or not isinstance(part, str) or part not in current.model_fields:
            continue
        current = _model_in(current.model_fields[part].annotation)
    return list(current.model_fields) if current else []


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        if found := _model_in(argument):
            return found
    return None
