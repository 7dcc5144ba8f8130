import pytest

from headstart.config.model import Upstream
from headstart.proxy.refusals import Refusal
from headstart.proxy.routes import Route, Routes

ROUTES = Routes(
    [
        Upstream(prefix="default", base_url="http://127.0.0.1:8000/v1"),
        Upstream(prefix="openai", base_url="https://api.openai.com/v1/"),
        Upstream(prefix="azure", base_url="https://x.example/openai?api-version=2"),
    ]
)


def found(path: str, query: bytes = b"") -> Route:
    route = ROUTES.resolve(path.encode(), query)
    assert isinstance(route, Route)
    return route


def refused(path: str) -> Refusal:
    refusal = ROUTES.resolve(path.encode())
    assert isinstance(refusal, Refusal)
    return refusal


@pytest.mark.parametrize(
    ("path", "prefix", "session", "target"),
    [
        ("/v1/chat/completions", "default", None, b"/v1/chat/completions"),
        ("/default/v1/models", "default", None, b"/v1/models"),
        ("/openai/v1/responses", "openai", None, b"/v1/responses"),
        ("/s/abc/v1/models", "default", "abc", b"/v1/models"),
        ("/s/a%2Fb/openai/v1/models", "openai", "a/b", b"/v1/models"),
        ("/openai/v1", "openai", None, b"/v1"),
        ("/azure/v1/chat/completions", "azure", None, b"/openai/chat/completions?api-version=2"),
    ],
)
def test_a_path_leads_to_its_upstream_and_session(path: str, prefix: str, session: str | None, target: bytes) -> None:
    route = found(path)
    assert (route.upstream.prefix, route.session, route.target) == (prefix, session, target)


def test_what_follows_the_version_is_passed_on_as_written() -> None:
    assert found("/v1/files/a%2Fb%20c", b"after=x%3D&limit").target == b"/v1/files/a%2Fb%20c?after=x%3D&limit"


def test_a_base_urls_own_query_stands_before_the_clients() -> None:
    assert found("/azure/v1/x", b"a=1").target == b"/openai/x?api-version=2&a=1"


@pytest.mark.parametrize("path", ["/v1/v1/chat/completions", "/openai/v1/v1", "/s/x/v1/v1/models"])
def test_a_doubled_version_is_refused_with_the_cure(path: str) -> None:
    refusal = refused(path)
    assert (refusal.status, refusal.code) == (404, "doubled_v1")
    assert "without the second /v1" in refusal.hint


def test_an_unknown_prefix_is_refused_with_those_that_exist() -> None:
    refusal = refused("/mistral/v1/models")
    assert refusal.status == 404
    assert "'mistral'" in refusal.message
    assert "/default/v1, /openai/v1, /azure/v1" in refusal.hint


@pytest.mark.parametrize("path", ["", "*", "/", "//", "/s", "/s/x", "/v", "/\x00"])
def test_no_path_is_too_odd_to_be_refused(path: str) -> None:
    assert refused(path).status == 404


def test_a_path_without_version_is_refused_with_the_cure() -> None:
    assert "ends in /openai/v1" in refused("/openai/chat/completions").hint


@pytest.mark.parametrize("session", ["", "x" * 129, "two%20words", "%C3%A9", "%00"])
def test_a_session_that_cannot_be_one_is_refused_with_the_rule(session: str) -> None:
    refusal = refused(f"/s/{session}/v1/models")
    assert (refusal.status, refusal.code) == (400, "bad_session")
    assert "1 to 128 visible ASCII characters" in refusal.message


@pytest.mark.parametrize(
    ("path", "claimed"),
    [
        ("/v1/models", True),
        ("/openai/x", True),
        ("/s/1/v1/models", True),
        ("/s/1/openai/v1", True),
        ("/no-such-upstream/v1/models", True),
        ("/mcp", False),
        ("/s/1/mcp", False),
        ("/", False),
        ("", False),
        ("*", False),
        ("/é/v1", True),
    ],
)
def test_only_paths_of_model_servers_are_claimed(path: str, claimed: bool) -> None:
    assert ROUTES.claims(path) is claimed
