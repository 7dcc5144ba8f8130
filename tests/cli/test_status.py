"""What `headstart status` prints of what the service tells."""

from __future__ import annotations

import re
from typing import Any

import pytest

from headstart.cli.status import report, trouble
from headstart.cli.terminal import show


def server(name: str, **changes: Any) -> dict[str, Any]:
    common = {"principal": "local", "remote": False, "built_in": False, "form": "zygote", "reason": "forks"}
    return {"name": name, **common, "last_failure": None, **changes}


def told(**runtime: Any) -> dict[str, Any]:
    sandbox = {"id": "sbx_1", "resource": "git", "state": "leased", "session": "[red]run[/]", "form": "zygote"}
    return {
        "pool": {
            "mode": "predictive",
            "sessions": 1,
            "sandboxes": [{**sandbox, "age_s": 3.2, "memory_bytes": 9_000_000, "served": 2}],
            "used_bytes": 33_000_000,
            "memory_bytes": 3_000_000_000,
            "set_aside_bytes": 1_000_000_000,
            "hosted_bytes": 0,
            "too_large": [],
            "starting": 0,
            "starts_at_once": 2,
            "queued": 0,
        },
        "waste": {
            "open_bets": 1,
            "reserved_memory_bytes": 8_640_512,
            "reserved_cpu_s": 0.02,
            "available_cpu_s": 15.0,
            "wasted_cpu_s": 0.0,
        },
        "backend": {
            "name": "local",
            "isolation": "namespaces",
            "weaker": ["own user: start as root", "no limits: delegate a group"],
        },
        "hosted": {"running": 0, "paused": 0, "hibernated": 0, "broken": 0, "branches": 0, "memory_bytes": 0},
        "predictors": [],
        "proxy": {"requests": 0, "read": 0, "active_streams": 0, "unread": []},
        "upstreams": [],
        "offline": ["git", "fetch"],
        "runtime": {
            "sandboxes": [{"id": "sbx_1", "because": "keywords: commit", "stands_still": False}],
            "servers": [server("git")],
            "zygotes": [],
            "events_broken": 0,
            "journal_dropped": 0,
            "state_writes_failed": 0,
            **runtime,
        },
    }


def printed(capsys: pytest.CaptureFixture[str], found: dict[str, Any]) -> str:
    show(*report(found))
    return capsys.readouterr().out


def test_only_what_went_wrong_is_told() -> None:
    assert trouble({"events_broken": 0, "journal_dropped": 0, "state_writes_failed": 0}) == ""
    broken = trouble({"events_broken": 2, "journal_dropped": 0, "state_writes_failed": 1})
    assert broken == "2 events not handled, 1 writes of the state failed"


def test_what_has_used_the_cpu_that_it_may_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert "stands still" not in printed(capsys, told())
    held = [{"id": "sbx_1", "because": "keywords: commit", "stands_still": True}]
    assert "leased, stands still" in printed(capsys, told(sandboxes=held))


def test_every_section_has_a_heading_with_a_blank_line_above(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, told()).splitlines()
    for heading in ("Service", "Sandboxes", "Servers", "Guesses", "Models"):
        assert lines[lines.index(heading) - 1] == ""


def test_no_line_ends_in_blanks_and_none_has_a_name_of_the_code_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, told())
    assert all(line == line.rstrip() for line in text.splitlines())
    assert "_" not in text


def test_what_is_weaker_is_told_once_without_its_cures(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, told())
    assert "weaker here  no limits; own user (headstart doctor: what to do)" in text
    assert "start as root" not in text


def test_brackets_in_a_session_s_name_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert "[red]run[/]" in printed(capsys, told())


def test_a_failure_is_a_column_only_where_there_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "last failure" not in printed(capsys, told())
    failed = server("git", form="cold", last_failure="it died")
    assert "it died" in printed(capsys, told(servers=[failed]))


def test_whose_a_form_is_is_told_where_there_are_several(capsys: pytest.CaptureFixture[str]) -> None:
    assert "principal" not in printed(capsys, told())
    servers = [server("git", principal="key-1"), server("git", principal="key-2", form="cold", reason="it is busy")]
    zygotes = [{"server": "git", "principal": "key-1", "memory_bytes": 7_000_000}]
    rows = [" ".join(line.split()) for line in printed(capsys, told(servers=servers, zygotes=zygotes)).splitlines()]
    assert "git key-1 zygote 7 MB forks" in rows
    assert "git key-2 cold - it is busy" in rows


def test_each_upstream_is_told_with_the_way_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    way = "through http://proxy.corp:3128 (environment: HTTPS_PROXY)"
    upstream = {"prefix": "openai", "base_url": "https://api.openai.com/v1", "way": way}
    text = printed(capsys, {**told(), "upstreams": [upstream]})
    assert f"https://api.openai.com/v1, {way}" in " ".join(text.split())


def test_servers_without_a_network_are_named_with_the_cure(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, told())
    assert 'git, fetch (set network = "host" under [servers.NAME]' in text
    assert "no network" not in printed(capsys, {**told(), "offline": []})


def test_memory_is_told_with_the_part_that_is_set_aside_for_zygotes(capsys: pytest.CaptureFixture[str]) -> None:
    assert "33 MB of 3,000 MB in use; 1,000 MB more are set aside for zygotes" in printed(capsys, told())


def test_hosted_sandboxes_are_counted_by_what_they_are_at_with_their_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = told()
    assert re.search(r"hosted +no sandboxes\n", printed(capsys, found))
    assert "by hosted sandboxes" not in printed(capsys, found)
    found["hosted"] |= {"running": 2, "hibernated": 1, "branches": 3, "memory_bytes": 120_000_000}
    found["pool"]["hosted_bytes"] = 118_000_000
    text = printed(capsys, found)
    assert re.search(r"hosted +2 running, 1 hibernated; 3 branches; 120 MB\n", text)
    assert "33 MB of 3,000 MB in use, and another 118 MB by hosted sandboxes; 1,000 MB more" in " ".join(text.split())


def test_more_starts_than_there_are_slots_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    found = told()
    assert "0 now (at most 2 at once), 0 more are waiting" in printed(capsys, found)
    found["pool"]["starting"] = 3
    text = " ".join(printed(capsys, found).split())
    assert "3 now (at most 2 at once, besides guesses and what takes too long), 0 more are waiting" in text
