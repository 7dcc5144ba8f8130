"""One kind of isolation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headstart.backends.contract.sandbox import Prepared, RunningSandbox
from headstart.backends.contract.stores import FileStores
from headstart.backends.contract.template import Capabilities, Identity, Template

__all__ = ["Backend", "Leftovers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """What is still there of a backend after `aclose`; all zero unless something is wrong."""

    processes: int = 0
    mounts: int = 0
    cgroups: int = 0
    directories: int = 0


class Backend(Protocol):
    """One kind of isolation; entered with `async with`, and everything in it ends with it."""

    @property
    def name(self) -> str: ...
    @property
    def capabilities(self) -> Capabilities: ...
    @property
    def stores(self) -> FileStores: ...

    async def prepare(self, template: Template) -> Prepared:
        """Make a template ready.

        Raises:
            BackendError: It cannot be (a mount's source is missing, the preload crashed).
        """
        ...

    async def start(self, prepared: Prepared, identity: Identity, *, background: bool = False) -> RunningSandbox:
        """Start a sandbox; `background` gives it less CPU until `raise_priority`."""
        ...

    async def leftovers(self) -> Leftovers:
        """Count what is there of this backend's own."""
        ...
