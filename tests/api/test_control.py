"""The control routes are for whoever can read the service's file, and for nobody else."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from headstart.api.control import CONTROL_HEADER, control_app
from headstart.errors import BackendError
from headstart.ids import PrincipalId


class FakeControlled:
    def __init__(self) -> None:
        self.stopped = 0
        self.forgotten: list[PrincipalId | None] = []
        self.traced = True

    async def status(self) -> dict[str, Any]:
        return {"sandboxes": []}

    async def trace(self, session: str) -> dict[str, Any] | None:
        if session == "broken":
            raise BackendError("the store is gone", hint="look at the disk")
        return {"session": session} if self.traced and session in {"last", "local/a"} else None

    async def forget(self, principal: PrincipalId | None) -> dict[str, Any]:
        self.forgotten.append(principal)
        return {"rows": 3}

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def controlled() -> FakeControlled:
    return FakeControlled()


def client(controlled: FakeControlled, *, token: str = "right") -> httpx2.AsyncClient:
    app = control_app(controlled, token="right")
    return httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1", headers={CONTROL_HEADER: token}
    )


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "status"), ("GET", "trace/last"), ("POST", "forget"), ("POST", "stop")],
)
async def test_every_route_but_health_asks_for_the_token(controlled: FakeControlled, method: str, path: str) -> None:
    async with client(controlled, token="wrong") as http:
        response = await http.request(method, f"/headstart/{path}")
        assert response.status_code == 401
        assert "control token" in response.json()["error"]
        assert (await http.get("/headstart/health")).status_code == 200
    assert controlled.stopped == 0
    assert controlled.forgotten == []


@pytest.mark.anyio
async def test_the_routes_answer_with_what_the_service_says(controlled: FakeControlled) -> None:
    async with client(controlled) as http:
        assert (await http.get("/headstart/status")).json() == {"sandboxes": []}
        assert (await http.get("/headstart/trace/local/a")).json() == {"session": "local/a"}
        assert (await http.post("/headstart/forget?principal=local")).json() == {"rows": 3}
        assert (await http.post("/headstart/stop")).status_code == 202
    assert controlled.forgotten == [PrincipalId("local")]
    assert controlled.stopped == 1


@pytest.mark.anyio
async def test_an_unknown_session_is_named(controlled: FakeControlled) -> None:
    async with client(controlled) as http:
        response = await http.get("/headstart/trace/nobody")
    assert response.status_code == 404
    assert response.json()["error"] == "no trace of session 'nobody'"


@pytest.mark.anyio
async def test_where_nothing_was_traced_yet_it_is_told_what_to_do(controlled: FakeControlled) -> None:
    controlled.traced = False
    async with client(controlled) as http:
        response = await http.get("/headstart/trace/last")
    assert (response.status_code, response.json()) == (
        404,
        {"error": "no session has made a call yet", "hint": "headstart env prints what to set for an agent"},
    )


@pytest.mark.anyio
async def test_a_failure_is_told_with_its_cure(controlled: FakeControlled) -> None:
    async with client(controlled) as http:
        response = await http.get("/headstart/trace/broken")
    assert response.status_code == 500
    assert response.json() == {"error": "the store is gone", "hint": "look at the disk"}


@pytest.mark.anyio
async def test_reading_routes_cannot_be_posted_to_and_acting_routes_cannot_be_fetched(
    controlled: FakeControlled,
) -> None:
    async with client(controlled) as http:
        assert (await http.get("/headstart/stop")).status_code == 405
        assert (await http.post("/headstart/status")).status_code == 405
    assert controlled.stopped == 0
