"""Which proxy leads to which model server."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.config.load import load_settings
from headstart.config.model import Upstream
from headstart.config.proxies import proxy_from_environment
from headstart.errors import ConfigError

API = "https://api.example.com/v1"


def upstream(folder: Path, toml: str, variables: dict[str, str] | None = None) -> Upstream:
    config = folder / "headstart.toml"
    config.write_text(f"[upstreams]\na = {toml}\n")
    (found,) = load_settings(config=config, variables=variables or {}, state_dir=folder / "state").upstreams
    return found


def shown(url: str, **variables: str) -> str | None:
    proxy = proxy_from_environment(url, variables)
    return None if proxy is None else proxy.shown


@pytest.mark.parametrize(
    ("variables", "https", "http"),
    [
        ({}, None, None),
        ({"HTTPS_PROXY": "http://p:1"}, "http://p:1", None),
        ({"http_proxy": "http://p:1"}, None, "http://p:1"),
        ({"ALL_PROXY": "p:1"}, "http://p:1", "http://p:1"),
        ({"ALL_PROXY": "p:1", "HTTPS_PROXY": "http://q"}, "http://q:80", "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1", "https_proxy": "http://q:2/"}, "http://q:2", None),
        ({"HTTPS_PROXY": "http://p:1", "https_proxy": ""}, None, None),
        ({"HTTPS_PROXY": "http://[::1]:3128"}, "http://[::1]:3128", None),
    ],
)
def test_the_environment_names_a_proxy_by_scheme_and_the_lower_case_name_wins(
    variables: dict[str, str], https: str | None, http: str | None
) -> None:
    assert shown(API, **variables) == https
    assert shown("http://models.example.com:8000/v1", **variables) == http


@pytest.mark.parametrize(
    ("excepted", "url", "direct"),
    [
        ("*", API, True),
        ("example.com", API, True),
        (".example.com", API, True),
        ("*.example.com", API, True),
        ("API.example.com", API, True),
        ("other.test, api.example.com:443", API, True),
        ("api.example.com:8443", API, False),
        ("ple.com", API, False),
        ("10.0.0.0/8,::1/128", "https://10.1.2.3/v1", True),
        ("10.0.0.0/8", "https://11.1.2.3/v1", False),
        ("fd00::/8", "https://[fd00::5]/v1", True),
        (" , ", API, False),
    ],
)
def test_no_proxy_names_what_is_reached_directly(excepted: str, url: str, direct: bool) -> None:
    assert (shown(url, HTTPS_PROXY="http://p:1", NO_PROXY=excepted) is None) is direct


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "models.localhost", "[::1]"])
def test_an_upstream_on_this_machine_goes_through_no_proxy_that_only_the_environment_names(
    tmp_path: Path, host: str
) -> None:
    url = f"http://{host}:8000/v1"
    assert shown(url, HTTP_PROXY="http://p:1", ALL_PROXY="http://p:1") is None
    asked = upstream(tmp_path, f'{{ url = "{url}", proxy = "http://p:1" }}')
    assert asked.proxy is not None


def test_the_file_overrides_the_environment(tmp_path: Path) -> None:
    environment = {"HTTPS_PROXY": "http://p:1"}
    named = upstream(tmp_path, f'{{ url = "{API}", proxy = "http://q:2" }}', environment).proxy
    assert named is not None
    assert (named.shown, named.source.endswith("headstart.toml:2: upstreams.a.proxy")) == ("http://q:2", True)
    assert upstream(tmp_path, f'{{ url = "{API}", proxy = "none" }}', environment).proxy is None
    inherited = upstream(tmp_path, f'{{ url = "{API}" }}', environment).proxy
    assert inherited is not None
    assert inherited.source == "environment: HTTPS_PROXY"


def test_credentials_are_decoded_and_never_shown(tmp_path: Path) -> None:
    found = upstream(tmp_path, f'"{API}"', {"HTTPS_PROXY": "http://me:s%40cret@p:1"})
    assert found.proxy is not None
    assert found.proxy.credentials == "me:s@cret"
    assert "cret" not in repr(found) + found.proxy.shown + found.proxy.source


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("socks5://me:secret@p:1", "only http:// proxies are spoken to. hint: give it as http://host:port"),
        ("https://me:secret@p:1", "only http:// proxies are spoken to"),
        ("http://me:secret@", "this is no proxy's URL"),
        ("http://me:secret@p:secret", "this is no proxy's URL"),
        ("http://me:secret@[p", "this is no proxy's URL"),
        ("http://p:1/secret", "this is no proxy's URL"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named_without_its_credentials(tmp_path: Path, value: str, problem: str) -> None:
    with pytest.raises(ConfigError) as from_environment:
        upstream(tmp_path, f'"{API}"', {"HTTPS_PROXY": value})
    with pytest.raises(ConfigError) as from_file:
        upstream(tmp_path, f'{{ url = "{API}", proxy = "{value}" }}')
    for caught, place in ((from_environment, "environment: HTTPS_PROXY"), (from_file, ":2: upstreams.a.proxy")):
        told = f"{caught.value}. hint: {caught.value.hint}"
        assert f"{place}: {problem}" in told
        assert "secret" not in told


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        (
            '{ url = "https://h/v1", proxi = "none" }',
            'headstart.toml:2: upstreams.a.proxi: unknown key. hint: did you mean "proxy"?',
        ),
        ('{ proxy = "none" }', "headstart.toml:2: upstreams.a.url: missing"),
        ('{ url = "h/v1" }', "headstart.toml:2: upstreams.a: this is no http(s) URL"),
    ],
)
def test_an_upstreams_table_is_checked_as_the_rest(tmp_path: Path, toml: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        upstream(tmp_path, toml)
    assert expected in f"{caught.value}. hint: {caught.value.hint}"
