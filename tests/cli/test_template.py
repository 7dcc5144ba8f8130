"""`headstart template …`, as a user types it."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.running import Place, headstart, service
from tests.machine import may_make_namespaces

from headstart.testing.roots import make_root

pytestmark = pytest.mark.skipif(
    not may_make_namespaces(), reason="the local backend cannot run here: this user may make no namespaces"
)

HEADSTART = (sys.executable, "-m", "headstart")


def run(tmp_path: Path, *words: str) -> tuple[int, str, str]:
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "xdg")}
    done = subprocess.run([*HEADSTART, *words], env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def found(tmp_path: Path, *words: str) -> dict[str, Any]:
    status, out, err = run(tmp_path, "template", *words)
    assert (status, err) == (0, "")
    return json.loads(out)


def on_a_terminal(tmp_path: Path, *words: str) -> str:
    ours, theirs = pty.openpty()
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "xdg"), "COLUMNS": "200", "TERM": "xterm"}
    with subprocess.Popen([*HEADSTART, "template", *words], env=env, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                said += os.read(ours, 65536)
            except OSError:  # a terminal that nobody holds any more
                break
        assert process.wait(60) == 0
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;]*m", "", said.decode()).replace("\r\n", "\n")


def test_a_template_is_built_listed_inspected_used_and_removed(tmp_path: Path) -> None:
    build = ("build", "mine", "--setup", "echo 1 > ~/a", "--setup", "cat ~/a", "--ready", "test -s ~/a", "--env", "X=y")
    status, out, err = run(tmp_path, "template", *build)
    assert status == 0
    assert err.split("\n") == [
        "root: host",
        "set-up 1 of 2: echo 1 > ~/a",
        "set-up 2 of 2: cat ~/a",
        "1",
        "ready: test -s ~/a",
        "",
    ]
    built = json.loads(out)
    assert built["layer"]["files"] == 4
    assert run(tmp_path, "sandbox", "run", "--template", "mine", "cat ~/a; echo $X") == (0, "1\ny\n", "")
    assert found(tmp_path, "inspect", "mine") == built
    assert (built["setup"], built["ready"], built["root"]) == (
        ["echo 1 > ~/a", "cat ~/a"],
        "test -s ~/a",
        {"kind": "host"},
    )
    assert built["environment"] == {"X": "y", "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"}
    [listed] = found(tmp_path, "list")["templates"]
    assert (listed["name"], listed["setup"], listed["damage"]) == ("mine", 2, None)
    assert run(tmp_path, "template", "remove", "mine") == (0, "", "")
    assert found(tmp_path, "list") == {"templates": []}
    status, _, err = run(tmp_path, "sandbox", "run", "--template", "mine", "true")
    assert status == 125
    assert err.startswith("error: template: there is no template 'mine'\nhint: ")


def test_a_root_is_given_as_a_folder_or_an_archive(tmp_path: Path) -> None:
    root = make_root(tmp_path / "root")
    for folder in (tmp_path, *tmp_path.parents):  # pytest's own folders are closed to others
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    subprocess.run(["tar", "-C", str(root), "-czf", str(tmp_path / "root.tar.gz"), "."], check=True)
    for source in ("root", "root.tar.gz"):
        assert run(tmp_path, "template", "build", "mine", "--from", str(tmp_path / source))[0] == 0
        status, out, err = run(tmp_path, "sandbox", "run", "--template", "mine", "ls -d /usr || ls /bin/cat")
        assert (status, out) == (0, "/bin/cat\n")
        assert err.endswith("No such file or directory\n")  # before that: ids that cannot be mapped, say
    assert found(tmp_path, "inspect", "mine")["root"]["files"] > 12


def test_a_terminal_gets_tables_and_a_pipe_gets_json(tmp_path: Path) -> None:
    said = on_a_terminal(tmp_path, "build", "mine", "--setup", "echo 1 > ~/a")
    assert said.endswith("template mine is there: headstart sandbox run --template mine …\n")
    rows = on_a_terminal(tmp_path, "list").split("\n")
    assert rows[0].split() == ["name", "from", "set-up", "size", "built"]
    assert [row.split()[0] for row in rows[1:-1]] == ["host", "mine"]
    told = on_a_terminal(tmp_path, "inspect", "mine")
    assert re.search(r"set-up +echo 1 > ~/a\n", told)
    assert re.search(r"environment +PATH=/usr/local/bin", told)
    assert json.loads(on_a_terminal(tmp_path, "list", "--json"))["templates"][0]["name"] == "mine"
    (record,) = (tmp_path / "xdg/headstart/templates/named").iterdir()
    record.write_text("{")
    assert "damaged: " in on_a_terminal(tmp_path, "list")
    assert found(tmp_path, "list")["templates"][0]["damage"].endswith("mine.json cannot be read")


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("build", "Mine"), 2, "error: template: 'Mine' is no name for a template\nhint: "),
        (("build", "host"), 2, "error: template: 'host' is always there and never built\nhint: "),
        (
            ("build", "m", "--from", "/nowhere"),
            2,
            "root: /nowhere\nerror: /nowhere: there is no such folder and no such",
        ),
        (("build", "m", "--from", "/etc/passwd"), 2, "root: /etc/passwd\nerror: /etc/passwd: cannot be read as a tar"),
        (("build", "m", "--env", "X"), 2, "error: --env: 'X' is no variable\nhint: write NAME=VALUE\n"),
        (("build", "m", "--network", "all"), 2, "root: host\nerror: network: there is no network 'all'\nhint: "),
        (
            ("build", "m", "--mount", "/nowhere"),
            1,
            "root: host\nerror: m: /nowhere is to be mounted, but does not exist\n",
        ),
        (
            ("build", "m", "--setup", "echo why >&2; exit 7"),
            1,
            "root: host\nset-up 1 of 1: echo why >&2; exit 7\nwhy\nerror: template m: its set-up command 1 of 1 ended",
        ),
        (("build",), 2, "error: headstart template build: missing argument 'name'\n"),
        (("inspect", "m"), 2, "error: template: there is no template 'm'\nhint: "),
        (("inspect", "host"), 2, "error: template: 'host' is nothing that was built"),
        (("remove", "m"), 2, "error: template: there is no template 'm'\nhint: "),
        (("remove", "host"), 2, "error: template: 'host' is always there\nhint: "),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_told_with_the_cure(
    words: Sequence[str], status: int, told: str, tmp_path: Path
) -> None:
    seen, out, err = run(tmp_path, "template", *words)
    assert (seen, out) == (status, "")
    assert err.startswith(told)
    assert "Traceback" not in err


def test_a_state_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "xdg").mkdir()
    (tmp_path / "xdg/headstart").write_text("a file")
    for words in (("template", "build", "mine"), ("sandbox", "run", "true")):
        status, _, err = run(tmp_path, *words)
        assert status in {2, 125}
        assert err.startswith(f"error: {tmp_path}/xdg/headstart: is not a folder\nhint: ")
    (tmp_path / "xdg/headstart").unlink()
    (tmp_path / "xdg/headstart").mkdir()
    (tmp_path / "xdg/headstart/templates").symlink_to("/nowhere")
    status, _, err = run(tmp_path, "template", "build", "mine")
    assert (status, err.split("\n")[-3]) == (2, f"error: {tmp_path}/xdg/headstart/templates: is not a folder")


def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "xdg")}
    command = [*HEADSTART, "template", "build", "mine", "--setup", "echo up; exec sleep 1000"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        while process.stderr.readline() != b"up\n":
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b"")
    assert list((tmp_path / "xdg/headstart/templates").glob("*/*")) == []


def test_a_sandbox_that_lives_in_the_service_is_started_from_a_template_too(tmp_path: Path) -> None:
    place = Place(folder=tmp_path / "place").configure({})
    root = make_root(tmp_path / "root")
    for folder in (tmp_path, *tmp_path.parents):  # pytest's own folders are closed to others
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    with service(place) as running:
        built = running.command(
            "template", "build", "mine", "--setup", "echo 1 > ~/a", "--from", str(root), "--env", "X=y"
        )
        assert built.returncode == 0, built.stderr
        created = running.command("sandbox", "create", "--template", "mine", "--name", "box")
        assert created.returncode == 0, created.stderr
        running.command("template", "remove", "mine")
        use = ("sandbox", "run", "--state-dir", str(place.state), "--in", "box")
        used = headstart(*use, "--", 'cat ~/a; echo "$X $0"; ls -d /usr')
        assert used.stdout == "1\ny sh\n", used.stderr
        assert json.loads(running.command("sandbox", "show", "box").stdout)["template"] == "mine"
        again = running.command("sandbox", "create", "--template", "mine")
        assert (again.returncode, again.stdout) == (2, "")
        assert again.stderr.startswith("error: template: there is no template 'mine'\nhint: ")
        refused = headstart(*use, "--template", "other", "--", "true")
        assert refused.stderr.startswith("error: --template: box has been made already\n")


def test_a_sandbox_that_outlives_the_service_goes_on_with_the_template_that_it_was_started_from(tmp_path: Path) -> None:
    place = Place(folder=tmp_path / "place").configure({})
    use = ("sandbox", "run", "--state-dir", str(place.state), "--in", "box", "--")
    layers, kept = place.state / "templates/layers", place.state / "templates/kept"
    with service(place) as running:
        assert running.command("template", "build", "mine", "--setup", "echo 1 > ~/a; echo 1 > ~/b").returncode == 0
        assert running.command("sandbox", "create", "--template", "mine", "--name", "box").returncode == 0
        assert headstart(*use, "cat ~/a; echo 2 > ~/b").stdout == "1\n"
        if not kept.exists():
            pytest.skip("no sandbox outlives the service here")
    anew = ("template", "build", "mine", "--setup", "echo new > ~/a", "--state-dir", str(place.state))
    assert headstart(*anew).returncode == 0
    assert len(list(layers.iterdir())) == 2
    with service(place) as running:
        assert headstart(*use, "cat ~/a ~/b").stdout == "1\n2\n"
        running.command("template", "remove", "mine")
    with service(place) as running:
        assert headstart(*use, "cat ~/a ~/b").stdout == "1\n2\n"
        assert running.command("sandbox", "kill", "box").returncode == 0
        assert list(layers.iterdir()) == []
        assert list(kept.iterdir()) == []
