"""A terminal in a sandbox that lives in the service."""

from __future__ import annotations

import os
import signal

import pytest
from tests.cli.sandboxes.typing_at import Service, on_terminal, resize
from tests.e2e.running import wait_until
from tests.machine import may_make_namespaces

from headstart.backends.spawner.guest.processes import descendants, is_alive

pytestmark = pytest.mark.skipif(
    not may_make_namespaces(), reason="the local backend cannot run here: this user may make no namespaces"
)


def test_a_shell_is_typed_at_resized_interrupted_and_ends_as_it_says(service: Service) -> None:
    name = service.create()
    with on_terminal(service, "shell", name, rows=11, columns=44) as terminal:
        terminal.type(b"stty size; echo $TERM-$((40+2))\n")
        assert b"11 44" in terminal.until(b"-42\r\n")
        resize(terminal.descriptor, 12, 55)
        os.kill(terminal.process.pid, signal.SIGWINCH)  # as its controlling terminal would
        terminal.type(b"stty size; stty size; stty size; echo =$((1+1))\n")
        terminal.until(b"=2\r\n")
        terminal.type(b"stty size; echo ==$((1+1))\n")
        assert b"12 55" in terminal.until(b"==2\r\n")
        terminal.type(b"echo up$((1+1)); sleep 1000\n")
        terminal.until(b"up2\r\n")
        service.do(
            "run", "--in", name, "until grep -qsx sleep /proc/[0-9]*/comm; do sleep 0.01; done"
        )  # else it is not its to hear
        terminal.type(b"\x03")
        terminal.until(b"^C")
        terminal.type(b"echo status$?; echo left > f\n")
        terminal.until(b"status130\r\n")
        terminal.type(b"exit 7\n")
        assert terminal.ends() == 7
    assert service.do("run", "--in", name, "cat f").out == b"left\n"


def test_a_shell_in_a_sandbox_of_its_own_leaves_nothing(service: Service) -> None:
    with on_terminal(service, "shell", "--env", "WHO=me") as terminal:
        terminal.type(b"echo $WHO-$((1+1))\n")
        terminal.until(b"me-2\r\n")
        below = descendants(terminal.process.pid)
        terminal.type(b"\x04")
        assert terminal.ends() == 0
    assert below
    wait_until(lambda: not any(is_alive(pid) for pid in below), what="all of it is gone")


def test_a_shell_whose_sandbox_is_killed_says_why_and_gives_the_terminal_back(service: Service) -> None:
    name = service.create()
    box = service.id_of(name)
    with on_terminal(service, "shell", name) as terminal:
        terminal.type(b"echo up$((1+1))\n")
        terminal.until(b"up2\r\n")
        service.do("kill", name)
        assert terminal.ends() == 1
        assert b"Traceback" not in terminal.shown
        assert f"error: {box} has ended: it was killed".encode() in terminal.shown


def test_a_shell_whose_client_is_told_to_end_gives_the_terminal_back(service: Service) -> None:
    name = service.create()
    with on_terminal(service, "shell", name) as terminal:
        terminal.type(b"echo up$((1+1)); sleep 1000\n")
        terminal.until(b"up2\r\n")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.ends() in {-signal.SIGTERM, 143}
    wait_until(
        lambda: service.do("run", "--in", name, "grep -lsx sleep /proc/[0-9]*/comm | wc -l").out == b"0\n",
        what="the shell has ended",
    )
