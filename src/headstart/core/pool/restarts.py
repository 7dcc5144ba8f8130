"""After a failure: how long to wait, and who may try first.

Per principal and server. A failure doubles the wait (with a jitter that is a hash of who
failed and how often, so that a fleet does not retry in step and a replay does not
differ). When the wait is over one start goes ahead, the *probe*; the others stand behind
it until it has become ready. A sandbox that had been warm and then died is restarted once
at once, so that one poisoned call does not shut out everybody else. Becoming ready lets the others go but does not forgive: a
server that dies at its first call would otherwise restart for ever at the shortest wait.
What forgives is time without a failure.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from headstart.ids import PrincipalId, ResourceId, SandboxId

__all__ = ["Restarts"]


@dataclass(slots=True, kw_only=True)
class _Record:
    failures: int
    failed_s: float
    until_s: float
    message: str
    on_probation: bool = True
    probe: SandboxId | None = None


class Restarts:
    """The failures that are not forgiven yet; bounded by the number of servers.

    Args:
        first_s: The wait after a first failure.
        cap_s: The longest wait.
        forgiven_after_s: Seconds without a failure after which it counts no more.
    """

    def __init__(self, *, first_s: float, cap_s: float, forgiven_after_s: float) -> None:
        self._first_s = first_s
        self._cap_s = cap_s
        self._forgiven_after_s = max(forgiven_after_s, cap_s)
        self._records: dict[tuple[PrincipalId, ResourceId], _Record] = {}

    def failed(
        self, principal: PrincipalId, resource: ResourceId, message: str, now_s: float, *, had_lived: bool = False
    ) -> float:
        """Count a failure and return the seconds to wait (0 after the first death of one that had been warm)."""
        key = (principal, resource)
        record = self._records.get(key)
        forgiven = record is None or now_s - record.failed_s >= self._forgiven_after_s
        failures = 1 if record is None or forgiven else record.failures + 1
        pardoned = had_lived and failures == 1
        wait_s = (
            0.0 if pardoned else min(self._cap_s, self._first_s * 2.0 ** min(failures - 1, 32)) * _jitter(key, failures)
        )
        self._records[key] = _Record(
            failures=failures,
            failed_s=now_s,
            until_s=now_s + wait_s,
            message=message,
            on_probation=not pardoned,
        )
        return wait_s

    def wait_s(self, principal: PrincipalId, resource: ResourceId, now_s: float) -> float:
        """Return the seconds until a start may be tried; 0 if now."""
        record = self._records.get((principal, resource))
        return 0.0 if record is None else max(0.0, record.until_s - now_s)

    def message(self, principal: PrincipalId, resource: ResourceId) -> str:
        """Return the last failure's message, "" if none is remembered."""
        record = self._records.get((principal, resource))
        return "" if record is None else record.message

    def backing_off(self, now_s: float) -> tuple[tuple[PrincipalId, ResourceId, float], ...]:
        """Return who is waiting, and how many seconds more."""
        return tuple(
            (principal, resource, record.until_s - now_s)
            for (principal, resource), record in self._records.items()
            if record.until_s > now_s
        )

    def may_start(self, principal: PrincipalId, resource: ResourceId, now_s: float) -> bool:
        """Whether a start may go ahead: healthy, or the wait is over and no probe is out."""
        record = self._records.get((principal, resource))
        if record is None or (not record.on_probation and now_s >= record.until_s):
            return True
        return now_s >= record.until_s and record.probe is None

    def started(self, principal: PrincipalId, resource: ResourceId, sandbox: SandboxId) -> None:
        """Note a start; during probation it is the probe."""
        record = self._records.get((principal, resource))
        if record is not None and record.on_probation and record.probe is None:
            record.probe = sandbox

    def became_ready(self, principal: PrincipalId, resource: ResourceId, now_s: float) -> None:
        """A start succeeded: the others may go; forget failures that are old enough."""
        record = self._records.get((principal, resource))
        if record is None:
            return
        record.on_probation = False
        record.probe = None
        if now_s - record.failed_s >= self._forgiven_after_s:
            del self._records[principal, resource]

    def gave_up(self, principal: PrincipalId, resource: ResourceId, sandbox: SandboxId) -> None:
        """A start was stopped on purpose; if it was the probe, the next one is."""
        record = self._records.get((principal, resource))
        if record is not None and record.probe == sandbox:
            record.probe = None


def _jitter(key: tuple[PrincipalId, ResourceId], failures: int) -> float:
    """A factor in [0.75, 1.25), always the same for the same key and count."""
    text = "\x1f".join((*key, str(failures)))
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return 0.75 + 0.5 * int.from_bytes(digest, "big") / 2**32
