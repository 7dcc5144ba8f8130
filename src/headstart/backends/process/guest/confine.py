"""The process backend's counterpart of confinement: an own home, /tmp and limits, no isolation."""

from __future__ import annotations

from typing import Any

__all__ = ["enter"]


def enter(plan: dict[str, Any]) -> None:
    """Give the calling process, a fresh fork of a zygote, an init and a private home.

    The same promise as `headstart.backends.local.guest.confine.enter` without the
    isolation: it returns in a different process, which is the child of a small subreaper
    that reaps, relays signals, runs more commands and reports over `control_fd` how the
    process ended (execution id 0). The subreaper dies with the runtime and takes
    everything below it along; it is no child of the zygote.

    stdin, stdout, stderr, argv, the environment (HOME and TMPDIR are set by the preloader
    as given in the fork request) and the working directory are left alone.

    Args:
        plan: Plain JSON data, except that the preloader replaces `control_fd` by the
            descriptor number it received. Keys:

            `control_fd` (int): socket to the runtime; handed to the subreaper.
            `directories` (list of str): private directories to make (0700) and, at the
            end, to remove.
            `rlimits` (dict of name to int): `resource.RLIMIT_<name>` soft and hard limits.

    Raises:
        OSError: A step failed; the caller must write it to stderr and `os._exit(70)`.
    """
    raise NotImplementedError
