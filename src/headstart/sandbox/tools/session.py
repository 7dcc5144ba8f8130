"""The sandbox of one session: made at its first call, ended with it; a restart of the service it outlives."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from headstart.errors import ConfigError, SandboxLost, SandboxUnknown, SessionUnknown, TransactionRefused
from headstart.ids import ResourceId
from headstart.sandbox.hosted import OfSession, SandboxHost
from headstart.sandbox.options import SandboxOptions
from headstart.sandbox.sandbox import Sandbox

__all__ = ["SANDBOX_SERVER", "SessionSandbox"]

SANDBOX_SERVER = ResourceId("sandbox")
"""What the built-in server is called."""

_MOST_BRANCHES = 16
_LONGEST_NAME = 63
_SETTLING_S = 0.25
"""How long it takes at most until a sandbox that has failed is known to be gone."""
_OVER = "the session that it was made for has ended"


class SessionSandbox:
    """A session's sandbox and its branches.

    Args:
        host: Where sandboxes live.
        options: What it is made with.
        session: Whose it is, and for how long that may stay away after a restart of the service.

    Attributes:
        editing: Held while a file is changed, so that of two changes none is lost.
        has_state: Something was done that the session would miss.
    """

    def __init__(self, host: SandboxHost, options: SandboxOptions, session: OfSession) -> None:
        self.host = host
        self.editing = anyio.Lock()
        self.has_state = False
        self._options = options
        self._session = session
        self._making = anyio.Lock()
        self._sandbox: str | None = None
        self._branches: dict[str, None] = {}
        self._has_ended = False

    def take_up(self) -> bool:
        """Go on with the sandbox that the session had before the service was started; return whether there is one."""
        self._sandbox = self.host.take_up(self._session.id)
        self.has_state = self._sandbox is not None
        if self._sandbox is not None:
            self._branches = dict.fromkeys(self.host.branches_of(self._sandbox))
        return self.has_state

    async def sandbox(self) -> str:
        """Return the sandbox's id; it is made if there is none.

        Raises:
            SandboxLost: It is gone, and its state with it; told once.
            SandboxUnknown: It has lost its processes, and is being brought back.
            BackendError: It could not be started.
        """
        async with self._making:
            self.note_gone()
            if self._sandbox is None:
                self._sandbox = await self._make()
            return self._sandbox

    def note_gone(self) -> None:
        """See whether the sandbox is there no more.

        Raises:
            SandboxLost: It is not, and its state with it.
            SandboxUnknown: It is being brought back.
        """
        if self._sandbox is None:
            return
        try:
            with self.host.using(self._sandbox):
                pass
        except SandboxUnknown as gone:
            if self.host.is_coming_back(self._sandbox):
                raise _coming_back(self._sandbox) from gone
            self._lose(str(gone))

    def _lose(self, why: str) -> None:
        had_state, self.has_state = self.has_state, False
        self._sandbox = None
        self._branches.clear()
        if had_state:
            hint = "the next call begins a new one, which is empty"
            raise SandboxLost(f"{why}; its state is gone", server=SANDBOX_SERVER, hint=hint)

    async def _make(self) -> str:
        try:
            made = await self.host.create(self._options, name=_name_of(self._session.id), session=self._session)
        except ConfigError as error:
            if error.where != "name":
                raise
            made = await self.host.create(self._options, session=self._session)  # another one is called so
        if self._has_ended:
            self.host.end(made.id, _OVER)
            raise SessionUnknown(f"session {self._session.id} has ended")
        return made.id

    @asynccontextmanager
    async def using(self, branch: str | None) -> AsyncGenerator[Sandbox]:
        """Yield the sandbox, or one of its branches.

        Raises:
            SandboxUnknown: There is no such branch.
            Exception: What `sandbox` raises.
        """
        if branch is not None:
            self.check_branch(branch)
        with self.host.using(branch or await self.sandbox()) as box:
            yield box

    async def check_lost(self) -> None:
        """See whether the sandbox has gone, after something in it has failed.

        Raises:
            SandboxLost: It has, and its state with it.
            SandboxUnknown: It has, and is being brought back.
        """
        if self._sandbox is None:
            return
        self.note_gone()
        with anyio.move_on_after(_SETTLING_S):
            with self.host.using(self._sandbox) as box:
                await box.wait_lost()
            if self.host.is_durable:
                raise _coming_back(self._sandbox)
            self._lose(f"{self._sandbox} has ended by itself")

    # ------------------------------------------------------------ branches

    async def fork(self, *, files_only: bool) -> str:
        """Make a branch and return its id.

        Raises:
            TransactionRefused: There are too many; or as `Sandbox.fork`.
        """
        self._forget_ended()
        if len(self._branches) >= _MOST_BRANCHES:
            raise TransactionRefused(f"there are {_MOST_BRANCHES} branches already", hint="commit or discard one")
        branch = await self.host.fork(await self.sandbox(), files_only=files_only)
        self._branches[branch.id] = None
        return branch.id

    def check_branch(self, branch: str) -> None:
        """Require that this is a branch of this session's.

        Raises:
            SandboxUnknown: It is none; the message says whether it has ended.
        """
        if branch not in self._branches:
            known = ", ".join(self._branches) or "none"
            raise SandboxUnknown(f"there is no branch {branch!r} (there are: {known})", hint="fork makes one")

    def forget_branch(self, branch: str) -> None:
        """It is gone."""
        self._branches.pop(branch, None)

    def _forget_ended(self) -> None:
        for branch in tuple(self._branches):
            try:
                with self.host.using(branch):
                    pass
            except SandboxUnknown:
                self.forget_branch(branch)

    def end(self) -> None:
        """Have it end, with its branches; also one that is being made."""
        self._has_ended = True
        self.host.end_session(self._session.id, _OVER)


def _coming_back(sandbox: str) -> SandboxUnknown:
    return SandboxUnknown(
        f"{sandbox} has lost all that ran in it, and is being brought back with its files",
        hint="call again in a moment",
    )


def _name_of(session: str) -> str:
    return f"mcp-{re.sub(r'[^A-Za-z0-9_.-]', '-', session)}"[:_LONGEST_NAME]
