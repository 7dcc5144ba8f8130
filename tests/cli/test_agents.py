"""Two URLs, in each agent's own words."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from headstart.cli.agents import AGENTS, Endpoint, instructions
from headstart.config.model import Upstream
from headstart.errors import ConfigError

DEFAULT = Upstream(prefix="default", base_url="http://127.0.0.1:8000/v1")
ANTHROPIC = Upstream(prefix="anthropic", base_url="https://api.anthropic.com/v1")
OPENAI = Upstream(prefix="openai", base_url="https://api.openai.com/v1")


def endpoint(*upstreams: Upstream, session: str = "", key: bool = False) -> Endpoint:
    return Endpoint(root=f"http://127.0.0.1:8787{session}", upstreams=upstreams or (DEFAULT,), key=key)


@pytest.mark.parametrize("upstreams", [(DEFAULT,), (DEFAULT, ANTHROPIC), ()], ids=["default", "anthropic", "none"])
@pytest.mark.parametrize("agent", AGENTS)
def test_what_is_printed_sets_variables_and_does_nothing_else(agent: str, upstreams: tuple[Upstream, ...]) -> None:
    text = instructions(agent, endpoint(*upstreams, key=True))
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(r"export [A-Z_]+=[\w:/.-]+", line), line
    subprocess.run(["sh", "-eu", "-c", 'eval "$1"', "sh", text], check=True, timeout=10)
    assert "http://127.0.0.1:8787/mcp" in text


def test_claude_code_s_model_goes_through_only_where_there_is_an_upstream_for_it() -> None:
    served = instructions("claude-code", endpoint(DEFAULT, ANTHROPIC))
    assert "export ANTHROPIC_BASE_URL=http://127.0.0.1:8787/anthropic\n" in served
    not_served = instructions("claude-code", endpoint(DEFAULT))
    assert "export" not in not_served
    assert '#   anthropic = "https://api.anthropic.com/v1"' in not_served


def test_the_page_about_claude_code_says_what_the_command_prints() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/connect-an-agent.md").read_text(encoding="utf-8")
    printed = instructions("claude-code", endpoint(DEFAULT, ANTHROPIC)).splitlines()
    for line in printed:
        assert line in page, line


@pytest.mark.parametrize(
    ("agent", "table", "remote"),
    [
        ("cursor", "mcpServers", {"url": "http://127.0.0.1:8787/mcp"}),
        ("vscode", "servers", {"type": "http", "url": "http://127.0.0.1:8787/mcp"}),
        ("opencode", "mcp", {"type": "remote", "url": "http://127.0.0.1:8787/mcp"}),
    ],
)
def test_settings_files_get_the_table_and_the_words_that_their_client_reads(
    agent: str, table: str, remote: dict[str, str]
) -> None:
    lines = instructions(agent, endpoint()).splitlines()
    tables = [json.loads(line.removeprefix("#")) for line in lines if line.startswith("#   {")]
    assert [list(one) for one in tables] == [[table], [table]]
    assert tables[0][table] == {"headstart": remote}


def test_an_agent_gets_the_upstream_of_its_own_name_before_the_default() -> None:
    assert "OPENAI_BASE_URL=http://127.0.0.1:8787/openai/v1" in instructions("openai", endpoint(DEFAULT, OPENAI))
    assert "OPENAI_BASE_URL=http://127.0.0.1:8787/v1" in instructions("openai", endpoint(DEFAULT))


def test_without_a_default_the_only_upstream_is_named() -> None:
    local = Upstream(prefix="vllm", base_url="http://127.0.0.1:8000/v1")
    assert "OPENAI_BASE_URL=http://127.0.0.1:8787/vllm/v1" in instructions("openai", endpoint(local))


def test_a_named_session_is_in_both_urls() -> None:
    text = instructions("openai", endpoint(session="/s/run-1"))
    assert "OPENAI_BASE_URL=http://127.0.0.1:8787/s/run-1/v1" in text
    assert "MCP_URL=http://127.0.0.1:8787/s/run-1/mcp" in text


def test_a_needed_key_is_mentioned_and_never_printed() -> None:
    assert "X-Headstart-Key" in instructions("openai", endpoint(key=True))


def test_an_unknown_agent_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        instructions("emacs", endpoint())
    assert "emacs" in str(caught.value)
    assert "claude-code" in (caught.value.hint or "")
