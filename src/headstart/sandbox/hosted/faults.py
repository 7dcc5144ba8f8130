"""Errors on their way to a client: it raises what the service would have."""

from __future__ import annotations

import errno
from typing import Final

from headstart import errors
from headstart.errors import HeadstartError
from headstart.sandbox.hosted.messages import Failed

__all__ = ["failure_of", "raised_by"]

_ATTRIBUTES: Final[dict[type[HeadstartError], tuple[str, ...]]] = {
    errors.ConfigError: ("where", "key"),
    errors.Conflict: ("origin", "canonical"),
}
"""What a class has beside message and hint."""

_KINDS: Final[dict[str, type[HeadstartError]]] = {
    kind.__name__: kind
    for kind in (
        HeadstartError,
        errors.BackendError,
        errors.BackendUnavailable,
        errors.BudgetExceeded,
        errors.CommandTimedOut,
        errors.ConfigError,
        errors.Conflict,
        errors.NotCapturable,
        errors.SandboxPaused,
        errors.SandboxUnknown,
        errors.TransactionRefused,
    )
}


def failure_of(error: HeadstartError | OSError) -> Failed:
    """Return how an error is told."""
    if not isinstance(error, HeadstartError):
        details = {"errno": str(error.errno or errno.EIO), "path": str(error.filename or "")}
        return Failed(kind="OSError", message=error.strerror or str(error), details=details)
    kind = next(_KINDS[each.__name__] for each in type(error).__mro__ if each.__name__ in _KINDS)
    told = {name: getattr(error, name) for name in _ATTRIBUTES.get(kind, ())}
    return Failed(
        kind=kind.__name__,
        message=str(error),
        hint=error.hint,
        details={name: value for name, value in told.items() if value is not None},
        held=error.held if isinstance(error, errors.NotCapturable) else (),
    )


def raised_by(failed: Failed) -> HeadstartError | OSError:
    """Return the error that was told."""
    if failed.kind == "OSError":
        return OSError(int(failed.details["errno"]), failed.message, failed.details["path"] or None)
    kind = _KINDS.get(failed.kind, HeadstartError)
    error = kind.__new__(kind)
    HeadstartError.__init__(error, failed.message, hint=failed.hint)  # the message is whole; classes would add to it
    for name in _ATTRIBUTES.get(kind, ()):
        setattr(error, name, failed.details.get(name))
    if isinstance(error, errors.NotCapturable):
        error.held = failed.held
    return error
