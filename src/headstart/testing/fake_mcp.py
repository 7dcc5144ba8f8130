"""A scripted MCP server that runs in a coroutine: real JSON-RPC lines, no process.

    time = ScriptedServer(
        name="time",
        tools=(ScriptedTool(name="now", handler=lambda arguments, call: text("12:00")),),
    )
    backend = FakeBackend(programs={"mcp-server-time": time.program})

It speaks the handshake of 2025-11-25 and whatever else it is told to. Faults are part of
the script: `junk` on stdout before each answer, handlers that never return, `call.exit`.
"""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Never

import anyio
from anyio.abc import ByteReceiveStream

from headstart.testing.fake_process import ProcessContext

__all__ = ["RpcError", "ScriptedCall", "ScriptedServer", "ScriptedTool", "text"]

JsonObject = dict[str, Any]
Handler = Callable[[JsonObject, "ScriptedCall"], JsonObject | Awaitable[JsonObject]]


def text(value: str, *, is_error: bool = False) -> JsonObject:
    """Return a `tools/call` result of one text block.

    >>> text("hi")
    {'content': [{'type': 'text', 'text': 'hi'}], 'isError': False}
    """
    return {"content": [{"type": "text", "text": value}], "isError": is_error}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedTool:
    """A tool and what it answers. `handler(arguments, call)` may be a coroutine function."""

    name: str
    handler: Handler = lambda arguments, _call: text(json.dumps(arguments, sort_keys=True))
    description: str = ""
    input_schema: Mapping[str, object] = field(default_factory=lambda: {"type": "object"})
    annotations: Mapping[str, object] | None = None

    def listed(self) -> JsonObject:
        """Return its entry in `tools/list`."""
        entry: JsonObject = {
            "name": self.name,
            "description": self.description,
            "inputSchema": dict(self.input_schema),
        }
        if self.annotations is not None:
            entry["annotations"] = dict(self.annotations)
        return entry


class RpcError(Exception):
    """Raise in a handler to answer with a JSON-RPC error instead of a result."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class ScriptedServer:
    """The script; `program` plays it, once per process.

    Args:
        methods: Other methods by name: `handler(params, call)` returns the result.
        initialize: Replaces parts of the `initialize` result.
        junk: A line that is no JSON, printed before every message.
        answers_handshake: False: it reads and never says a word.

    Attributes:
        received: Every message of every process, oldest first.
    """

    def __init__(
        self,
        *,
        name: str = "scripted",
        tools: Sequence[ScriptedTool] = (),
        methods: Mapping[str, Handler] | None = None,
        initialize: JsonObject | None = None,
        junk: str = "",
        answers_handshake: bool = True,
    ) -> None:
        self.name = name
        self.tools = list(tools)
        self.methods = dict(methods or {})
        self.initialize = initialize or {}
        self.junk = junk
        self.answers_handshake = answers_handshake
        self.received: list[JsonObject] = []

    async def program(self, process: ProcessContext) -> int:
        """Serve one client over the process's stdio until EOF."""
        connection = _Connection(self, process)
        await connection.serve()
        return connection.exit_code

    def handler_of(self, method: str, params: JsonObject) -> tuple[Handler, JsonObject] | None:
        """Find what answers `method`, and with what it is called."""
        if method in self.methods:
            return self.methods[method], params
        match method:
            case "initialize":
                return self._initialize, params
            case "ping":
                return (lambda _params, _call: {}), params
            case "tools/list":
                return (lambda _params, _call: {"tools": [tool.listed() for tool in self.tools]}), params
            case "tools/call":
                named = [tool for tool in self.tools if tool.name == params.get("name")]
                return (named[0].handler, params.get("arguments") or {}) if named else None
            case _:
                return None

    def _initialize(self, params: JsonObject, _call: ScriptedCall) -> JsonObject:
        return {
            "protocolVersion": params.get("protocolVersion", "2025-11-25"),
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": self.name, "version": "1"},
            **self.initialize,
        }


class ScriptedCall:
    """A handler's way to its client, and to the end of its own process."""

    def __init__(self, connection: _Connection, message: JsonObject, process: ProcessContext) -> None:
        self._connection = connection
        self.message = message
        self.process = process

    @property
    def progress_token(self) -> str | int | None:
        match self.message:
            case {"params": {"_meta": {"progressToken": str() | int() as token}}}:
                return token
            case _:
                return None

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Send `notifications/progress` for this request, if the client asked for it."""
        if self.progress_token is not None:
            told = {"progressToken": self.progress_token, "progress": progress, "total": total, "message": message}
            await self.notify("notifications/progress", {k: v for k, v in told.items() if v is not None})

    async def notify(self, method: str, params: JsonObject | None = None) -> None:
        """Send any notification."""
        await self._connection.send({"method": method, **({} if params is None else {"params": params})})

    async def request(self, method: str, params: JsonObject | None = None) -> JsonObject:
        """Ask the client something and return the whole answer (`result` or `error` in it)."""
        return await self._connection.ask(method, params)

    async def exit(self, code: int = 1) -> Never:
        """Die in the middle of the call."""
        self._connection.end(code)
        await anyio.sleep_forever()
        raise AssertionError  # sleep_forever only ends by the cancellation that `end` asked for


class _Connection:
    """One process's conversation with its client."""

    def __init__(self, script: ScriptedServer, process: ProcessContext) -> None:
        self._script = script
        self._process = process
        self._tasks = anyio.create_task_group()
        self._open: dict[str | int, anyio.CancelScope] = {}
        self._asked: dict[str | int, _Answer] = {}
        self._ids = itertools.count(1)
        self._writing = anyio.Lock()
        self.exit_code = 0

    def end(self, code: int) -> None:
        self.exit_code = code
        self._tasks.cancel_scope.cancel()

    async def serve(self) -> None:
        async with self._tasks:
            async for line in _lines(self._process.stdin):
                message: JsonObject = json.loads(line)
                self._script.received.append(message)
                if self._script.answers_handshake:
                    self._take(message)
            self._tasks.cancel_scope.cancel()

    def _take(self, message: JsonObject) -> None:
        match message:
            case {"method": "notifications/cancelled", "params": {"requestId": str() | int() as request}}:
                if request in self._open:
                    self._open[request].cancel()
            case {"method": str(), "id": str() | int() as request}:
                scope = self._open[request] = anyio.CancelScope()
                self._tasks.start_soon(self._answer, message, scope)
            case {"id": str() | int() as request} if request in self._asked:
                self._asked.pop(request).give(message)
            case _:
                pass

    async def send(self, message: JsonObject) -> None:
        junk = self._script.junk + "\n" if self._script.junk else ""
        line = junk + json.dumps({"jsonrpc": "2.0", **message}) + "\n"
        async with self._writing:
            await self._process.stdout.send(line.encode())

    async def ask(self, method: str, params: JsonObject | None) -> JsonObject:
        request = f"server-{next(self._ids)}"
        answer = self._asked[request] = _Answer()
        await self.send({"id": request, "method": method, **({} if params is None else {"params": params})})
        return await answer.wait()

    async def _answer(self, message: JsonObject, scope: anyio.CancelScope) -> None:
        request = message["id"]
        try:
            with scope:
                outcome = await self._outcome(message)
                await self.send({"id": request, **outcome})
        finally:
            self._open.pop(request, None)

    async def _outcome(self, message: JsonObject) -> JsonObject:
        found = self._script.handler_of(message["method"], message.get("params") or {})
        if found is None:
            return {"error": {"code": -32601, "message": f"{message['method']}: not in the script"}}
        handler, argument = found
        try:
            result = handler(argument, ScriptedCall(self, message, self._process))
            return {"result": await result if inspect.isawaitable(result) else result}
        except RpcError as error:
            told: JsonObject = {"code": error.code, "message": str(error)}
            return {"error": told if error.data is None else {**told, "data": error.data}}


class _Answer:
    def __init__(self) -> None:
        self._given = anyio.Event()
        self._message: JsonObject = {}

    def give(self, message: JsonObject) -> None:
        self._message = message
        self._given.set()

    async def wait(self) -> JsonObject:
        await self._given.wait()
        return self._message


async def _lines(stream: ByteReceiveStream) -> AsyncGenerator[bytes]:
    buffer = bytearray()
    async for chunk in stream:
        buffer += chunk
        *whole, rest = buffer.split(b"\n")
        buffer = bytearray(rest)
        for line in whole:
            if line.strip():
                yield bytes(line)
