"""Unpacking archives that were made to do harm, and those that were not."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import zstandard

from headstart.errors import ConfigError
from headstart.sandbox.templates.archive import ArchiveLimits
from headstart.sandbox.templates.unpacking import Unpacked, unpack

SMALL = ArchiveLimits(size_bytes=8_000_000, files=100)


def member(name: str, content: bytes | None = None, **facts: object) -> tuple[tarfile.TarInfo, bytes]:
    """A member: a file if it has content, else what `facts` say."""
    info = tarfile.TarInfo(name)
    info.mode = 0o755
    for fact, value in facts.items():
        setattr(info, fact, value)
    if content is not None:
        info.size = len(content)
    return info, content or b""


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.SYMTYPE, linkname=target)


def hard(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.LNKTYPE, linkname=target)


def folder(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.DIRTYPE, mode=mode)


def packed(members: Iterable[tuple[tarfile.TarInfo, bytes]], format: int = tarfile.PAX_FORMAT) -> bytes:  # noqa: A002 as `tarfile` has it
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format, errors="surrogateescape") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


class Ground:
    """A folder to unpack in, beside things that must stay as they are."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = path / "root"
        self.outside = path / "outside"
        self.root.mkdir(parents=True)
        self.outside.mkdir()
        (self.outside / "secret").write_text("secret")

    def another(self) -> Ground:
        """One like this, beside it."""
        return Ground(Path(tempfile.mkdtemp(dir=self.path.parent)))

    def unpack(self, archive: bytes, limits: ArchiveLimits = SMALL) -> Unpacked:
        file = self.path / "root.tar"
        file.write_bytes(archive)
        return unpack(file, self.root, pulse=lambda: None, limits=limits)

    def refusal(self, archive: bytes, limits: ArchiveLimits = SMALL) -> str:
        with pytest.raises(ConfigError) as caught:
            self.unpack(archive, limits)
        told = str(caught.value)
        assert told.startswith(str(self.path / "root.tar"))
        assert told.isprintable()
        assert caught.value.hint
        self.check()
        return told

    def check(self) -> None:
        """Nothing has happened outside."""
        assert sorted(path.name for path in self.path.iterdir()) == ["outside", "root", "root.tar"]
        assert [path.name for path in self.outside.iterdir()] == ["secret"]
        assert (self.outside / "secret").read_text() == "secret"
        assert (self.outside / "secret").stat().st_nlink == 1


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path / "ground")


# ------------------------------------------------------------ leading out


@pytest.mark.parametrize("name", ["../outside/new", "a/../../outside/new", "./../outside/secret", "..", "a/.."])
def test_a_name_that_leads_out_is_refused(name: str, ground: Ground) -> None:
    assert "leads out of the root" in ground.refusal(packed([member("a/x", b"x"), member(name, b"evil")]))


def test_a_name_that_begins_at_the_top_lands_in_the_root(ground: Ground) -> None:
    ground.unpack(packed([member(f"{ground.outside}/secret", b"mine"), folder("/etc"), link("//etc/x", "/y")]))
    assert (ground.root / str(ground.outside)[1:] / "secret").read_text() == "mine"
    assert str((ground.root / "etc/x").readlink()) == "/y"
    ground.check()


@pytest.mark.parametrize("target", ["{outside}", "../outside", "/", "."])
def test_what_goes_through_a_link_is_refused(target: str, ground: Ground) -> None:
    target = target.format(outside=ground.outside)
    for last in (member("way/new", b"evil"), folder("way/new"), link("way/new", "x"), member("way/secret", b"evil")):
        other = ground.another()
        assert "goes through a link" in other.refusal(packed([link("way", target), last]))


def test_what_goes_through_links_to_links_is_refused(ground: Ground) -> None:
    ups = [link(f"a{number}", f"a{number - 1}/.." if number else "..") for number in range(20)]
    assert "goes through a link" in ground.refusal(packed([*ups, member("a19/outside/new", b"evil")]))


def test_a_way_too_long_for_the_kernel_does_not_lead_out(ground: Ground) -> None:
    """What has fooled the filters of `tarfile`: a link whose resolved path exceeds PATH_MAX."""
    long, path, members = "d" * 247, "", list[tuple[tarfile.TarInfo, bytes]]()
    for letter in "abcdefghijklmnop":
        members += [folder(path + long), link(path + letter, long)]
        path += long + "/"
    climbing = link(path + "l" * 254, "../" * 16)
    last = [link("escape", f"{'/'.join('abcdefghijklmnop')}/{'l' * 254}/../outside"), hard("flag", "escape/secret")]
    ground.refusal(packed([*members, climbing, *last, member("flag", b"evil")]))


def test_a_file_is_never_written_through_a_link_of_its_name(ground: Ground) -> None:
    ground.unpack(packed([link("x", str(ground.outside / "secret")), member("x", b"mine")]))
    assert (ground.root / "x").read_text() == "mine"
    assert not (ground.root / "x").is_symlink()
    ground.check()


def test_a_folder_is_never_a_link_of_its_name(ground: Ground) -> None:
    ground.unpack(packed([link("x", str(ground.outside)), folder("x", 0o700), member("x/new", b"mine")]))
    assert (ground.root / "x/new").read_text() == "mine"
    assert stat.S_IMODE(ground.outside.stat().st_mode) != 0o700
    ground.check()


def test_a_file_is_never_written_through_a_hard_link_of_its_name(ground: Ground) -> None:
    ground.unpack(packed([member("a", b"first"), hard("b", "a"), member("b", b"second"), hard("c", "a")]))
    assert [(ground.root / name).read_text() for name in "abc"] == ["first", "second", "first"]
    assert (ground.root / "a").stat().st_nlink == 2


@pytest.mark.parametrize(
    "target",
    ["../outside/secret", "{outside}/secret", "way/secret", "none", "dir", "/", "", "x"],
    ids=["up", "absolute", "through a link", "not there", "a folder", "the root", "nothing", "itself"],
)
def test_a_hard_link_to_anything_but_an_earlier_file_is_refused(target: str, ground: Ground) -> None:
    target = target.format(outside=ground.outside)
    ground.refusal(packed([link("way", str(ground.outside)), folder("dir"), hard("x", target)]))


def test_a_hard_link_to_itself_keeps_the_file(ground: Ground) -> None:
    ground.unpack(packed([member("x", b"content"), hard("x", "./x")]))
    assert (ground.root / "x").read_text() == "content"


def test_a_hard_link_to_a_link_is_one_to_the_link_itself(ground: Ground) -> None:
    ground.unpack(packed([link("way", str(ground.outside / "secret")), hard("x", "way")]))
    assert (ground.root / "x").is_symlink()
    ground.check()


def test_links_are_kept_as_they_are_wherever_they_lead(ground: Ground) -> None:
    targets = {"a": "/usr/bin/gawk", "b": "../../../../etc/shadow", "c": "b", "d": "d", "e": "not there"}
    ground.unpack(packed([link(name, target) for name, target in targets.items()]))
    assert {name: str((ground.root / name).readlink()) for name in targets} == targets


# ------------------------------------------------------------ what is no file


def test_devices_fifos_and_unknown_kinds_are_left_out(ground: Ground) -> None:
    kinds = (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"V")
    odd = [member(f"odd{kind!r}", type=kind, devmajor=1, devminor=3) for kind in kinds]
    found = ground.unpack(packed([*odd, member("even", b"x")]))
    assert found.left_out == len(kinds)
    assert [path.name for path in ground.root.iterdir()] == ["even"]


def test_nothing_is_setuid_and_nobody_else_may_write(ground: Ground) -> None:
    ground.unpack(
        packed([member("su", b"x", mode=0o6777), folder("tmp", 0o7777), member("none", b"x", mode=0), folder("d", 0)])
    )
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in ground.root.iterdir()}
    assert modes == {"su": 0o755, "tmp": 0o755, "none": 0o600, "d": 0o700}


@pytest.mark.parametrize("number", [0, 1000, 2**31 - 1, 2**32 - 1, 2**48, -1])
def test_all_belongs_to_who_unpacks_it_whoever_is_named(number: int, ground: Ground) -> None:
    ground.unpack(packed([member("x", b"x", uid=number, gid=number), folder("d")], tarfile.GNU_FORMAT))
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in ground.root.iterdir()} == {
        (os.geteuid(), os.getegid())
    }


@pytest.mark.parametrize("mtime", ["-1", "nan", "inf", "1e300", "99999999999999", "-1e300", "0", "1600000000.5"])
def test_any_time_can_be_told(mtime: str, ground: Ground) -> None:
    info, content = member("x", b"x")
    info.pax_headers = {"mtime": mtime}
    ground.unpack(packed([(info, content)]))
    assert 0 <= (ground.root / "x").stat().st_mtime <= 2**33


def test_times_are_kept_which_compiled_python_relies_on(ground: Ground) -> None:
    ground.unpack(packed([member("x.py", b"x", mtime=1_600_000_000)]))
    assert (ground.root / "x.py").stat().st_mtime == 1_600_000_000


def test_attributes_are_left_out(ground: Ground) -> None:
    info, content = member("x", b"x")
    info.pax_headers = {"SCHILY.xattr.user.overlay.opaque": "y", "SCHILY.xattr.security.capability": "x" * 20}
    ground.unpack(packed([(info, content)]))
    assert os.listxattr(ground.root / "x") == []


# ------------------------------------------------------------ names


def test_names_that_are_no_text_are_kept_as_they_are(ground: Ground) -> None:
    for format in (tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):  # noqa: A001
        ground.unpack(packed([member("caf\udce9\x1b[31m\n", b"x"), link("l\udcff", "t\udcfe")], format))
    assert sorted(os.fsencode(path.name) for path in ground.root.iterdir()) == [b"caf\xe9\x1b[31m\n", b"l\xff"]
    assert str((ground.root / "l\udcff").readlink()) == "t\udcfe"


def test_a_message_about_such_a_name_can_be_printed(ground: Ground) -> None:
    assert "\\x1b" in ground.refusal(packed([member("\x1b]0;evil\x07/../..", b"x")]))
    assert "\\udcff" in ground.refusal(packed([member("\udcff/../..", b"x")], tarfile.GNU_FORMAT))


def test_a_name_with_nul_or_too_long_or_too_deep_is_refused(ground: Ground) -> None:
    nul, content = member("x", b"x")
    nul.pax_headers = {"path": "a\0b"}
    assert "no path" in ground.refusal(packed([(nul, content)]))
    assert "no path" in ground.refusal(packed([member("/".join(["n" * 200] * 20), b"x")]))
    assert "cannot be written: File name too long" in ground.refusal(packed([member("n" * 300, b"x")]))
    assert "folders deep" in ground.refusal(packed([member("a/" * 500 + "x", b"x")]))


def test_of_two_members_of_one_name_the_later_counts(ground: Ground) -> None:
    ground.unpack(
        packed([member("x", b"1"), member("./x", b"2"), folder("d"), member("d/y", b"3"), folder("d", 0o711)])
    )
    assert (ground.root / "x").read_text() == "2"
    assert (ground.root / "d/y").read_text() == "3"
    assert stat.S_IMODE((ground.root / "d").stat().st_mode) == 0o711


def test_a_folder_does_not_become_a_file(ground: Ground) -> None:
    assert "was a folder before" in ground.refusal(packed([member("d/y", b"3"), member("d", b"x")]))
    assert "goes through a link or a file" in ground.refusal(packed([member("f", b"x"), member("f/y", b"3")]))


# ------------------------------------------------------------ bombs


def test_more_than_is_allowed_is_refused_before_it_is_written(ground: Ground) -> None:
    told = ground.refusal(packed([member("x", bytes(5_000_000)), member("y", bytes(5_000_000))]))
    assert "unpacks to more than 0.008 GB" in told
    assert not (ground.root / "y").exists()


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, zstandard.ZstdCompressor().compress])
def test_a_bomb_is_refused_when_it_has_gone_off_as_far_as_is_allowed(
    compress: Callable[[bytes], bytes], ground: Ground
) -> None:
    archive = compress(packed([member("x", bytes(200_000_000))]))
    assert len(archive) < 400_000
    assert "unpacks to more than" in ground.refusal(archive)
    ground.refusal(compress(bytes(200_000_000)))


def test_more_files_than_are_allowed_are_refused_folders_on_the_way_too(ground: Ground) -> None:
    assert "more than 100 files" in ground.refusal(packed(member(f"{number}", b"") for number in range(101)))
    deep = ground.another()
    assert "more than 100 files" in deep.refusal(
        packed([member(f"a/{'b/' * 60}x", b""), member(f"c/{'d/' * 60}x", b"")])
    )
    left_out = ground.another()
    fifos = [member(f"{number}", type=tarfile.FIFOTYPE) for number in range(101)]
    assert "more than 100 files" in left_out.refusal(packed(fifos))


def test_a_sparse_file_counts_as_what_it_would_be(ground: Ground) -> None:
    """Its holes take nothing in the archive."""
    assert "unpacks to more than" in ground.refusal(sparse(size=1 << 40, parts=[(0, b"x" * 512)]))


def test_a_sparse_file_is_unpacked_with_its_holes(ground: Ground) -> None:
    ground.unpack(sparse(size=6_000_000, parts=[(0, b"a" * 512), (4_000_256, b"b" * 512)]))
    content = (ground.root / "s").read_bytes()
    assert (len(content), content[:512], content[4_000_256:4_000_768]) == (6_000_000, b"a" * 512, b"b" * 512)
    assert content.count(0) == 6_000_000 - 1024
    assert (ground.root / "s").stat().st_blocks * 512 < 4_000_000


@pytest.mark.parametrize(
    "parts", [[(5000, b"x" * 512), (0, b"y" * 512)], [(0, b"x" * 512), (10, b"y" * 512)], [(1 << 50, b"x" * 512)]]
)
def test_a_sparse_file_whose_parts_make_no_sense_does_no_harm(parts: list[tuple[int, bytes]], ground: Ground) -> None:
    try:
        ground.unpack(sparse(size=10_000, parts=parts))
    except ConfigError:
        ground.check()
    else:
        assert (ground.root / "s").stat().st_size == 10_000


def sparse(*, size: int, parts: list[tuple[int, bytes]]) -> bytes:
    """An archive with a sparse file `s`, as GNU tar writes them in pax archives, version 0.1."""
    content = b"".join(part for _, part in parts)
    info, _ = member("s", content)
    info.pax_headers = {
        "GNU.sparse.size": str(size),
        "GNU.sparse.numblocks": str(len(parts)),
        "GNU.sparse.map": ",".join(f"{offset},{len(part)}" for offset, part in parts),
    }
    return packed([(info, content)])


def pax(records: dict[bytes, bytes], *, claimed: int | None = None) -> bytes:
    """A raw extended header, as long as it says or not."""
    body = b"".join(record(key, value) for key, value in records.items())
    info = tarfile.TarInfo("x")
    info.type = tarfile.XHDTYPE
    info.size = len(body) if claimed is None else claimed
    return info.tobuf(tarfile.USTAR_FORMAT) + body + bytes(-len(body) % 512)


def record(key: bytes, value: bytes) -> bytes:
    length = len(key) + len(value) + 3
    total = length + len(str(length + len(str(length))))
    return b"%d %s=%s\n" % (total, key, value)


def test_what_tells_about_a_member_is_bounded_too(ground: Ground) -> None:
    """`tarfile` would keep it in memory, however long it is."""
    roomy = ArchiveLimits(size_bytes=1 << 40, files=100)
    for archive in (
        pax({}, claimed=1 << 32),
        gzip.compress(pax({b"comment": b"x" * 3_000_000}) + packed([member("x", b"x")])),
        b"".join(pax({b"comment": b"x" * 600_000}) for _ in range(4)) + packed([member("x", b"x")]),
        b"".join(pax({b"comment": b"x"}) for _ in range(900)) + packed([member("x", b"x")]),
        packed([member("n" * 2_000_000, b"x")], tarfile.GNU_FORMAT),
    ):
        assert "cannot be read as a tar archive" in ground.refusal(archive, roomy)


MEMORY_BOMB = """
import resource, sys
from pathlib import Path
from headstart.errors import ConfigError
from headstart.sandbox.templates.unpacking import unpack
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    unpack(Path(sys.argv[1]), Path(sys.argv[2]), pulse=lambda: None)
except ConfigError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_unpacking_takes_little_memory_whatever_is_unpacked(ground: Ground) -> None:
    zeros = bytes(64 << 20)
    many = packed(member(f"{number}", b"") for number in range(30_000))
    for name, archive in {
        "long header": gzip.compress(pax({b"comment": zeros * 4})),
        "large file": gzip.compress(packed([member("x", zeros * 4)])),
        "many files": gzip.compress(many),
        "far back": zstd_that_looks_far_back(),
    }.items():
        other = ground.another()
        file = other.path / "root.tar"
        file.write_bytes(archive)
        command = [sys.executable, "-c", MEMORY_BOMB, str(file), str(other.root)]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split("\n")
        assert int(said[-2]) < 40, (name, said)


def test_what_takes_much_memory_to_decompress_is_refused(ground: Ground) -> None:
    far_back = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]
    xz = lzma.compress(packed([member("x", b"x")]), filters=far_back)
    assert "Memory usage limit exceeded" in ground.refusal(xz)
    assert "too much memory" in ground.refusal(zstd_that_looks_far_back())


def zstd_that_looks_far_back() -> bytes:
    parameters = zstandard.ZstdCompressionParameters(window_log=31, enable_ldm=True)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return stream.compress(packed([member("x", b"x")])) + stream.flush()


# ------------------------------------------------------------ what is no archive


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress, zstandard.ZstdCompressor().compress])
def test_every_kind_of_archive_is_unpacked_and_its_digest_told(
    compress: Callable[[bytes], bytes], ground: Ground
) -> None:
    archive = compress(packed([folder("bin"), member("bin/sh", b"#!" * 100_000), link("sh", "bin/sh")]))
    archive += b"what follows" if compress is bytes else b""
    found = ground.unpack(archive)
    assert found.digest == hashlib.sha256(archive).hexdigest()
    assert (found.size_bytes, found.files, found.left_out) == (200_000, 3, 0)
    assert (ground.root / "bin/sh").read_bytes() == b"#!" * 100_000


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, zstandard.ZstdCompressor().compress])
def test_an_archive_that_was_compressed_in_parts_is_one(compress: Callable[[bytes], bytes], ground: Ground) -> None:
    archive = packed([member("a", os.urandom(3_000_000)), member("b", b"end")])
    ground.unpack(compress(archive[:1000]) + compress(archive[1000:2_000_000]) + compress(archive[2_000_000:]))
    assert (ground.root / "b").read_text() == "end"


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress, zstandard.ZstdCompressor().compress])
def test_an_archive_that_is_cut_off_anywhere_is_refused(compress: Callable[[bytes], bytes], ground: Ground) -> None:
    archive = compress(packed([member("a", os.urandom(20_000)), member("b", b"b" * 3000)])[: 512 * 2 + 20_480 + 4096])
    for end in range(0, len(archive) - 600, 511):
        other = ground.another()
        assert "cannot be read as a tar archive" in other.refusal(archive[:end])


@pytest.mark.parametrize(
    "archive",
    [b"", b"text", b"PK\x03\x04" + bytes(2000), bytes(10_240), os.urandom(5000), b"\x1f\x8b" + bytes(100)],
    ids=["nothing", "text", "zip", "zeros", "noise", "broken gzip"],
)
def test_what_is_no_archive_is_told_in_one_line(archive: bytes, ground: Ground) -> None:
    assert "cannot be read as a tar archive" in ground.refusal(archive)


def test_an_archive_whose_middle_was_damaged_is_refused(ground: Ground) -> None:
    archive = bytearray(packed([member("a", b"a" * 512), member("b", b"b" * 512)]))
    archive[1024:1030] = b"XXXXXX"  # the second member's header
    assert "cannot be read as a tar archive" in ground.refusal(bytes(archive))


def test_whoever_gives_up_while_it_is_unpacked_is_heard(ground: Ground) -> None:
    class GaveUp(BaseException):
        pass

    def pulse() -> None:
        if any(ground.root.iterdir()):
            raise GaveUp

    file = ground.path / "root.tar"
    file.write_bytes(packed(member(f"{number}", os.urandom(1_000_000)) for number in range(20)))
    with pytest.raises(GaveUp):
        unpack(file, ground.root, pulse=pulse)
    assert len(list(ground.root.iterdir())) < 20
