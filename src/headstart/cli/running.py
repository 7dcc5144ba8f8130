"""Asking the running service's control routes."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from headstart.cli.service_file import NotRunning, ServiceFile
from headstart.errors import HeadstartError

__all__ = ["ask"]


def ask(service: ServiceFile, method: str, path: str, *, timeout_s: float = 10.0) -> dict[str, Any]:
    """Send one request to the control routes.

    Standard library only: a command that asks one question must not take longer to import a
    client than to get its answer.

    Raises:
        NotRunning: It does not answer.
        HeadstartError: It refuses; the message is its own.
    """
    import http.client

    where = urlsplit(service.url)
    try:
        with closing(http.client.HTTPConnection(where.hostname or "", where.port, timeout=timeout_s)) as connection:
            connection.request(method, path, headers={"X-Headstart-Control": service.token})
            response = connection.getresponse()
            status, body = response.status, response.read()
        answer: dict[str, Any] = json.loads(body)
    except (OSError, http.client.HTTPException, ValueError) as exc:
        raise NotRunning(
            f"the service at {service.url} (pid {service.pid}) does not answer: {exc or type(exc).__name__}",
            hint="look at its terminal or log; as a last resort end it by its pid",
        ) from exc
    if status >= 400:
        raise HeadstartError(str(answer.get("error", answer)), hint=answer.get("hint"))
    return answer
