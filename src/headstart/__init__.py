"""Headstart: the runtime between LLM agents and their tools.

The folders are the architecture, listed from the top; each may import what is below it:
`cli`, `bench`, `sandbox`, `proxy`, `gateway`, `api`, `runtime`, `backends`, `core`, and at the
bottom `config`, `errors`, `ids`, `clock`, `version`. What is meant to be used from Python is here:
`Sandbox`, `Sandboxes`, `SandboxOptions`, `SandboxCheckpoint`, `Branch`, `CommandResult`, `OnOutput`, `TemplateOrder`, and for code that keeps its state
`Kernel`, `CellResult`, `CellError`, `Shell`, `ShellResult`; and `connect` to use those that live in the service, which are
`HostedSandboxes`, `HostedSandbox` and `HostedInfo`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.version import VERSION

if TYPE_CHECKING:
    from headstart.sandbox import (
        Branch,
        CellError,
        CellResult,
        CommandResult,
        HostedInfo,
        HostedSandbox,
        HostedSandboxes,
        Kernel,
        OnOutput,
        Sandbox,
        SandboxCheckpoint,
        Sandboxes,
        SandboxOptions,
        Shell,
        ShellResult,
        TemplateOrder,
        connect,
    )

__all__ = [
    "Branch",
    "CellError",
    "CellResult",
    "CommandResult",
    "HostedInfo",
    "HostedSandbox",
    "HostedSandboxes",
    "Kernel",
    "OnOutput",
    "Sandbox",
    "SandboxCheckpoint",
    "SandboxOptions",
    "Sandboxes",
    "Shell",
    "ShellResult",
    "TemplateOrder",
    "__version__",
    "connect",
]

__version__ = VERSION


def __getattr__(name: str) -> object:
    """Import what is asked for when it is: the command line must not wait for what it does not use."""
    if name in __all__:
        from headstart import sandbox

        return getattr(sandbox, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
