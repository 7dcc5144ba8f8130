"""What commands print arrives, whatever they print to."""

from __future__ import annotations

import io
import sys

import pytest

from headstart.cli.terminal import fit_encoding, print_error, show
from headstart.errors import BackendError, HeadstartError


def test_a_terminal_that_knows_no_bars_still_gets_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    fit_encoding()
    show("██ 1.5 s   ")
    stdout.flush()
    assert stdout.buffer.getvalue() == b"?? 1.5 s\n"  # pyright: ignore[reportAttributeAccessIssue] a BytesIO


def test_a_backend_s_failure_without_a_cure_of_its_own_points_to_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(BackendError("no room"))
    print_error(BackendError("no room", hint="make some"))
    print_error(HeadstartError("told"))
    assert capsys.readouterr().err == (
        "error: no room\nhint: headstart doctor says what this machine can do\n"
        "error: no room\nhint: make some\n"
        "error: told\n"
    )
