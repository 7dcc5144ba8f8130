"""What `docker run` takes, with a program in its place that notes what it is asked for."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from headstart.bench.docker import beside_docker

pytestmark = pytest.mark.anyio

DOCKER = """#!/bin/sh
cd {folder} && echo "$*" >> asked
case "$1 $2" in
"version "*) {version} ;;
"image inspect") test -e image || {{ echo "Error: no such image" >&2; exit 1; }} ;;
"import -") cat > image.tar && touch image ;;
"image rm") rm image ;;
"run --rm") {run} ;;
*) exit 64 ;;
esac
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    def as_told(*, version: str = "echo 20.10", run: str = "true") -> Path:
        program = tmp_path / "bin" / "docker"
        program.parent.mkdir()
        program.write_text(DOCKER.format(folder=tmp_path, version=version, run=run))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        return tmp_path

    return as_told


async def create() -> float:
    return 5.0


async def test_containers_and_sandboxes_take_turns_and_the_image_is_made_from_this_machine_and_removed(
    install: Callable[..., Path],
) -> None:
    folder, told = install(), list[str]()
    samples = await beside_docker(create, count=3, tell=told.append)
    assert [sample["series"] for sample in samples] == ["docker", "create_beside_docker"] * 3
    assert all(sample["ms"] > 0 for sample in samples)
    assert told == []
    asked = (folder / "asked").read_text().splitlines()
    run = "run --rm --pull never --network none headstart-bench /bin/true"
    assert asked[-5:] == [run] * 4 + ["image rm --force headstart-bench"], "one to warm up"
    with tarfile.open(folder / "image.tar") as image:
        names = image.getnames()
        assert image.getmember("bin/true").isfile()
        assert all(member.isfile() and member.size for member in image), "no links, which lead nowhere in there"
    assert any("libc" in name for name in names) or names == ["bin/true"]


async def test_an_image_that_a_killed_bench_has_left_is_used_and_removed(install: Callable[..., Path]) -> None:
    folder = install()
    (folder / "image").touch()
    assert len(await beside_docker(create, count=1, tell=pytest.fail)) == 2
    assert not (folder / "image").exists()
    assert "import" not in (folder / "asked").read_text()


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"version": "echo 'Cannot connect to the Docker daemon' >&2; exit 1"}, "Cannot connect to the Docker daemon"),
        ({"run": "echo 'OCI runtime create failed' >&2; echo more >&2; exit 125"}, "OCI runtime create failed"),
        ({"run": "exit 3"}, "status 3"),
    ],
    ids=["no daemon", "no containers", "no word"],
)
async def test_a_docker_that_cannot_run_it_is_told_in_one_line_and_keeps_no_image(
    answers: dict[str, str], reason: str, install: Callable[..., Path]
) -> None:
    folder, told = install(**answers), list[str]()
    assert await beside_docker(create, count=3, tell=told.append) == []
    [line] = told
    assert line.startswith("docker_run_ms is null: ")
    assert line.endswith(reason)
    assert not (folder / "image").exists()


async def test_without_a_docker_on_the_path_there_is_nothing_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    told = list[str]()
    assert await beside_docker(create, count=3, tell=told.append) == []
    [line] = told
    assert line.startswith("docker_run_ms is null: no program docker")


async def test_an_error_of_the_sandbox_is_not_told_as_one_of_docker(install: Callable[..., Path]) -> None:
    async def fail() -> float:
        raise ZeroDivisionError

    folder = install()
    with pytest.raises(ZeroDivisionError):
        await beside_docker(fail, count=3, tell=pytest.fail)
    assert not (folder / "image").exists()
