"""Calls that wait for a stateless client's answer.

A 2026-07-28 client cannot be asked while its request is open. A server that speaks an
older protocol does ask (sampling, elicitation, roots), and waits. So its call is parked:
the client's request ends with `input_required` and the questions, the call goes on
waiting, and the client comes back with its answers and the call's `requestState`.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import anyio
from anyio.abc import TaskGroup
from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

from headstart.gateway.channels import Voice
from headstart.gateway.failures import Answer
from headstart.gateway.session import PATIENCE_S, Connection
from headstart.gateway.wire import json_object
from headstart.runtime.contract import JsonObject

__all__ = ["ParkedCall", "ParkedCalls"]

_PREFIX: Final = "headstart-parked-"


class ParkedCall:
    """One call that may ask its client something.

    Attributes:
        state: What the client must bring back, unguessable.
        answer: The call's end, once it has come.
    """

    def __init__(self, connection: Connection, voice: Voice) -> None:
        self.state = _PREFIX + secrets.token_urlsafe(24)
        self.connection = connection
        self.voice = voice
        self.answer: Answer | None = None
        self.scope = anyio.CancelScope()
        self._numbers = itertools.count(1)
        self._asked: dict[str, JsonObject] = {}
        self._replies: dict[str, JsonObject] = {}
        self._changed = anyio.Event()
        self._over = False

    async def ask(self, method: str, params: JsonObject | None) -> JsonObject:
        """Ask the client something and wait until it comes back with the answer.

        Raises:
            MCPError: It did not come back in time, or its call has ended.
        """
        key = f"q{next(self._numbers)}"
        self._asked[key] = {"method": method, "params": params or {}}
        self._stir()
        try:
            with anyio.move_on_after(PATIENCE_S):
                while key not in self._replies:
                    if self._over:
                        raise MCPError(CONNECTION_CLOSED, f"the call ended before {method} was answered")
                    await self._changed.wait()
                return self._replies[key]
        finally:  # a server may ask, and take back, without end
            del self._asked[key]
            self._replies.pop(key, None)
        raise MCPError(REQUEST_TIMEOUT, f"the client did not come back to answer {method}")

    async def outcome(self) -> Answer | Mapping[str, JsonObject]:
        """Wait until the call has ended, or has questions open; return either."""
        while True:
            if self.answer is not None:
                return self.answer
            open_questions = {key: asked for key, asked in self._asked.items() if key not in self._replies}
            if open_questions:
                return open_questions
            await self._changed.wait()

    def comes_back(self, voice: Voice, responses: object) -> None:
        """Take the client's answers, and speak to its new request from now on."""
        self.voice.reply = voice.reply
        self.voice.progress_token = voice.progress_token
        given = json_object(responses) or {}
        for key in self._asked:
            if (answer := json_object(given.get(key))) is not None:
                self._replies[key] = answer
        self._stir()

    def ended(self, answer: Answer) -> None:
        self.answer = answer
        self._stir()

    def close(self) -> None:
        """Nobody will come back to it: what is still asked fails."""
        self._over = True
        self._stir()

    def _stir(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


class ParkedCalls:
    """All calls that could be parked now; their tasks belong to the gateway's task group."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._calls: dict[str, ParkedCall] = {}

    def find(self, state: object, connection: Connection) -> ParkedCall | None:
        """Return the call that a client comes back to; None for a state that is not ours, or not its."""
        call = self._calls.get(state) if isinstance(state, str) else None
        return call if call is not None and call.connection is connection else None

    def start(self, call: ParkedCall, work: Callable[[], Awaitable[Answer]]) -> None:
        """Run a call's work beside the client's requests."""
        self._calls[call.state] = call
        call.connection.in_flight[call.state] = call.scope
        self._tasks.start_soon(self._run, call, work)

    async def _run(self, call: ParkedCall, work: Callable[[], Awaitable[Answer]]) -> None:
        try:
            with call.scope:
                call.ended(await work())
        finally:
            call.close()
            del self._calls[call.state]
            call.connection.in_flight.pop(call.state, None)
