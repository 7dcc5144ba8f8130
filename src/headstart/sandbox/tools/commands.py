"""The tools that run something: bash and Python. What fails in there is a result, not an error."""

from __future__ import annotations

from headstart.sandbox.kernels import CellResult, ShellResult
from headstart.sandbox.tools.arguments import Bash, Python
from headstart.sandbox.tools.session import SessionSandbox
from headstart.sandbox.tools.shown import Shown

__all__ = ["bash", "python"]

_RESTARTED = "[this is a new session: what those before had set is gone]"
_OUT_OF_MEMORY = "[it was killed because the sandbox had used up its memory]"
_DROPPED = "[some of what it said was dropped, because it came too fast]"


async def bash(session: SessionSandbox, asked: Bash) -> str:
    """Run a command in the bash session."""
    shown = Shown()
    async with session.using(asked.branch) as box:
        done = await box.run_in_shell(asked.command, timeout_s=asked.timeout_s, on_output=shown.take)
    for note in _notes(done, asked.timeout_s, "bash session"):
        shown.add_line(note)
    if done.out_of_memory and done.lost is None:
        shown.add_line(_OUT_OF_MEMORY)
    if done.lost is None:
        shown.add_line(f"[exit code {done.exit_code}, in {done.cwd}]")
    else:
        shown.add_line(f"[exit code {done.exit_code}; {done.lost}; the next command begins a new one]")
    return shown.text()


async def python(session: SessionSandbox, asked: Python) -> str:
    """Run a cell in the Python kernel."""
    shown = Shown()
    async with session.using(asked.branch) as box:
        cell = await box.run_code(asked.code, timeout_s=asked.timeout_s, on_output=shown.take)
    if cell.text is not None:
        shown.add_line(cell.text)
    if cell.error is not None:
        shown.add_line(cell.error.traceback.rstrip() or f"[{cell.error.message}]")
    for note in _notes(cell, asked.timeout_s, "Python session"):
        shown.add_line(note)
    return shown.text() or "[it said nothing]"


def _notes(done: ShellResult | CellResult, timeout_s: float, session: str) -> list[str]:
    notes: list[str] = []
    if done.restarted:
        notes.append(_RESTARTED)
    if done.truncated:
        notes.append(_DROPPED)
    if done.timed_out:
        what = "killed" if done.lost else f"interrupted; the {session} goes on"
        notes.append(f"[it took longer than {timeout_s:g} s and was {what}]")
    return notes
