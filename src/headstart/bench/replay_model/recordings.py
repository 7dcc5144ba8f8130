"""What the replay model can say: recorded conversations, read from JSON lines or TOML.

A JSON line is one conversation::

    {"session": "rates", "user": "What is …?", "steps": [
        {"text": "Let me look.", "calls": [{"name": "sqlite__read_query", "arguments": {"query": "…"}}]},
        {"text": "It is 4 %."}]}

TOML says the same with `[[recordings]]` and `[[recordings.steps]]`. Arguments are literal:
nothing in a recording depends on what a tool answered.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from headstart.errors import ConfigError

__all__ = ["RecordedCall", "RecordedStep", "Recording", "load_recordings", "select_recording"]

MODEL_PREFIX = "replay/"
"""A request for the model `replay/<session>` names its recording outright."""


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RecordedCall(_Wire):
    """One tool call.

    Attributes:
        name: As the model wrote it, with the client's or gateway's prefix.
        arguments: An object, or the raw text where the model wrote something else.
        id: The wire id; None makes a fresh one each time the step is played.
    """

    name: Annotated[str, Field(min_length=1)]
    arguments: dict[str, JsonValue] | str = {}
    id: str | None = None

    @property
    def arguments_text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments, ensure_ascii=False)


class RecordedStep(_Wire):
    """One generation.

    Attributes:
        hidden_tokens: Tokens that the model thinks before anything shows; time passes, nothing is sent.
        reasoning: Text sent as `reasoning_content`.
        text: Visible text.
        calls: Tool calls, written one after another.
    """

    hidden_tokens: Annotated[int, Field(ge=0)] = 0
    reasoning: str = ""
    text: str = ""
    calls: tuple[RecordedCall, ...] = ()


class Recording(_Wire):
    """One conversation.

    Attributes:
        session: Its name; the model `replay/<session>` plays it.
        user: The first user message, by which any other model name finds it.
        gzip: Compress responses for clients that accept it.
    """

    session: Annotated[str, Field(min_length=1)]
    user: str
    steps: Annotated[tuple[RecordedStep, ...], Field(min_length=1)]
    gzip: bool = False

    @property
    def model(self) -> str:
        return MODEL_PREFIX + self.session


class _RecordingsFile(_Wire):
    recordings: tuple[Recording, ...]


def load_recordings(path: Path) -> tuple[Recording, ...]:
    """Read a `.toml` or JSON-lines file of recordings.

    Raises:
        ConfigError: The file cannot be read, or an entry is not a recording; names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot be read ({exc})", where=str(path), hint="give a file of recordings") from exc
    recordings = _from_toml(path, text) if path.suffix == ".toml" else _from_json_lines(path, text)
    _check_names(path, recordings)
    return recordings


def _from_toml(path: Path, text: str) -> tuple[Recording, ...]:
    try:
        return _RecordingsFile.model_validate(tomllib.loads(text)).recordings
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(str(exc), where=str(path)) from exc
    except ValidationError as exc:
        raise _not_a_recording(str(path), exc) from exc


def _from_json_lines(path: Path, text: str) -> tuple[Recording, ...]:
    return tuple(
        _from_json_line(f"{path}:{number}", line)
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    )


def _from_json_line(where: str, line: str) -> Recording:
    try:
        return Recording.model_validate_json(line)
    except ValidationError as exc:
        raise _not_a_recording(where, exc) from exc


def _not_a_recording(where: str, exc: ValidationError) -> ConfigError:
    first = exc.errors(include_url=False, include_input=False)[0]
    key = ".".join(str(part) for part in first["loc"]) or None
    hint = "a recording is {session, user, steps: [{text, calls: [{name, arguments}]}]}"
    return ConfigError(first["msg"], where=where, key=key, hint=hint)


def _check_names(path: Path, recordings: Iterable[Recording]) -> None:
    twice = [name for name, count in Counter(recording.session for recording in recordings).items() if count > 1]
    if twice:
        raise ConfigError(f"session {twice[0]!r} is recorded twice", where=str(path), hint="give each its own name")


def select_recording(recordings: Sequence[Recording], *, model: str, first_user_text: str) -> Recording | str:
    """Return the recording that a request means, or one sentence that says why there is none."""
    if model.startswith(MODEL_PREFIX):
        named = [recording for recording in recordings if recording.model == model]
        return named[0] if named else f"no recording is named {model.removeprefix(MODEL_PREFIX)!r}"
    alike = [recording for recording in recordings if recording.user == first_user_text]
    match alike:
        case [recording]:
            return recording
        case []:
            return "no recording begins with this user message"
        case _:
            return f"{len(alike)} recordings begin with this user message: ask for the model {alike[0].model!r}, say"
