"""MCP over stdio, as a thin shim onto the running service.

Agents start it once per session and wait for it, so it is stdlib only and up at once
(anyio or the MCP SDK would cost more than the service's own answer). Lines go to the
service as the bytes they are and its messages come back as the bytes they are; the shim
looks only at what HTTP needs to know: method, id and protocol version.

One thread reads stdin and sends, so that messages leave in order; each request's answer
is awaited by a thread of its own, at most `_REQUESTS_AT_ONCE` of them.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import IO, Any, Final, cast
from urllib.parse import quote, urlsplit

__all__ = ["StdioRoute", "StdioShim", "bridge"]

_REQUESTS_AT_ONCE: Final = 128
_LEAVE_WITHIN_S: Final = 30.0
"""How long open requests may go on after the client has closed its end."""
_REOPEN_AFTER_S: Final = (0.1, 10.0)
"""The first wait before the GET stream is opened again, and the longest; each is twice the one before."""
_FAILED: Final = -32000
_META_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
_NAMED_BY: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StdioRoute:
    """Where the shim goes.

    Attributes:
        base_url: The service's (`http://127.0.0.1:8787`).
        server: One server, or None for the merged view.
        session: A session to join; without one the shim has its own, and ends it.
        key: For a service that asks for one.
    """

    base_url: str
    server: str | None = None
    session: str | None = None
    key: str | None = field(default=None, repr=False)


def bridge(route: StdioRoute, *, stdin: IO[bytes], stdout: IO[bytes], stderr: IO[str]) -> int:
    """Carry messages until stdin ends; return the exit code.

    A service that is not there is one line on `stderr` and exit code 1.
    """
    shim = StdioShim(route, stdout)
    try:
        shim.probe()
    except OSError as exc:
        stderr.write(f"headstart mcp: no service at {route.base_url} ({exc}). hint: start it with headstart serve\n")
        return 1
    try:
        for line in stdin:
            if line.strip():
                shim.take(line.strip())
        shim.wait_for_answers(_LEAVE_WITHIN_S)
    except BrokenPipeError:
        return 0  # the client is gone, and so is the reason to go on
    finally:
        shim.end()
    return 0


class StdioShim:
    """One stdio client's connection to the service."""

    def __init__(self, route: StdioRoute, stdout: IO[bytes]) -> None:
        self._stdout = stdout
        self._writing = threading.Lock()
        self._places = threading.BoundedSemaphore(_REQUESTS_AT_ONCE)
        self._own = route.session is None
        session = route.session or f"stdio-{os.urandom(9).hex()}"
        server = f"/{quote(route.server, safe='')}" if route.server else ""
        self._path = f"/s/{quote(session, safe='')}/mcp{server}"
        self._pool = _Connections(route.base_url)
        self._headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "X-Headstart-Stdio": "1",
            **({"X-Headstart-Key": route.key} if route.key else {}),
        }
        self._open: dict[object, http.client.HTTPConnection] = {}
        self._answered = threading.Condition()
        self._ended = threading.Event()

    def probe(self) -> None:
        """Connect once.

        Raises:
            OSError: Nobody listens there.
        """
        self._pool.put_back(self._pool.connect())

    def take(self, line: bytes) -> None:
        """Carry one message to the service."""
        message = _read(line)
        method = message.get("method")
        if method == "notifications/cancelled" and self._hang_up(message):
            return
        if isinstance(method, str) and "id" in message:
            self._request(line, message)
        else:
            self._tell(line, message)
            if method == "notifications/initialized":
                _thread(self._hear_everything_else)

    def wait_for_answers(self, within_s: float) -> None:
        """Wait until every open request has been answered; streams that never end do not count."""
        with self._answered:
            self._answered.wait_for(lambda: not self._open, timeout=within_s)

    def end(self) -> None:
        """End the session that is the shim's own, or its connection to one that is not."""
        self._ended.set()
        headers = dict(self._headers)
        if self._own:
            headers.pop("Mcp-Session-Id", None)
        try:
            if self._own or "Mcp-Session-Id" in headers:
                with closing(self._pool.connect()) as connection:
                    connection.timeout = 5
                    connection.request("DELETE", self._path, headers=headers)
                    connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return  # the service is gone; so is the session
        finally:
            self._pool.close()

    # ------------------------------------------------------------ inside

    def _request(self, line: bytes, message: Message) -> None:
        self._places.acquire()
        request_id = _key(message["id"])
        try:
            connection = self._pool.take()
            connection.request("POST", self._path, body=line, headers=self._headers_for(message))
        except OSError as exc:
            self._places.release()
            self._fail(message["id"], f"the Headstart service cannot be reached: {exc}")
            return
        counts = message["method"] != "subscriptions/listen"
        if counts:
            self._open[request_id] = connection
        if message["method"] == "initialize":
            self._await_answer(connection, message, request_id)  # what comes after needs its session id
        else:
            _thread(lambda: self._await_answer(connection, message, request_id))

    def _await_answer(self, connection: http.client.HTTPConnection, message: Message, request_id: object) -> None:
        try:
            response = connection.getresponse()
            self._keep_session(message, response)
            answered = self._pass_on(response, message)
            if not answered:
                self._fail(message["id"], f"the service ended the request without an answer (HTTP {response.status})")
            self._pool.put_back(connection)
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as exc:
            # AttributeError: http.client, when its socket is shut down under it by `_hang_up`.
            connection.close()
            if request_id in self._open:
                self._fail(message["id"], f"the Headstart service went away: {exc}")
        finally:
            with self._answered:
                self._open.pop(request_id, None)
                self._answered.notify_all()
            self._places.release()

    def _pass_on(self, response: http.client.HTTPResponse, message: Message) -> bool:
        """Write what a response holds; False if it held no answer."""
        kind = (response.getheader("content-type") or "").partition(";")[0].strip()
        if kind == "text/event-stream":
            answered = False
            for told in _events(response):
                self._write(told)
                answered = answered or "method" not in _read(told)
            return answered
        body = response.read()
        if response.status >= 400:
            error = _read(body).get("error")
            if not isinstance(error, dict):
                return False
            body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode()
        if body:
            self._write(body)
        return bool(body)

    def _keep_session(self, message: Message, response: http.client.HTTPResponse) -> None:
        if message["method"] != "initialize":
            return
        session = response.getheader("mcp-session-id")
        if session is not None:
            self._headers["Mcp-Session-Id"] = session

    def _tell(self, line: bytes, message: Message) -> None:
        """Carry a notification, or an answer to a server's question."""
        try:
            connection = self._pool.take()
            connection.request("POST", self._path, body=line, headers=self._headers_for(message))
            connection.getresponse().read()
            self._pool.put_back(connection)
        except (OSError, http.client.HTTPException):
            return  # nobody waits for it; the next request will tell that the service is gone

    def _hear_everything_else(self) -> None:
        """Hold the GET stream, also over restarts of the service, until the shim ends or is refused one."""
        first_s, longest_s = _REOPEN_AFTER_S
        wait_s = first_s
        while True:
            opened_s = time.monotonic()
            if not self._hear_one_stream():
                return
            if time.monotonic() - opened_s > longest_s:
                wait_s = first_s
            if self._ended.wait(wait_s):
                return
            wait_s = min(2 * wait_s, longest_s)

    def _hear_one_stream(self) -> bool:
        """Hold a GET stream to its end; return whether another may follow."""
        try:
            with closing(self._pool.connect()) as connection:
                connection.request("GET", self._path, headers=self._headers)
                response = connection.getresponse()
                if response.status != 200:
                    return response.status >= 500  # it does not serve yet, or no longer; else there is no such stream
                for told in _events(response):
                    if not self._heard(told):
                        return False
        except (OSError, http.client.HTTPException, ValueError):
            pass  # the service went away; requests tell the client so
        return True

    def _heard(self, told: bytes) -> bool:
        try:
            self._write(told)
        except (OSError, ValueError):
            return False  # the client is gone
        return True

    def _hang_up(self, message: Message) -> bool:
        """Cancel a stateless request as its protocol does over HTTP: by closing its response."""
        if "Mcp-Session-Id" in self._headers:
            return False
        request_id = _key(_object(message.get("params")).get("requestId"))
        connection = self._open.pop(request_id, None)
        if connection is not None and connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
        return True

    def _headers_for(self, message: Message) -> dict[str, str]:
        params = _object(message.get("params"))
        version = _object(params.get("_meta")).get(_META_VERSION)
        if not isinstance(version, str):
            return self._headers
        method = str(message.get("method", ""))
        headers = {**self._headers, "Mcp-Protocol-Version": version, "Mcp-Method": method}
        name = params.get(_NAMED_BY.get(method, ""))
        if isinstance(name, str):
            headers["Mcp-Name"] = _header_value(name)
        return headers

    def _fail(self, request_id: object, told: str) -> None:
        error = {"code": _FAILED, "message": told}
        self._write(json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}).encode())

    def _write(self, message: bytes) -> None:
        with self._writing:
            self._stdout.write(message + b"\n")
            self._stdout.flush()


class _Connections:
    """Connections to the service, kept while they are alive."""

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        self._make: Callable[[], http.client.HTTPConnection] = lambda: (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )(parts.hostname or "127.0.0.1", parts.port)
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def connect(self) -> http.client.HTTPConnection:
        connection = self._make()
        connection.connect()
        cast("socket.socket", connection.sock).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def take(self) -> http.client.HTTPConnection:
        """Return a connection that the service has not closed meanwhile."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self.connect()
            if connection.sock is not None and not select.select([connection.sock], [], [], 0)[0]:
                return connection
            connection.close()

    def put_back(self, connection: http.client.HTTPConnection) -> None:
        if connection.sock is not None:
            with self._lock:
                self._idle.append(connection)

    def close(self) -> None:
        with self._lock:
            while self._idle:
                self._idle.pop().close()


def _events(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the data of each server-sent event; ours have one data line each."""
    for line in response:
        if line.startswith(b"data:"):
            yield line[5:].strip()


def _read(line: bytes) -> Message:
    """Read a message as far as the shim needs it; what is no object is the service's to refuse."""
    try:
        return _object(json.loads(line))
    except ValueError:
        return {}


def _object(value: object) -> Message:
    return cast("Message", value) if isinstance(value, dict) else {}


def _key(request_id: object) -> object:
    """Keep ids apart by type: `1` and `"1"` are two requests, and so is whatever cannot be a key."""
    return (type(request_id).__name__, str(request_id))


def _header_value(value: str) -> str:
    """Write a name as an HTTP header may carry it (the SDK's own base64 form where it must)."""
    if value.isascii() and value.isprintable() and value == value.strip() and not value.startswith("=?base64?"):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode('ascii')}?="


def _thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()
