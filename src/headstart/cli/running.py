"""Asking the running service's control routes."""

from __future__ import annotations

from typing import Any

import httpx2

from headstart.cli.service_file import NotRunning, ServiceFile
from headstart.errors import HeadstartError

__all__ = ["ask"]


def ask(service: ServiceFile, method: str, path: str, *, timeout_s: float = 10.0) -> dict[str, Any]:
    """Send one request to the control routes.

    Raises:
        NotRunning: It does not answer.
        HeadstartError: It refuses; the message is its own.
    """
    try:
        response = httpx2.request(
            method,
            service.url + path,
            headers={"X-Headstart-Control": service.token},
            timeout=timeout_s,
            trust_env=False,
        )
    except httpx2.HTTPError as exc:
        raise NotRunning(
            f"the service at {service.url} (pid {service.pid}) does not answer: {exc}",
            hint="look at its terminal or log; as a last resort end it by its pid",
        ) from exc
    answer: dict[str, Any] = response.json()
    if response.status_code >= 400:
        raise HeadstartError(str(answer.get("error", response.text)), hint=answer.get("hint"))
    return answer
