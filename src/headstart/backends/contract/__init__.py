"""What a kind of isolation must offer: the seam between the runtime and its backends.

A backend *prepares* a template once (unpacks, mounts, preloads) and then *starts*
sandboxes from it. A failing command is data (`Completed`, `ExitStatus`); a failing
sandbox raises `BackendError`. The conformance suite is `headstart.testing.contract`.
"""

from headstart.backends.contract.backend import Backend, Leftovers
from headstart.backends.contract.commands import (
    REVIVED_FROM,
    ByteStreams,
    Completed,
    ExitStatus,
    ForkableProcess,
    Process,
    ProcessImage,
    TerminalProcess,
    TerminalSize,
)
from headstart.backends.contract.files import Capture, Checkpoint, FileInfo, FileKind, Files
from headstart.backends.contract.sandbox import Prepared, RunningSandbox, Usage
from headstart.backends.contract.stores import FileStore, FileStores
from headstart.backends.contract.template import (
    Capabilities,
    Command,
    Identity,
    Limits,
    Mount,
    MountMode,
    Network,
    Preload,
    Processes,
    Template,
)

__all__ = [
    "REVIVED_FROM",
    "Backend",
    "ByteStreams",
    "Capabilities",
    "Capture",
    "Checkpoint",
    "Command",
    "Completed",
    "ExitStatus",
    "FileInfo",
    "FileKind",
    "FileStore",
    "FileStores",
    "Files",
    "ForkableProcess",
    "Identity",
    "Leftovers",
    "Limits",
    "Mount",
    "MountMode",
    "Network",
    "Preload",
    "Prepared",
    "Process",
    "ProcessImage",
    "Processes",
    "RunningSandbox",
    "Template",
    "TerminalProcess",
    "TerminalSize",
    "Usage",
]
