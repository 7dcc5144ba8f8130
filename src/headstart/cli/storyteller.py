"""What the demo shows people while it runs: waterfalls, a wrong guess, a kill -9, tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from headstart.bench.demo.cells import CellResult, WrongGuess
from headstart.bench.demo.finale import Finale, Killed
from headstart.bench.demo.models import MAIN_TPOT_S
from headstart.bench.demo.report import table
from headstart.cli.terminal import console
from headstart.cli.waterfall import waterfall

__all__ = ["Storyteller"]


class Storyteller:
    """Prints the demo's story; with `show=False` only its tables."""

    def __init__(self, *, show: bool) -> None:
        self.shows = show
        self._out = console()

    def cell(self, result: CellResult) -> None:
        """At the main pace, show one session's waterfall, and the dearest wrong guess if there is one."""
        if not self.shows or result.tpot_s != MAIN_TPOT_S:
            return
        self._title(f"{result.cell.name}: one session")
        for line in waterfall(_most_telling(result)):
            self._out.print(line)
        dearest = max(result.wrong_guesses, key=lambda guess: guess.cpu_s, default=None)
        if dearest is not None:
            self._title(f"{result.cell.name}: a wrong guess, and what it cost")
            self._wrong_guess(dearest)

    def finale(self, finale: Finale) -> None:
        """Show what a wrong guess cost, and that nothing is left of a killed service."""
        self._title("a wrong guess, and what it cost")
        for guess in finale.wrong_guesses:
            self._wrong_guess(guess)
        if not finale.wrong_guesses:
            self._out.print("nothing was prepared in vain, this time")
        self._killed(finale.killed)

    def _wrong_guess(self, guess: WrongGuess) -> None:
        told = f"{guess.predictor} prepared {guess.resource} for {guess.session} ({guess.because}); nobody came for it."
        self._out.print(told)
        cost = f"{guess.cpu_s:.2f} CPU-seconds and {guess.byte_s / 1e9:.2f} GB-seconds"
        self._out.print(f"It cost {cost}, and no agent waited for it.")

    def _killed(self, killed: Killed) -> None:
        self._title("kill -9 of the service, in the middle of two sessions")
        for pid, command in sorted(killed.before.items()):
            self._out.print(Text(f"  {pid:>8}  {command[:100]}", style="dim"))
        left = len(killed.left)
        self._out.print(f"{len(killed.before)} processes before; {left} left after {killed.gone_after_s:.2f} s")

    def tables(self, summary: Mapping[str, Any]) -> None:
        """Print the table of every pace, and the ratios at the main one."""
        for pace in summary["paces"]:
            self._out.print()
            self._out.print(table(pace["modes"], tpot_ms=pace["tpot_ms"]))
        self._out.print()
        for name, ratio in summary["ratios"].items():
            self._out.print(f"{name.replace('_', ' ')}: {ratio:.2f}")
        whole = summary["whole_run"]
        if len(summary["paces"]) > 1:
            told = f"over all {whole['sessions_per_mode']:g} sessions, zygotes made once"
            self._out.print(f"cpu vs on demand, {told}: {whole['cpu_vs_on_demand']:.2f}")

    def _title(self, text: str) -> None:
        self._out.print()
        self._out.print(Text(f"── {text} ──", style="bold"))


def _most_telling(result: CellResult) -> Mapping[str, Any]:
    """The session with the most calls."""
    return max(result.traces, key=lambda trace: trace["summary"]["calls"])
