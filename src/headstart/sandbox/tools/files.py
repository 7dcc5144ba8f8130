"""The tools that read and change files."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Iterable
from itertools import islice

from headstart.backends.contract import FileInfo, FileKind
from headstart.sandbox.sandbox import Sandbox
from headstart.sandbox.tools.arguments import CallRefused, EditFile, ListFiles, ReadFile, WriteFile
from headstart.sandbox.tools.session import SessionSandbox
from headstart.sandbox.tools.text import Places, line_count, places_of, start_of_line

__all__ = ["edit_file", "list_files", "read_file", "write_file"]

_LARGEST_BYTES = 64_000_000
_MOST_CHARACTERS = 50_000
_MOST_ENTRIES = 1_000
_MARKS = {FileKind.FOLDER: "/", FileKind.LINK: "@"}


async def read_file(session: SessionSandbox, asked: ReadFile) -> str:
    """Show a text file's lines, as many as fit."""
    async with session.using(asked.branch) as box:
        text = await _text_of(box, asked.path)
    return _shown(text, asked) if text else "[the file is empty]"


async def write_file(session: SessionSandbox, asked: WriteFile) -> str:
    """Write a file, whole or not at all."""
    content = asked.content.encode()
    async with session.using(asked.branch) as box, session.editing:
        await box.files.write(asked.path, content)
    return f"Wrote {len(content):,} bytes to {asked.path}."


async def edit_file(session: SessionSandbox, asked: EditFile) -> str:
    """Replace a piece of a file that is in it once, or each that is."""
    if asked.old == asked.new:
        raise CallRefused("old and new are the same: nothing would change", hint="give what is to be there in new")
    async with session.using(asked.branch) as box, session.editing:
        text = await _text_of(box, asked.path)
        places = places_of(text, asked.old)
        if not places.count:
            raise _not_in(text, asked)
        if places.count > 1 and not asked.replace_all:
            hint = "give more of what stands around it, or replace_all"
            raise CallRefused(f"old is in {asked.path} {places.count} times: {_told(places)}", hint=hint)
        if len(text) + places.count * (len(asked.new) - len(asked.old)) > _LARGEST_BYTES:
            hint = "use bash: sed -i"
            raise CallRefused(f"{asked.path} would be larger than {_LARGEST_BYTES // 1_000_000} MB", hint=hint)
        await box.files.write(asked.path, text.replace(asked.old, asked.new))
    count = "" if places.count == 1 else f"{places.count} times "
    return f"Replaced it {count}in {asked.path}, {_told(places)}."


async def list_files(session: SessionSandbox, asked: ListFiles) -> str:
    """List a folder and those in it, level by level until there are too many."""
    listing = _Listing(asked.path)
    async with session.using(asked.branch) as box:
        level = await listing.look_into(box, [""], is_first=True)
        for _ in range(asked.depth - 1):
            level = await listing.look_into(box, level)
    return listing.text()


class _Listing:
    """What was found in a folder, by its path from there."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._found: dict[str, str] = {}
        self._left_out = False

    async def look_into(self, box: Sandbox, folders: Iterable[str], *, is_first: bool = False) -> list[str]:
        """List these, and return the folders that are in them."""
        inner: list[str] = []
        for folder in folders:
            if self._left_out:
                break
            try:
                entries = await box.files.list(posixpath.join(self._root, folder) if folder else self._root)
            except OSError as error:
                if is_first:
                    raise
                self._found[folder] = f"{folder}  [{error.strerror}]"
                continue
            room = _MOST_ENTRIES - len(self._found)
            self._left_out = len(entries) > room
            for entry in islice(entries, room):
                path = f"{folder}{entry.name}{_MARKS.get(entry.kind, '')}"
                self._found[path] = _line(path, entry)
                if entry.kind is FileKind.FOLDER:
                    inner.append(path)
        return inner

    def text(self) -> str:
        lines = [line for _, line in sorted(self._found.items(), key=lambda found: found[0].split("/"))]
        if self._left_out:
            lines.append(f"[there is more than these {_MOST_ENTRIES:,}; list fewer levels, or a folder below]")
        return "\n".join(lines) or "[the folder is empty]"


def _line(path: str, entry: FileInfo) -> str:
    return f"{path}  {entry.size_bytes:,}" if entry.kind is FileKind.FILE else path


async def _text_of(box: Sandbox, path: str) -> str:
    """Return a file's text.

    Raises:
        CallRefused: It is no text, or too large.
        OSError: It cannot be read.
    """
    try:
        content = await box.files.read(path, limit_bytes=_LARGEST_BYTES)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        hint = "use bash: head, tail, sed -n '1,200p'"
        raise CallRefused(f"{path} is larger than {_LARGEST_BYTES // 1_000_000} MB", hint=hint) from error
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        hint = "use bash (file, xxd, iconv) or python"
        raise CallRefused(f"{path} is no UTF-8 text: it is binary, {len(content):,} bytes", hint=hint)
    return text


def _shown(text: str, asked: ReadFile) -> str:
    total = line_count(text)
    last = total if asked.end_line is None else min(asked.end_line, total)
    if asked.start_line > last:
        what = f"lines {asked.start_line:,} to {asked.end_line:,}" if asked.end_line else f"line {asked.start_line:,}"
        raise CallRefused(f"{asked.path} has no {what}: it has {total:,} lines", hint="ask for others")
    shown, room, number = list[str](), _MOST_CHARACTERS, asked.start_line
    at = start_of_line(text, number)
    while number <= last:
        end = text.find("\n", at) + 1 or len(text)
        if shown and end - at > room:
            break
        shown.append(f"{number:>6}\t{text[at:end]}" if asked.numbered else text[at:end])
        room -= end - at
        number, at = number + 1, end
    told = "".join(shown)
    if room < 0:
        told = f"{told[:_MOST_CHARACTERS]}\n[line {number - 1:,} goes on for {-room:,} characters; use bash: cut -c]"
    if number <= last:
        told = f"{told.rstrip(chr(10))}\n[lines {asked.start_line:,} to {number - 1:,} of {total:,}; start_line {number} shows more]"
    return told


def _told(places: Places) -> str:
    numbers = ", ".join(f"{line:,}" for line in places.lines)
    more = ", …" if places.count > len(places.lines) else ""
    return f"{'line' if places.count == 1 else 'lines'} {numbers}{more}"


def _not_in(text: str, asked: EditFile) -> CallRefused:
    """Say that a piece is not there, and what is there in its place as far as that can be told."""
    hint = "read_file shows what is there; old must be the same to the last character"
    first = asked.old.strip().partition("\n")[0].strip()
    if "\r\n" in text and "\r\n" not in asked.old and "\n" in asked.old:
        hint = "the file's lines end in \\r\\n: write old and new so"
    elif first and (near := places_of(text, first)).count:
        hint = f"its first line is there, in {_told(near)}: compare spaces and what follows"
    return CallRefused(f"old is not in {asked.path}", hint=hint)
