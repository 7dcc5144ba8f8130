"""Sandboxes that live in the service are made, listed, used, changed and killed, as it is typed."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.cli.sandboxes.typing_at import Service, on_terminal
from tests.e2e.running import wait_until
from tests.machine import may_make_namespaces, where_files_outlive

pytestmark = pytest.mark.skipif(
    not may_make_namespaces(), reason="the local backend cannot run here: this user may make no namespaces"
)


def test_the_service_starts_without_a_config_and_says_what_it_does(service: Service) -> None:
    told = service.log.read_text()
    assert "hosts sandboxes (headstart sandbox create)" in told
    assert "Traceback" not in told


def test_what_is_created_is_listed_shown_and_killed_as_json_when_piped(service: Service) -> None:
    made = service.do("create", "--name", "mine", "--idle", "1000", "--env", "WHO=me")
    assert (made.status, made.err) == (0, "")
    assert made.json["name"] == "mine"
    box = made.json["id"]
    (listed,) = [each for each in service.do("list").json["sandboxes"] if each["id"] == box]
    assert (listed["name"], listed["state"], listed["ends_after_idle_s"]) == ("mine", "running", 1000)
    assert service.do("show", box[:10]).json["id"] == box
    assert service.do("kill", "mine").json == {"killed": [box]}
    assert box not in [each["id"] for each in service.do("list").json["sandboxes"]]
    ended = service.do("show", box)
    assert ended.told == (
        1,
        "",
        [f"error: {box} has ended: it was killed", "hint: headstart sandbox list shows who lives"],
    )


def test_the_id_alone_is_printed_when_that_is_wanted(service: Service) -> None:
    box = service.do("create", "-q").out.decode().strip()
    assert re.fullmatch(r"box_[0-9a-f]{24}", box)
    kept = service.do("checkpoint", box, "-q").out.decode().strip()
    assert kept.startswith("chk_")
    branch = service.do("fork", box, "-q").out.decode().strip()
    assert branch.startswith("box_")
    assert service.do("kill", box).status == 0


def test_all_are_killed_only_if_all_are_there(service: Service) -> None:
    one, other = service.create(), service.create()
    refused = service.do("kill", one, "nonesuch", other)
    assert (refused.status, refused.err.splitlines()[0]) == (1, "error: there is no sandbox 'nonesuch'")
    names = {each["name"] for each in service.do("list").json["sandboxes"]}
    assert {one, other} <= names
    ids = [service.id_of(one), service.id_of(other)]
    assert service.do("kill", one, other, one).json == {"killed": ids}
    assert service.do("kill").told[::2] == (
        2,
        ["error: headstart sandbox kill: say which", "hint: give ids or names, or --all"],
    )


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("show", "nonesuch"), 1, "error: there is no sandbox 'nonesuch'"),
        (("pause", "nonesuch"), 1, "error: there is no sandbox 'nonesuch'"),
        (("run", "--in", "nonesuch", "true"), 125, "error: there is no sandbox 'nonesuch'"),
        (("create", "--name", "no way"), 2, "error: name: 'no way' cannot be a sandbox's name"),
        (("create", "--idle", "nan"), 2, "error: ends_after_idle_s: nan is no time"),
        (("create", "--idle", "-3"), 2, "error: ends_after_idle_s: -3 is no time"),
        (("create", "--memory", "-3"), 2, "error: memory_mb: -3 is not possible"),
        (("create", "--network", "all"), 2, "error: network: there is no network 'all'"),
        (("create", "--mount", "m/ro:foo"), 2, "error: --mount: m/ro:foo: 'foo' is no way to mount"),
        (("create", "--disk", "-1"), 2, "error: disk_mb: -1.0 is not possible"),
        (("create", "--pids", "0"), 2, "error: pids: 0 is not possible"),
        (("run", "--timeout", "-1", "true"), 2, "error: --timeout: -1 is no time"),
        (("run", "--timeout", "0", "true"), 2, "error: --timeout: 0 is no time"),
        (("create", "--mount", "/nonesuch"), 1, "error: sandbox: /nonesuch is to be mounted, but does not exist"),
        (("ls", "nonesuch"), 1, "error: there is no sandbox 'nonesuch'"),
        (("cp", "a", "b"), 2, "error: headstart sandbox cp: one of the two must be in a sandbox"),
        (("cp", "x:a", "y:b"), 2, "error: headstart sandbox cp: one of the two must be in a sandbox"),
        (("commit", "nonesuch"), 1, "error: there is no sandbox 'nonesuch'"),
        (("shell",), 2, "error: headstart sandbox shell: this is no terminal"),
        (("lst",), 2, "error: headstart sandbox: no such command 'lst'"),
    ],
)
def test_what_cannot_be_is_told_in_one_line_and_a_hint(
    words: Sequence[str], status: int, told: str, service: Service
) -> None:
    before = len(service.do("list").json["sandboxes"])
    done = service.do(*words)
    assert (done.status, done.out) == (status, b"")
    assert done.err.splitlines()[0].startswith(told)
    assert [line.partition(":")[0] for line in done.err.splitlines()] == ["error", "hint"]
    assert len(service.do("list").json["sandboxes"]) == before


@pytest.mark.parametrize(
    "words", [("list",), ("create",), ("kill", "--all"), ("run", "--in", "x", "true"), ("events",)]
)
def test_without_a_service_each_command_says_how_to_start_one(words: Sequence[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headstart", "sandbox", words[0], "--state-dir", str(tmp_path / "none"), *words[1:]],
        capture_output=True,
        timeout=60,
        check=False,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr.splitlines()) == (
        125 if words[0] == "run" else 1,
        "",
        [f"error: no headstart service hosts sandboxes in {tmp_path / 'none'}", "hint: start one: headstart serve"],
    )
    assert not (tmp_path / "none").exists()


def test_on_a_terminal_there_is_a_table_that_fits_it(service: Service) -> None:
    name = service.create()
    branch = service.do("fork", name, "-q").out.decode().strip()
    service.do("checkpoint", name)
    for words in (("list",), ("show", name)):
        with on_terminal(service, *words) as terminal:
            assert terminal.ends() == 0
            lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.shown.decode()).splitlines()
            assert max(len(line) for line in lines) <= 80, terminal.shown.decode()
            assert any(f"  {branch[:12]}  -  " in line for line in lines), "what is enough of an id is one word"
            assert not any(line.startswith("{") for line in lines)
    with on_terminal(service, "list", "--json") as terminal:
        assert terminal.ends() == 0
        assert json.loads(terminal.shown)["sandboxes"]
    service.do("kill", name)


def test_too_little_memory_is_refused_before_anything_is_made(service: Service) -> None:
    done = service.do("create", "--memory", "1")
    assert done.told == (
        2,
        "",
        [
            "error: memory_mb: 1 MB are too little",
            "hint: say 16 or more: its first process and a shell need some",
        ],
    )


def test_a_command_runs_in_a_sandbox_that_lives_and_finds_what_others_have_left(service: Service) -> None:
    name = service.create("--env", "WHO=me")
    first = service.do("run", "--in", name, 'echo "$WHO" | tee f; echo err >&2; exit 3')
    assert first.told == (3, "me\n", ["err"])
    assert service.do("run", "--in", name, "--cwd", "/usr", "--env", "X=y", 'cat ~/f; pwd; echo "$X"').out == (
        b"me\n/usr\ny\n"
    )
    assert service.do("run", "--in", name, "cat", given=b"given\xff").out == b"given\xff"
    assert service.do("run", "--in", name, "--", "printf", "%s", "--in").out == b"--in"
    assert service.do("run", "--in", name, "kill -9 $$").status == 137
    late = service.do("run", "--in", name, "--timeout", "0.2", "sleep", "60")
    assert late.told == (124, "", ["error: 'sleep 60' had not ended after 0.2 s, and was killed"])
    refused = service.do("run", "--in", name, "--network", "host", "true")
    assert refused.told == (
        125,
        "",
        [
            f"error: --network: {name} has been made already",
            "hint: say it when you create one: headstart sandbox create",
        ],
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_when_a_run_is_ended_its_command_is_and_its_sandbox_is_not(number: signal.Signals, service: Service) -> None:
    name = service.create()
    with service.running("run", "--in", name, "echo up; sleep 1000 & sleep 1000") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(number)
        assert process.wait(30) in {130, -number}
        assert process.stderr is not None
        assert process.stderr.read() == b""
    wait_until(
        lambda: service.do("run", "--in", name, "grep -lsx sleep /proc/[0-9]*/comm | wc -l").out == b"0\n",
        what="the command has ended",
    )


def test_who_does_not_want_more_output_ends_the_command(service: Service) -> None:
    name = service.create()
    with service.running("run", "--in", name, "yes") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        assert process.wait(30) != 0
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    wait_until(
        lambda: service.do("run", "--in", name, "grep -lsx yes /proc/[0-9]*/comm | wc -l").out == b"0\n",
        what="the command has ended",
    )


def test_a_state_is_kept_gone_back_to_and_dropped(service: Service) -> None:
    name = service.create()
    none = service.do("rollback", name)
    assert none.told[::2] == (
        1,
        [
            f"error: {service.id_of(name)} has no checkpoint to go back to",
            f"hint: make one first: headstart sandbox checkpoint {name}",
        ],
    )
    service.do("run", "--in", name, "echo 1 > f")
    kept, id_ = service.do("checkpoint", name).json["id"], service.id_of(name)
    service.do("run", "--in", name, "echo 2 > f")
    assert service.do("rollback", name).json == {"id": id_, "checkpoint": kept, "frozen_secrets": []}
    assert service.do("run", "--in", name, "cat f").out == b"1\n"
    assert [each["id"] for each in service.do("show", name).json["checkpoints"]] == [kept]
    service.do("run", "--in", name, "echo 2 > f")
    assert service.do("rollback", name, kept[:10]).json["checkpoint"] == kept
    assert service.do("run", "--in", name, "cat f").out == b"1\n"
    assert service.do("rollback", name, "chk_").status == 1
    assert service.do("drop", name, kept.removeprefix("chk_")[:8]).json == {"id": id_, "dropped": kept}
    assert service.do("rollback", name, kept).status == 1


@pytest.mark.skipif(
    os.geteuid() != 0, reason="an ordinary user's stores are plain folders, which are looked at once a second"
)
def test_how_much_may_be_written_can_be_said(service: Service) -> None:
    name = service.create("--disk", "20")
    done = service.do("run", "--in", name, "head -c 60000000 /dev/zero > f; stat -c %s f")
    assert done.status == 0
    assert int(done.out) < 40_000_000


def test_how_many_processes_there_may_be_can_be_said(service: Service) -> None:
    name = service.create("--pids", "30")
    done = service.do("run", "--in", name, "for _ in {1..50}; do sleep 60 & done")
    assert "Resource temporarily unavailable" in done.err
    refused = service.do("run", "--in", name, "--pids", "40", "true")
    assert refused.err.startswith("error: --pids: ")


def test_one_that_has_ended_is_told_as_that_by_its_name_too(service: Service) -> None:
    name = service.create()
    id_ = service.id_of(name)
    service.do("kill", name)
    for said, told in ((id_, id_), (name, f"{name} ({id_})")):
        ended = service.do("show", said)
        assert ended.told[::2] == (
            1,
            [f"error: {told} has ended: it was killed", "hint: headstart sandbox list shows who lives"],
        )


def test_a_branch_is_committed_or_in_conflict_or_killed(service: Service) -> None:
    name = service.create()
    one, other, third = (service.do("fork", name).json["id"] for _ in range(3))
    assert service.do("show", name).json["branches"] == [one, other, third]
    service.do("run", "--in", one, "echo one > f")
    assert service.do("kill", third).json == {"killed": [third]}
    assert service.do("commit", one).json == {"id": service.id_of(name), "committed": one}
    assert service.do("run", "--in", name, "cat f").out == b"one\n"
    stale = service.do("commit", other)
    assert (stale.status, stale.out, len(stale.err.splitlines())) == (1, b"", 2)
    assert stale.err.count("state_") == 2
    assert service.do("run", "--in", other, "true").status == 0, "it stays"
    none = service.do("commit", name)
    assert none.told[::2] == (
        1,
        [f"error: {service.id_of(name)} is no branch, so there is nothing to commit", "hint: fork it first"],
    )


def test_with_a_fresh_identity_what_is_not_made_anew_is_told(service: Service) -> None:
    name = service.create()
    look = ("cat", "/etc/machine-id")
    service.do("run", "--in", name, "echo x > .netrc")
    same = service.do("fork", name)
    assert (same.json["frozen_secrets"], same.err) == ([], "")
    fresh = service.do("fork", name, "--identity", "fresh")
    assert fresh.json["frozen_secrets"] == ["~/.netrc"]
    assert fresh.err.splitlines() == ["as in the sandbox that it was forked from, and not made anew: ~/.netrc"]
    seen = [service.do("run", "--in", each, *look).out for each in (name, same.json["id"], fresh.json["id"])]
    assert seen[0] == seen[1] != seen[2]
    kept = service.do("checkpoint", name).json["id"]
    back = service.do("rollback", name, kept, "--identity", "fresh")
    assert back.told[::2] == (0, ["as at the checkpoint, and not made anew: ~/.netrc"])
    assert back.json["frozen_secrets"] == ["~/.netrc"]
    assert service.do("run", "--in", name, *look).out not in seen
    refused = service.do("fork", name, "--identity", "new")
    assert (refused.status, refused.out) == (2, b"")


def test_a_paused_sandbox_refuses_and_goes_on_when_resumed(service: Service) -> None:
    name = service.create()
    id_ = service.id_of(name)
    assert service.do("pause", name).json == {"id": id_, "state": "paused"}
    refused = service.do("run", "--in", name, "true")
    assert (refused.status, refused.err.splitlines()[1]) == (125, "hint: resume it first")
    assert service.do("show", name).json["state"] == "paused"
    assert service.do("resume", name).json == {"id": id_, "state": "running"}
    assert service.do("run", "--in", name, "true").status == 0


def test_people_are_told_nothing_of_what_they_have_asked_for_unless_they_want_json(service: Service) -> None:
    name = service.create()
    for words in (["pause", name], ["resume", name], ["kill", name]):
        with on_terminal(service, *words) as terminal:
            assert terminal.ends() == 0
            assert terminal.shown == b""
    other = service.create()
    with on_terminal(service, "kill", other, "--json") as terminal:
        assert terminal.ends() == 0
        assert list(json.loads(terminal.shown)) == ["killed"]


@where_files_outlive
def test_a_hibernated_sandbox_is_listed_as_that_and_woken_by_who_uses_it(service: Service) -> None:
    name = service.create("--hibernate-idle", "1000")
    service.do("run", "--in", name, "echo 1 > f")
    assert service.do("hibernate", name).json == {"id": service.id_of(name), "state": "hibernated"}
    [listed] = [each for each in service.do("list").json["sandboxes"] if each["name"] == name]
    assert (listed["state"], listed["usage"]["memory_bytes"]) == ("hibernated", 0)
    assert service.do("show", name).json["hibernates_after_idle_s"] == 1000
    with on_terminal(service, "show", name) as terminal:
        assert terminal.ends() == 0
        shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.shown.decode())
        assert re.search(r"hibernated +\d+ \w+ +- +0 MB", shown), shown
        assert "when nobody has used it for 16 min" in shown
    assert service.do("run", "--in", name, "cat f").told == (0, "1\n", [])
    assert service.do("show", name).json["state"] == "running"
    service.do("hibernate", name)
    assert service.do("resume", name).json["state"] == "running"
    assert service.do("show", name).json["state"] == "running"
    branch = service.do("fork", name).json["id"]
    assert service.do("hibernate", name).told == (
        1,
        "",
        [
            f"error: {service.id_of(name)} has branches that would be lost: {branch}",
            "hint: commit or kill them first, or pause it",
        ],
    )
    both = service.do("create", "--idle", "5", "--hibernate-idle", "5")
    assert both.told[::2] == (
        2,
        [
            "error: hibernates_after_idle_s: it cannot end and be hibernated",
            "hint: say one of the two: what is hibernated is not ended, as it costs no memory",
        ],
    )


@where_files_outlive
def test_status_counts_hosted_sandboxes_and_their_memory_in_the_budget(service: Service) -> None:
    service.do("kill", "--all")
    running, hibernated = service.create(), service.create()
    service.do("run", "--in", running, "python3 -c 'import time; held = bytearray(60_000_000); time.sleep(1000)' &")
    service.do("hibernate", hibernated)

    def status() -> dict[str, Any]:
        told = subprocess.run(
            [sys.executable, "-m", "headstart", "status", "--json"],
            env=service.env,
            capture_output=True,
            timeout=60,
            check=True,
        )
        found: dict[str, Any] = json.loads(told.stdout)
        return found

    wait_until(lambda: status()["pool"]["hosted_bytes"] > 50_000_000, what="its memory counts")
    hosted = status()["hosted"]
    assert (hosted["running"], hosted["hibernated"], hosted["paused"]) == (1, 1, 0)
    assert hosted["memory_bytes"] > 50_000_000
    service.do("kill", "--all")
    wait_until(lambda: status()["pool"]["hosted_bytes"] == 0, what="it counts no more")


def test_events_are_told_a_line_each_until_interrupted(service: Service) -> None:
    with service.running("events") as watching:
        assert watching.stdout is not None
        seen: list[dict[str, Any]] = []
        name = ""
        while not seen:  # it may not watch yet
            name = service.create()
            if select.select([watching.stdout], [], [], 0.5)[0]:
                seen.append(json.loads(watching.stdout.readline()))
        service.do("kill", name)
        seen.append(json.loads(watching.stdout.readline()))
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 130
        assert watching.stderr is not None
        assert watching.stderr.read() == b""
    with service.running("events") as watching:
        assert watching.stdout is not None
        while not select.select([watching.stdout], [], [], 0.5)[0]:  # it may not watch yet
            service.do("kill", service.create())
        watching.send_signal(signal.SIGINT)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) in {130, -signal.SIGINT}, "the second may come when nothing of it is left"
        assert watching.stderr is not None
        assert watching.stderr.read() == b""
    assert [(each["event"], each["about"]) for each in seen] == [("created", ""), ("ended", "it was killed")]
