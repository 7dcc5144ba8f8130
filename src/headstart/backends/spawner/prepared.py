"""The `Prepared` of a cold start, as far as the backends share it."""

from __future__ import annotations

from headstart.backends.contract import Template, Usage
from headstart.core.events import PrepareForm

__all__ = ["ColdPrepared"]


class ColdPrepared:
    """A template that starts by exec; nothing runs or is held for it."""

    def __init__(self, template: Template) -> None:
        self._template = template

    @property
    def template(self) -> Template:
        return self._template

    @property
    def form(self) -> PrepareForm:
        return PrepareForm.COLD

    @property
    def preload_cpu_s(self) -> float:
        return 0.0

    async def usage(self) -> Usage:
        return Usage(memory_bytes=0, cpu_s=0.0, processes=0)

    async def aclose(self) -> None:
        """Nothing is held."""
