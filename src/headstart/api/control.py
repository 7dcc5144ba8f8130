"""The control routes: status, trace, stop, forget.

They are for whoever can read the service's own file (0600), not for agents: every route
but `/headstart/health` asks for the token that is in it.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headstart.errors import HeadstartError
from headstart.ids import PrincipalId
from headstart.version import VERSION

__all__ = ["CONTROL_HEADER", "CONTROL_PREFIX", "Controlled", "control_app"]

CONTROL_PREFIX = "/headstart/"
CONTROL_HEADER = "X-Headstart-Control"


class Controlled(Protocol):
    """What the control routes can ask and tell; made by the composition root."""

    async def status(self) -> dict[str, Any]:
        """The live pool, each predictor's record, what was passed through unread."""
        ...

    async def trace(self, session: str) -> dict[str, Any] | None:
        """The steps of one session (`last`: of the newest), or None if it is not known."""
        ...

    async def forget(self, principal: PrincipalId | None) -> dict[str, Any]:
        """Erase what was learned of one principal (None: of all); says how much."""
        ...

    def stop(self) -> None:
        """Begin to stop."""
        ...


def control_app(controlled: Controlled, *, token: str) -> Starlette:
    """Build the routes under `/headstart/`."""

    async def health(_: Request) -> Response:
        return JSONResponse({"ok": True, "version": VERSION})

    async def status(_: Request) -> Response:
        return JSONResponse(await controlled.status())

    async def trace(request: Request) -> Response:
        session = request.path_params["session"]
        found = await controlled.trace(session)
        if found is None:
            told = f"no trace of session {session!r}"
            hint = "`headstart trace last` shows the newest; the last 200 are kept"
            if session == "last":
                told, hint = "no session has made a call yet", "headstart env prints what to set for an agent"
            return JSONResponse({"error": told, "hint": hint}, status_code=404)
        return JSONResponse(found)

    async def forget(request: Request) -> Response:
        principal = request.query_params.get("principal")
        return JSONResponse(await controlled.forget(PrincipalId(principal) if principal else None))

    async def stop(_: Request) -> Response:
        controlled.stop()
        return JSONResponse({"stopping": True}, status_code=202)

    guarded = {
        ("GET", "/headstart/status"): status,
        ("GET", "/headstart/trace/{session:path}"): trace,
        ("POST", "/headstart/forget"): forget,
        ("POST", "/headstart/stop"): stop,
    }
    routes = [Route(path, _with_token(handler, token), methods=[method]) for (method, path), handler in guarded.items()]
    return Starlette(routes=[Route("/headstart/health", health), *routes])


def _with_token(
    handler: Callable[[Request], Awaitable[Response]], token: str
) -> Callable[[Request], Awaitable[Response]]:
    async def checked(request: Request) -> Response:
        given = request.headers.get(CONTROL_HEADER, "")
        if not hmac.compare_digest(given.encode(), token.encode()):
            hint = "use the headstart command as the user who started the service"
            return JSONResponse({"error": "the control token is missing or wrong", "hint": hint}, status_code=401)
        try:
            return await handler(request)
        except HeadstartError as error:
            return JSONResponse({"error": str(error), "hint": error.hint}, status_code=500)

    return checked
