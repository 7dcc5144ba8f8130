"""A web page, or another machine's user, can use nothing; and no credential is ever written down."""

from __future__ import annotations

from collections.abc import Generator

import anyio
import httpx2
import pytest
from openai import AsyncOpenAI

from headstart.bench.replay_model import Recording
from headstart.gateway.guard import principal_of_key
from headstart.ids import session_named

from .clients import RawClient
from .running import Place, Running, scripted, service

ROUTES = ("/mcp", "/mcp/good", "/s/x/mcp", "/v1/chat/completions", "/headstart/status", "/headstart/health")
KEY = "k-3f1d0a77c2e94b5f8d6a1b2c3d4e5f60"
MODEL_KEY = "sk-model-5d0c1f6f"
SERVER_SECRET = "env-9a7be1f2"
CLIENT_TOKEN = "bearer-77fe0c1d"
REMOTE_TOKEN = "remote-1c9de8aa"
REMOTE_URL_KEY = "url-40b7ce15"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, model: str) -> Generator[Running]:
    place = Place(folder=tmp_path_factory.mktemp("hostile")).configure(
        {"good": scripted("good")}, f'[service]\nbackend = "process"\n[upstreams]\ndefault = "{model}"\n'
    )
    with service(place) as started:
        yield started


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "attacker.example"},
        {"Origin": "https://attacker.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
    ids=["rebound name", "cross-site", "sandboxed frame", "image"],
)
def test_what_a_page_could_send_is_refused_on_every_route(
    running: Running, route: str, headers: dict[str, str]
) -> None:
    headers = {**headers, "X-Headstart-Control": running.token}
    for method in ("GET", "POST"):
        answer = httpx2.request(method, running.url + route, headers=headers, trust_env=False)
        assert answer.status_code == 403, (method, answer.text)
        assert answer.json()["hint"]
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("route", ROUTES)
def test_a_preflight_is_not_answered_with_a_permission(running: Running, route: str) -> None:
    headers = {"Origin": "https://attacker.example", "Access-Control-Request-Method": "POST"}
    answer = httpx2.options(running.url + route, headers=headers, trust_env=False)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("token", [None, "", "wrong"])
def test_control_routes_ask_for_the_token(running: Running, token: str | None) -> None:
    headers = {} if token is None else {"X-Headstart-Control": token}
    for method, route in (("GET", "status"), ("GET", "trace/last"), ("POST", "forget"), ("POST", "stop")):
        answer = httpx2.request(method, f"{running.url}/headstart/{route}", headers=headers, trust_env=False)
        assert answer.status_code == 401, route
    assert running.process.poll() is None


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory, model: str) -> Generator[Running]:
    """A service that other machines can reach, with a key, and with secrets in everything it is given."""
    place = Place(folder=tmp_path_factory.mktemp("keyed")).configure(
        {
            "good": scripted("good", env={"API_TOKEN": SERVER_SECRET}),
            "away": {
                "url": f"http://127.0.0.1:9/mcp?apiKey={REMOTE_URL_KEY}",
                "headers": {"Authorization": f"Bearer {REMOTE_TOKEN}"},
            },
        },
        f"""
[service]
backend = "process"
host = "0.0.0.0"
keys = ["{KEY}"]
journal = "full"
[upstreams]
default = "{model}"
""",
    )
    with service(place, "--verbose") as started:
        yield started


def local(running: Running, route: str) -> str:
    return running.url.replace("0.0.0.0", "127.0.0.1") + route


def test_without_the_key_nothing_answers_off_loopback(keyed: Running) -> None:
    for route in ("/mcp", "/s/x/mcp/good", "/v1/models"):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-Headstart-Key": "wrong"}):
            answer = httpx2.get(local(keyed, route), headers=headers, trust_env=False)
            assert answer.status_code == 401, (route, headers)
            assert answer.headers["www-authenticate"].startswith("Bearer")
    assert httpx2.get(local(keyed, "/v1/models"), headers={"X-Headstart-Key": KEY}, trust_env=False).status_code == 200


def test_no_credential_is_written_into_any_file_or_log(keyed: Running, recordings: tuple[Recording, ...]) -> None:
    async def ask_model() -> None:
        headers = {"X-Headstart-Key": KEY}
        with anyio.fail_after(30):
            async with AsyncOpenAI(
                base_url=local(keyed, "/s/one/v1"), api_key=MODEL_KEY, default_headers=headers
            ) as llm:
                await llm.chat.completions.create(
                    model=recordings[0].model, messages=[{"role": "user", "content": recordings[0].user}]
                )

    session = session_named(principal_of_key(KEY), "one")
    headers = {"X-Headstart-Key": KEY, "Authorization": f"Bearer {CLIENT_TOKEN}"}
    with RawClient(local(keyed, "/s/one/mcp"), headers=headers) as client:
        client.initialize()
        client.request("tools/list")
        anyio.run(ask_model)
        assert client.call("good__echo", text="twelve boats")[1] is False
        assert REMOTE_URL_KEY not in client.call("away__anything")[0]
        steps = keyed.trace(session)["steps"]
    assert steps[0]["generation"]
    assert steps[0]["calls"]  # a key's named session is the same one for the model and for the tools
    keyed.command("stop")
    keyed.process.wait(20)
    assert not (keyed.place.state / "service.json").exists()
    files = [path for path in keyed.place.state.rglob("*") if path.is_file()]
    assert any(path.parent.name == "journal" and b"twelve boats" in path.read_bytes() for path in files), files
    for secret in (KEY, MODEL_KEY, SERVER_SECRET, CLIENT_TOKEN, REMOTE_TOKEN, REMOTE_URL_KEY, keyed.token):
        for path in (*files, keyed.place.log):
            assert secret.encode() not in path.read_bytes(), f"{secret} is in {path}"
