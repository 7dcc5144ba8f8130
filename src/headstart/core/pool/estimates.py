"""What a start takes and what a sandbox holds: believed as configured, then as measured.

Exponentially weighted means per principal, server and prepared form. The first
measurement replaces the configured guess entirely: a guess is worth less than one fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headstart.core.events import PrepareForm, ResourceRegistered
from headstart.ids import PrincipalId, ResourceId

__all__ = ["Estimate", "Estimates"]

_WEIGHT: Final = 0.3
"""Of a new measurement, once there is more than one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One start, as expected.

    Attributes:
        start_s: From the start until ready.
        cpu_s: CPU-seconds until ready.
        memory_bytes: Held once ready.
        measured: How many measurements it rests on.
    """

    start_s: float
    cpu_s: float
    memory_bytes: int
    measured: int = 0


_Key = tuple[PrincipalId, ResourceId, PrepareForm]


class Estimates:
    """All estimates; bounded by the number of registered servers."""

    def __init__(self) -> None:
        self._by_key: dict[_Key, Estimate] = {}

    def registered(self, event: ResourceRegistered) -> None:
        """Take a configured guess, unless something was measured already."""
        key = (event.principal, event.resource, event.form)
        known = self._by_key.get(key)
        if known is None or not known.measured:
            self._by_key[key] = Estimate(
                start_s=event.start_s, cpu_s=event.start_cpu_s, memory_bytes=event.memory_bytes
            )

    def of(self, principal: PrincipalId, resource: ResourceId, form: PrepareForm) -> Estimate:
        """Return the estimate.

        Raises:
            KeyError: The server was never registered in this form.
        """
        return self._by_key[principal, resource, form]

    def started(self, principal: PrincipalId, resource: ResourceId, form: PrepareForm, *, start: Estimate) -> None:
        """Learn from one finished start."""
        key = (principal, resource, form)
        known = self._by_key.get(key)
        if known is None or not known.measured:
            self._by_key[key] = Estimate(
                start_s=start.start_s, cpu_s=start.cpu_s, memory_bytes=start.memory_bytes, measured=1
            )
            return
        self._by_key[key] = Estimate(
            start_s=_mean(known.start_s, start.start_s),
            cpu_s=_mean(known.cpu_s, start.cpu_s),
            memory_bytes=round(_mean(known.memory_bytes, start.memory_bytes)),
            measured=known.measured + 1,
        )

    def forget(self, principal: PrincipalId) -> None:
        """Drop what was measured for a principal (the guesses stay as they are now)."""
        for key, known in list(self._by_key.items()):
            if key[0] == principal:
                self._by_key[key] = Estimate(start_s=known.start_s, cpu_s=known.cpu_s, memory_bytes=known.memory_bytes)

    def export(self, principal: PrincipalId) -> dict[str, list[float]]:
        """Return what was measured as plain data: `resource/form` to start_s, cpu_s, bytes, count."""
        return {
            f"{resource}/{form.value}": [known.start_s, known.cpu_s, known.memory_bytes, known.measured]
            for (owner, resource, form), known in self._by_key.items()
            if owner == principal and known.measured
        }

    def load(self, principal: PrincipalId, data: Mapping[str, list[float]]) -> None:
        """Take back what `export` gave; whatever cannot be read is left out."""
        forms = {form.value: form for form in PrepareForm}
        for name, numbers in data.items():
            resource, _, form = name.rpartition("/")
            if form not in forms or len(numbers) != 4:  # a file from another version
                continue
            start_s, cpu_s, memory_bytes, measured = numbers
            self._by_key[principal, ResourceId(resource), forms[form]] = Estimate(
                start_s=start_s, cpu_s=cpu_s, memory_bytes=int(memory_bytes), measured=int(measured)
            )


def _mean(known: float, new: float) -> float:
    return known + _WEIGHT * (new - known)
