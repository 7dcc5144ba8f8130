"""Install prefixes: written to inside, unchanged outside; in forks of a zygote, and on an overlay, too."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from tests.machine import as_root_of_namespaces

import headstart
from headstart.backends.contract import (
    ByteStreams,
    Command,
    Identity,
    Mount,
    MountMode,
    Preload,
    Prepared,
    RunningSandbox,
    Template,
)
from headstart.backends.local import LocalBackend
from headstart.errors import BackendError
from headstart.ids import SandboxId

from .driving import backend_in

pytestmark = pytest.mark.anyio

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
SERVER = """
import sys
for line in sys.stdin:
    try:
        print(eval(line), flush=True)
    except OSError as error:
        print(error, flush=True)
"""
WRITES_WHEN_IMPORTED = """
import pathlib
pathlib.Path(__file__).with_name("written-by-import").touch()
"""


def installed(folder: Path) -> Path:
    """Install a server with a module and some data."""
    prefix = folder / "prefix"
    (prefix / "data").mkdir(parents=True)
    (prefix / "server.py").write_text(SERVER)
    (prefix / "writes.py").write_text(WRITES_WHEN_IMPORTED)
    (prefix / "data" / "given").write_text("given")
    return prefix


def template(prefix: Path, *, modules: Sequence[str] | None, also: Path | None = None) -> Template:
    """Start the server, cold or, with `modules`, forked from a zygote."""
    interpreter, script = os.path.realpath(sys.executable), str(prefix / "server.py")
    base = Path(sys.base_prefix).resolve()
    shown = [prefix, *([base] if not base.is_relative_to("/usr") else []), *([also] if also else [])]
    return Template(
        name="server",
        command=Command(argv=(interpreter, script), env={**ENV, "PYTHONPATH": str(prefix)}),
        mounts=tuple(Mount(source=path, target=path, mode=MountMode.OVERLAY) for path in shown),
        preload=Preload(interpreter=interpreter, modules=tuple(modules), entry=(script,))
        if modules is not None
        else None,
    )


@asynccontextmanager
async def sandbox_of(backend: LocalBackend, prepared: Prepared, name: str) -> AsyncGenerator[RunningSandbox]:
    sandbox = await backend.start(prepared, Identity(sandbox=SandboxId(name)))
    try:
        yield sandbox
    finally:
        await sandbox.aclose()


async def ask(stdio: ByteStreams, question: str) -> str:
    await stdio.stdin.send(question.encode() + b"\n")
    with anyio.fail_after(10):
        return (await stdio.stdout.receive()).decode().strip()


@pytest.fixture(params=[None, ("json",)], ids=["cold", "forked"])
def modules(request: pytest.FixtureRequest) -> Sequence[str] | None:
    return request.param


async def test_a_server_writes_into_its_install_prefix_and_nobody_else_sees_it(
    tmp_path: Path, modules: Sequence[str] | None
) -> None:
    prefix = installed(tmp_path)
    async with backend_in(tmp_path / "state") as backend:
        prepared = await backend.prepare(template(prefix, modules=modules))
        async with (
            sandbox_of(backend, prepared, "sb_1") as first,
            sandbox_of(backend, prepared, "sb_2") as second,
            first.attach() as writing,
            second.attach() as looking,
        ):
            assert await ask(writing, f"open('{prefix}/cache', 'w').write('mine')") == "4"
            assert await ask(writing, f"open('{prefix}/cache').read()") == "mine"
            assert await ask(writing, f"__import__('os').unlink('{prefix}/writes.py')") == "None"
            assert await ask(looking, f"sorted(__import__('os').listdir('{prefix}'))") == (
                "['data', 'server.py', 'writes.py']"
            )
        async with sandbox_of(backend, prepared, "sb_3") as later:
            assert (
                await later.run(Command(argv=("ls", str(prefix)), env=ENV))
            ).stdout == b"data\nserver.py\nwrites.py\n"
        await prepared.aclose()
    assert sorted(path.name for path in prefix.iterdir()) == ["data", "server.py", "writes.py"]


async def test_a_server_changes_what_was_installed_for_itself_alone(
    mappable_path: Path, modules: Sequence[str] | None
) -> None:
    prefix = installed(mappable_path)
    async with backend_in(mappable_path / "state") as backend:
        prepared = await backend.prepare(template(prefix, modules=modules))
        async with sandbox_of(backend, prepared, "sb_1") as sandbox, sandbox.attach() as stdio:
            assert await ask(stdio, f"open('{prefix}/data/given', 'a').write(' and taken')") == "10"
            assert await ask(stdio, f"open('{prefix}/data/given').read()") == "given and taken"
            assert await ask(stdio, f"__import__('os').mkdir('{prefix}/data/made')") == "None"
        await prepared.aclose()
    assert (prefix / "data" / "given").read_text() == "given"
    assert not (prefix / "data" / "made").exists()


async def test_what_preloading_writes_into_the_prefix_is_not_there_for_forks(tmp_path: Path) -> None:
    """As for a cold start, before it has imported the same."""
    prefix = installed(tmp_path)
    async with backend_in(tmp_path / "state") as backend:
        prepared = await backend.prepare(template(prefix, modules=["writes"]))
        async with sandbox_of(backend, prepared, "sb_1") as sandbox, sandbox.attach() as stdio:
            assert await ask(stdio, "'writes' in sys.modules") == "True"
            assert await ask(stdio, f"__import__('os').path.exists('{prefix}/written-by-import')") == "False"
        await prepared.aclose()
    assert not (prefix / "written-by-import").exists()


async def test_forks_have_no_second_way_to_the_plain_prefix(tmp_path: Path) -> None:
    prefix = installed(tmp_path)
    async with backend_in(tmp_path / "state") as backend:
        prepared = await backend.prepare(template(prefix, modules=["json"]))
        async with sandbox_of(backend, prepared, "sb_1") as sandbox:
            done = await sandbox.run(Command(argv=("ls", "-A", "/.headstart/plain"), env=ENV))
            assert (done.status.code, done.stdout) == (0, b"")
        await prepared.aclose()


async def test_forks_write_into_a_prefix_that_holds_mounts_of_others(tmp_path: Path) -> None:
    """A server that is installed beside Headstart: its guest modules are mounts in that prefix."""
    prefix, ours = installed(tmp_path), Path(headstart.__file__).parent
    async with backend_in(tmp_path / "state") as backend:
        prepared = await backend.prepare(template(prefix, modules=["json"], also=ours))
        async with sandbox_of(backend, prepared, "sb_1") as sandbox, sandbox.attach() as stdio:
            assert await ask(stdio, f"open('{ours}/made', 'w').write('x')") == "1"
            assert "confine.py" in await ask(stdio, f"__import__('os').listdir('{ours}/backends/local/guest')")
        await prepared.aclose()
    assert not (ours / "made").exists()


async def test_an_overlay_that_holds_the_services_state_is_not_for_forks(tmp_path: Path) -> None:
    prefix = installed(tmp_path)
    async with backend_in(prefix / "state") as backend:
        with pytest.raises(BackendError, match=f"{prefix} holds the service's own state"):
            await backend.prepare(template(prefix, modules=["json"]))
        prepared = await backend.prepare(template(prefix, modules=None))
        async with sandbox_of(backend, prepared, "sb_1") as sandbox, sandbox.attach() as stdio:
            assert await ask(stdio, f"__import__('os').listdir('{prefix}/state')") == "[]"
        await prepared.aclose()


@as_root_of_namespaces
@pytest.mark.parametrize("user", ["root", "ordinary"])
async def test_all_of_this_holds_where_the_prefix_is_on_an_overlay_itself(user: str) -> None:
    helper = Path(__file__).with_name("on_an_overlay.py")
    command = [sys.executable, str(helper), user, "-rs", "-p", "no:cacheprovider", "-k", "not on_an_overlay", __file__]
    done = await anyio.run_process(command, check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert done.stdout.split()[0].count(b".") >= 6, done.stdout.decode()
