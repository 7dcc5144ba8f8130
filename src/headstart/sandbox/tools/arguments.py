"""What the tools take: the schemas that models are shown, and the check of what models write."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from headstart.errors import HeadstartError

__all__ = [
    "Arguments",
    "Bash",
    "CallRefused",
    "Checkpoint",
    "Commit",
    "Discard",
    "Drop",
    "EditFile",
    "Fork",
    "ListFiles",
    "Python",
    "ReadFile",
    "Rollback",
    "WriteFile",
    "checked",
    "schema_of",
]

MOST_DEPTH = 8
_LONGEST_S = 3_600
_USUAL_S = 120

_A = TypeVar("_A", bound="Arguments")


class CallRefused(HeadstartError):
    """A call of a tool that cannot be done as it was asked for; nothing was done."""


class Arguments(BaseModel):
    """The arguments of one tool; its kind's docstring is what models are told of the tool.

    Attributes:
        without_kernels: What they are told in its place where no Python kernel can be kept; "": the same.
    """

    without_kernels: ClassVar[str] = ""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must have no NUL characters")
    return text


_Branch = Annotated[
    str | None, Field(description="Act in this branch (an id from fork), not in the sandbox that it was forked from.")
]
_Path = Annotated[str, Field(min_length=1), AfterValidator(_without_nul)]
_File = Annotated[_Path, Field(description="A full path, or one that begins at the home.")]
_Timeout = Annotated[
    float, Field(gt=0, le=_LONGEST_S, description="Seconds until it is interrupted; its session goes on.")
]
_FilesOnly = Annotated[
    bool,
    Field(
        description="Leave out what runs. Needed if something runs that cannot be kept: a process, or a Python kernel"
        " that has threads or open files."
    ),
]


class Bash(Arguments):
    """Run a command in bash. Folder, variables, functions and background jobs stay from call to call."""

    command: Annotated[str, Field(description="One line or many.")]
    timeout_s: _Timeout = _USUAL_S
    branch: _Branch = None


class Python(Arguments):
    """Run Python code. Variables, imports and threads stay from call to call, as in a notebook.

    What it prints is returned, and the value of the last expression.
    """

    code: Annotated[str, Field(description="Statements; `await` is possible.")]
    timeout_s: _Timeout = _USUAL_S
    branch: _Branch = None


class ReadFile(Arguments):
    """Read a text file, or some of its lines."""

    path: _File
    start_line: Annotated[int, Field(ge=1, description="The first line to read.")] = 1
    end_line: Annotated[int | None, Field(ge=1, description="The last line to read; the file's last, unless said.")] = (
        None
    )
    numbered: Annotated[bool, Field(description="Put its number before each line.")] = False
    branch: _Branch = None


class WriteFile(Arguments):
    """Write a text file, whole; one that is there is replaced. Missing folders are made."""

    path: _File
    content: Annotated[str, Field(description="All that the file is to hold.")]
    branch: _Branch = None


class EditFile(Arguments):
    """Replace a piece of a text file. The piece must be in it exactly once, unless `replace_all`."""

    path: _File
    old: Annotated[
        str, Field(min_length=1, description="The piece to replace, character by character, with its line breaks.")
    ]
    new: Annotated[str, Field(description="What takes its place.")]
    replace_all: Annotated[bool, Field(description="Replace it wherever it is.")] = False
    branch: _Branch = None


class ListFiles(Arguments):
    """List a folder. Names of folders end in /, those of links in @; files are told with their size in bytes."""

    path: Annotated[_Path, Field(description="A folder; the home, unless said.")] = "."
    depth: Annotated[int, Field(ge=1, le=MOST_DEPTH, description="How many levels of folders to list.")] = 1
    branch: _Branch = None


class Checkpoint(Arguments):
    """Keep the sandbox's state, to go back to: its files, bash session and Python kernel. Takes milliseconds."""

    without_kernels = (
        "Keep the sandbox's state, to go back to: its files and bash session. Takes milliseconds. "
        "A Python kernel cannot be kept here: once python was used, files_only is needed."
    )

    files_only: _FilesOnly = False


class Rollback(Arguments):
    """Go back to a checkpoint: files, bash session and Python kernel are what they were then. All else that runs is ended.

    What the checkpoint does not hold begins anew. It stays, and so do other checkpoints and branches.
    """

    without_kernels = (
        "Go back to a checkpoint: files and bash session are what they were then. All else that runs is ended; Python "
        "begins anew. The checkpoint stays, and so do other checkpoints and branches."
    )

    to: Annotated[str | None, Field(description="A checkpoint's id; the newest one, unless said.")] = None


class Drop(Arguments):
    """Let go of a checkpoint that is not needed, and of the space that only it takes. The sandbox stays as it is.

    Without that, the oldest goes when there are too many, which `checkpoint` says then.
    """

    checkpoint: Annotated[str, Field(description="The checkpoint's id.")]


class Fork(Arguments):
    """Make a branch: another sandbox that begins with this one's state. Neither sees what the other does.

    Give its id as `branch` to the other tools to try something there; then commit or discard it.
    """

    without_kernels = (
        "Make a branch: another sandbox that begins with this one's files and bash session. Neither sees what the other "
        "does. Give its id as `branch` to the other tools to try something there; then commit or discard it. "
        "A Python kernel cannot be forked here: once python was used, files_only is needed."
    )

    files_only: _FilesOnly = False


class Commit(Arguments):
    """Let the sandbox be what a branch has become: files, and what runs. The branch is gone then.

    Refused if anything was run in the sandbox since it was forked.
    """

    branch: Annotated[str, Field(description="The branch's id.")]


class Discard(Arguments):
    """Throw a branch away, with all that runs in it. The sandbox stays as it is."""

    branch: Annotated[str, Field(description="The branch's id.")]


def checked(kind: type[_A], tool: str, given: object) -> _A:
    """Return what a tool is to be done with.

    Raises:
        CallRefused: It is no arguments of this tool; the message says what is wrong.
    """
    try:
        return kind.model_validate({} if given is None else given)
    except ValidationError as error:
        problem = min(error.errors(include_url=False), key=lambda found: found["type"] != "extra_forbidden")
        where = ".".join(str(part) for part in problem["loc"]) or "its arguments"
        known = ", ".join(kind.model_fields)
        if problem["type"] == "extra_forbidden":
            raise CallRefused(f"{tool} has no argument {where!r}", hint=f"it takes {known}") from None
        if problem["type"] == "missing":
            raise CallRefused(f"{tool} needs the argument {where!r}", hint=f"it takes {known}") from None
        said = problem["msg"].removeprefix("Value error, ")
        raise CallRefused(f"{tool}: {where}: {said[0].lower()}{said[1:]}", hint=f"it takes {known}") from None


def schema_of(kind: type[Arguments]) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments, as short as it can be said."""
    schema = kind.model_json_schema(schema_generator=_Short)
    return {key: value for key, value in schema.items() if key not in {"title", "description"}}


class _Short(GenerateJsonSchema):
    """Without titles, which repeat the names, and without null, which is what leaving out means."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002  the same for all
        return False

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if schema.get("default") is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)
