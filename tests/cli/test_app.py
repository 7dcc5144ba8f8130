"""What is told to a client that came to a path that nobody serves."""

from __future__ import annotations

import json

import pytest

from headstart.cli.app import nothing_at


@pytest.mark.parametrize(
    ("path", "cure"),
    [
        ("/chat/completions", "give the SDK a base URL that ends in /v1"),
        ("/s/run/models", "give the SDK a base URL that ends in /v1"),
        ("/", "MCP is at /mcp"),
        ("/s/run", "MCP is at /mcp"),
    ],
)
def test_a_wrong_path_is_answered_in_the_shape_that_sdks_show(path: str, cure: str) -> None:
    error = json.loads(nothing_at(path).body())["error"]
    assert error["message"].startswith(f"nothing is at {path}. hint: ")
    assert error["hint"].startswith(cure)
