"""Files go into a sandbox that lives in the service and come out, as it is typed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.cli.sandboxes.typing_at import Service, on_terminal
from tests.machine import may_make_namespaces

pytestmark = pytest.mark.skipif(
    not may_make_namespaces(), reason="the local backend cannot run here: this user may make no namespaces"
)


def test_files_go_in_and_come_out_with_their_modes(service: Service, tmp_path: Path) -> None:
    name = service.create()
    given = tmp_path / "script"
    given.write_bytes(b"\x00\xff" * 1_000)
    given.chmod(0o750)
    assert service.do("cp", str(given), f"{name}:").told == (0, "", [])
    assert service.do("cp", str(given), f"{name}:other").told == (0, "", [])
    assert service.do("run", "--in", name, "stat -c '%a %s' script other").out == b"750 2000\n750 2000\n"
    assert service.do("cp", f"{name}:script", str(tmp_path / "back")).told == (0, "", [])
    assert service.do("cp", f"{name}:script", str(tmp_path / "folder/")).status in {0, 1}
    assert (tmp_path / "back").read_bytes() == given.read_bytes()
    assert (tmp_path / "back").stat().st_mode & 0o777 == 0o750
    (tmp_path / "into").mkdir()
    assert service.do("cp", f"{name}:/home/sandbox/script", str(tmp_path / "into")).told == (0, "", [])
    assert [each.name for each in (tmp_path / "into").iterdir()] == ["script"]
    (tmp_path / "link").symlink_to(given)
    assert service.do("cp", str(tmp_path / "link"), f"{name}:linked").told == (0, "", [])
    assert service.do("run", "--in", name, "stat -c '%F %s' linked").out == b"regular file 2000\n"


ODD = (b"a b", b"new\nline", b"\xff\xfe", b"-dash", b"a:b", b"\x1b[31mred", "é".encode(), b"'\"$`\\")


def test_folders_go_in_and_come_out_whole_whatever_is_in_them_is_called(service: Service, tmp_path: Path) -> None:
    name = service.create()
    given = tmp_path / "given"
    (given / "below" / "empty").mkdir(parents=True)
    for odd in ODD:
        Path(os.fsdecode(os.fsencode(given / "below") + b"/" + odd)).write_bytes(odd)
    (given / "link").symlink_to("below")
    os.mkfifo(given / "fifo")
    (given / "below").chmod(0o700)
    refused = service.do("cp", str(given), f"{name}:")
    assert refused.told == (2, "", [f"error: {given}: is a folder", "hint: copy it with -r"])
    assert service.do("ls", name).json["files"] == []
    done = service.do("cp", "-r", str(given), f"{name}:")
    assert (done.status, sorted(done.err.splitlines())) == (
        0,
        [
            f"passed over: {given}/fifo is neither a file nor a folder",
            f"passed over: {given}/link is a link (tar keeps those)",
        ],
    )
    listed = service.do("ls", f"{name}:given/below").json["files"]
    assert sorted(os.fsencode(each["name"]) for each in listed) == sorted([*ODD, b"empty"])
    assert service.do("cp", "-r", f"{name}:given", str(tmp_path / "back")).told == (0, "", [])
    for odd in ODD:
        assert Path(os.fsdecode(os.fsencode(tmp_path / "back" / "below") + b"/" + odd)).read_bytes() == odd
    assert (tmp_path / "back" / "below" / "empty").is_dir()
    with on_terminal(service, "ls", f"{name}:given/below") as terminal:
        assert terminal.ends() == 0
        assert len(terminal.shown.splitlines()) == len(listed)
        assert b"\x1b[31m" not in terminal.shown


@pytest.mark.parametrize("odd", ODD)
def test_a_file_of_any_name_can_be_named(odd: bytes, service: Service, tmp_path: Path) -> None:
    name = service.create()
    path = os.fsencode(tmp_path) + b"/" + odd
    Path(os.fsdecode(path)).write_bytes(b"content")
    assert service.do("cp", path, f"{name}:").told == (0, "", [])
    assert service.do("cp", name.encode() + b":" + odd, str(tmp_path / "back")).told == (0, "", [])
    assert (tmp_path / "back").read_bytes() == b"content"


def test_what_cannot_be_copied_is_told_and_leaves_what_was_there(service: Service, tmp_path: Path) -> None:
    name = service.create()
    (tmp_path / "kept").write_text("kept")
    nothing = service.do("cp", f"{name}:nonesuch", str(tmp_path / "kept"))
    assert nothing.told == (1, "", ["error: nonesuch: No such file or directory"])
    assert (tmp_path / "kept").read_text() == "kept"
    assert service.do("cp", str(tmp_path / "none"), f"{name}:").told == (
        1,
        "",
        [f"error: {tmp_path}/none: No such file or directory"],
    )
    done = service.do("cp", f"{name}:/etc/passwd", str(tmp_path / "no" / "such"))
    assert done.told == (1, "", [f"error: {tmp_path}/no: No such file or directory"])
    refused = service.do("cp", str(tmp_path / "kept"), f"{name}:/usr/kept")
    assert (refused.status, refused.err.splitlines()[0][:16]) == (1, "error: /usr/kept")
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]


def test_a_target_that_ends_in_a_slash_is_a_folder_that_is_there_or_a_copy_s_name(
    service: Service, tmp_path: Path
) -> None:
    name = service.create()
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "f").write_text("content")
    refused = service.do("cp", str(tmp_path / "given" / "f"), f"{name}:none/")
    assert refused.told == (
        1,
        "",
        [
            "error: none/: there is no such folder in the sandbox",
            "hint: make it first: headstart sandbox run --in SANDBOX mkdir -p none/",
        ],
    )
    assert service.do("ls", name).json["files"] == []
    assert service.do("cp", "-r", str(tmp_path / "given"), f"{name}:copy/").told == (0, "", [])
    assert service.do("cp", str(tmp_path / "given" / "f"), f"{name}:copy/").told == (0, "", [])
    assert service.do("run", "--in", name, "find . -type f").out == b"./copy/f\n"
    out = service.do("cp", f"{name}:copy/f", f"{tmp_path}/none/")
    assert out.told == (1, "", [f"error: {tmp_path}/none/: there is no such folder", "hint: make it first"])
    assert service.do("cp", "-r", f"{name}:copy", f"{tmp_path}/back/").told == (0, "", [])
    assert (tmp_path / "back" / "f").read_text() == "content"
    service.do("run", "--in", name, "ln -s f copy/l")
    linked = service.do("cp", "-r", f"{name}:copy", f"{tmp_path}/again")
    assert linked.told == (0, "", ["passed over: /home/sandbox/copy/l is a link (tar keeps those)"])


def test_what_is_no_file_is_not_copied_in_silence(service: Service, tmp_path: Path) -> None:
    name = service.do("create", "--quiet").out.decode().strip()
    assert service.do("run", "--in", name, "ln -s /etc l; mkfifo p").status == 0
    for path, kind in (("l", "link"), ("p", "other")):
        done = service.do("cp", f"{name}:{path}", str(tmp_path))
        assert done.told[:2] == (2, "")
        assert done.err.startswith(f"error: /home/sandbox/{path}: is no file and no folder but a {kind}\nhint: ")
    assert list(tmp_path.iterdir()) == []


def test_no_link_that_a_sandbox_puts_into_its_mount_leads_what_is_copied_elsewhere(
    service: Service, tmp_path: Path
) -> None:
    """What is mounted writable is the sandbox's, but its links mean something else here than in there."""
    mounted, outside = tmp_path / "mounted", tmp_path / "outside"
    for folder in (mounted, outside):
        folder.mkdir()
    mounted.chmod(0o777)  # where ids cannot be mapped, a sandbox is somebody else
    (outside / "key").write_text("secret")
    name = service.create("--mount", f"{mounted}:rw")
    made = f"mkdir -p out/below; echo stolen > out/key; echo stolen > out/below/key; cd {mounted}; ln -s {outside} out"
    assert service.do("run", "--in", name, made).status == 0
    done = service.do("cp", "-r", f"{name}:out", str(mounted))
    assert done.told == (1, "", [f"error: {mounted}/out: Not a directory"])
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"key": "secret"}
    assert service.do("run", "--in", name, f"cd {mounted}; ln -s {outside}/key key").status == 0
    done = service.do("cp", "-r", str(mounted), f"{name}:back")
    assert (done.status, len(done.err.splitlines())) == (0, 2), "both are passed over"
    assert service.do("ls", f"{name}:back").json["files"] == []


def test_what_has_no_name_is_not_laid_over_the_folder_that_it_would_be_copied_to(
    service: Service, tmp_path: Path
) -> None:
    name = service.create()
    (tmp_path / "into").mkdir()
    done = service.do("cp", "-r", f"{name}:/etc/..", str(tmp_path / "into"))
    assert done.told == (2, "", ["error: /etc/..: has no name to be copied to", "hint: name it by where it is"])
    assert [path.name for path in tmp_path.iterdir()] == ["into"]
    assert list((tmp_path / "into").iterdir()) == []


def test_folders_without_end_are_refused(service: Service, tmp_path: Path) -> None:
    name = service.create()
    deep = "for i in $(seq 900); do mkdir d; cd d; done"
    assert service.do("run", "--in", name, deep).status == 0
    done = service.do("cp", "-r", f"{name}:d", str(tmp_path))
    assert (done.status, done.err.splitlines()[1:]) == (2, ["hint: copy it with tar"])
    assert "is more than 200 folders deep" in done.err
