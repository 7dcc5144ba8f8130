"""What `headstart init` writes, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.cli.first_config import write_config


def test_a_config_that_is_there_stays_and_the_options_that_are_not_used_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "headstart.toml"
    config.write_text("# mine\n")
    write_config(tmp_path / "mcp.json", (), upstream="http://127.0.0.1:9/v1", backend="auto")
    assert config.read_text() == "# mine\n"
    assert capsys.readouterr().err == (
        "headstart.toml is there already and stays as it is; not used: --from, --upstream (move it away to begin anew)\n"
    )
