"""From what servers are started: chosen once, remembered, within a share of the memory budget."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from headstart.backends.contract import Preload, Template, Usage
from headstart.backends.zygote import fingerprint
from headstart.config.model import PoolMode, PoolSettings
from headstart.core.events import PrepareForm
from headstart.errors import ServerUnavailable
from headstart.ids import LOCAL_PRINCIPAL, PrincipalId, ResourceId
from headstart.runtime import forms
from headstart.runtime.service import Service
from headstart.runtime.zygotes import CheckedForm, FormCheck
from headstart.testing.fake_backend import FakeBackend
from headstart.testing.fake_mcp import ScriptedServer, ScriptedTool

from .conftest import OpenService, RecordingChannel, call, scope, scripted

pytestmark = pytest.mark.anyio

NOTES = ResourceId("notes")
SCRIPT = ScriptedServer(tools=(ScriptedTool(name="read"),))
PRELOAD = Preload(interpreter="/usr/bin/python3", modules=("os",), entry=("-m", "x"))


class Checker:
    """Stands in for the trial of a form, which needs real processes."""

    def __init__(self, answer: CheckedForm) -> None:
        self.answer = answer
        self.checked: list[str] = []

    async def __call__(self, template: Template, check: FormCheck) -> CheckedForm:
        await anyio.lowlevel.checkpoint()
        self.checked.append(template.name)
        return self.answer


def zygote() -> CheckedForm:
    return CheckedForm(
        form=PrepareForm.ZYGOTE,
        reason="forks",
        preload=PRELOAD,
        zygote_start_s=0.02,
        zygote_cpu_s=0.01,
        zygote_memory_bytes=5_000_000,
        fingerprint=fingerprint(()),
    )


def cold() -> CheckedForm:
    return CheckedForm(form=PrepareForm.COLD, reason="it starts a thread on import", fingerprint=fingerprint(()))


OpenScene = Callable[..., AbstractAsyncContextManager[tuple[Service, FakeBackend]]]


@pytest.fixture
def scene(open_service: OpenService, tmp_path: Path) -> OpenScene:
    @asynccontextmanager
    async def opened(
        *, zygotes: bool = True, forks: bool = True, memory_mb: int = 4_000, **server: Any
    ) -> AsyncGenerator[tuple[Service, FakeBackend]]:
        pool = PoolSettings(mode=PoolMode.ON_DEMAND, zygotes=zygotes, memory_mb=memory_mb)
        settings = scripted("notes", tmp_path, **server)
        async with FakeBackend(programs={"mcp-notes": SCRIPT.program}, zygotes=forks) as backend:
            backend.set_usage("notes", Usage(memory_bytes=60_000_000, cpu_s=0.1, processes=1))
            async with open_service(settings, pool=pool, backend=backend) as service:
                yield service, backend

    return opened


@pytest.fixture
def checker(monkeypatch: pytest.MonkeyPatch) -> Callable[[CheckedForm], Checker]:
    def put(answer: CheckedForm) -> Checker:
        one = Checker(answer)
        monkeypatch.setattr(forms, "choose_form", one)
        return one

    return put


async def read(service: Service, session: str) -> None:
    await service.request(scope(session), NOTES, "tools/call", call("read"), RecordingChannel())


async def test_a_server_that_can_fork_does_so_once_its_zygote_stands(
    scene: OpenScene, checker: Callable[[CheckedForm], Checker]
) -> None:
    checker(zygote())
    async with scene() as (service, backend):
        await read(service, "before")
        status = await service.learn(NOTES, LOCAL_PRINCIPAL)
        await read(service, "after")
        found = await service.statistics()
        started = [start.form.value for start in backend.starts]
    assert (status.form, status.reason) == (PrepareForm.ZYGOTE, "forks")
    assert (started[0], started[-1]) == ("cold", "zygote")
    assert [(one.server, one.memory_bytes) for one in found.zygotes] == [("notes", 60_000_000)]


async def test_a_choice_is_remembered_and_its_zygote_made_again(
    scene: OpenScene, checker: Callable[[CheckedForm], Checker]
) -> None:
    asked = checker(zygote())
    async with scene() as (service, _):
        await service.learn(NOTES, LOCAL_PRINCIPAL)
    async with scene() as (service, backend):
        with anyio.fail_after(5):
            await service.wait_prepared()
        await read(service, "ses")
        assert [start.form.value for start in backend.starts] == ["zygote"]
    assert asked.checked == ["notes"]


class OneAtATime(Checker):
    """Fails if two trials run at once: they would measure each other."""

    running = 0

    async def __call__(self, template: Template, check: FormCheck) -> CheckedForm:
        self.running += 1
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
            assert self.running == 1
        self.running -= 1
        return await super().__call__(template, check)


async def test_servers_are_tried_one_at_a_time_and_their_zygotes_made_again_at_once(
    open_service: OpenService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = OneAtATime(zygote())
    monkeypatch.setattr(forms, "choose_form", asked)
    servers = [scripted(name, tmp_path) for name in ("one", "two")]
    pool = PoolSettings(mode=PoolMode.ON_DEMAND, starts_at_once=2)
    programs = {f"mcp-{server.name}": SCRIPT.program for server in servers}
    async with (
        FakeBackend(programs=programs, zygotes=True) as backend,
        open_service(*servers, pool=pool, backend=backend) as service,
    ):
        for server in servers:
            await service.catalogue(server.name, scope())
        with anyio.fail_after(5):
            await service.wait_prepared()
    assert sorted(asked.checked) == ["one", "two"]
    async with FakeBackend(programs=programs, zygotes=True) as backend:
        hold = backend.hold("prepare", "one")
        async with open_service(*servers, pool=pool, backend=backend) as service:
            with anyio.fail_after(5):
                await hold.wait_reached()
                while [zygote.server for zygote in (await service.statistics()).zygotes] != ["two"]:
                    await anyio.lowlevel.checkpoint()
            hold.release()
    assert sorted(asked.checked) == ["one", "two"]


async def test_a_server_that_starts_cold_says_why(scene: OpenScene, checker: Callable[[CheckedForm], Checker]) -> None:
    checker(cold())
    async with scene() as (service, _):
        status = await service.learn(NOTES, LOCAL_PRINCIPAL)
    assert (status.form, status.reason) == (PrepareForm.COLD, "it starts a thread on import")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"zygote": "never"}, 'its config says zygote = "never"'),
        ({"zygotes": False}, "zygotes are off in [pool]"),
        ({"forks": False}, "the fake backend cannot fork processes here"),
    ],
)
async def test_what_forbids_a_zygote_is_told(
    scene: OpenScene, checker: Callable[[CheckedForm], Checker], given: dict[str, Any], reason: str
) -> None:
    asked = checker(zygote())
    async with scene(**given) as (service, _):
        status = await service.learn(NOTES, LOCAL_PRINCIPAL)
    assert (status.form, status.reason) == (PrepareForm.COLD, reason)
    assert asked.checked == []


async def test_of_two_servers_with_one_launch_spec_each_starts_from_what_its_own_config_says(
    open_service: OpenService, checker: Callable[[CheckedForm], Checker], tmp_path: Path
) -> None:
    checker(zygote())
    forks = scripted("notes", tmp_path)
    never = replace(forks, name=ResourceId("plain"), zygote="never")
    pool = PoolSettings(mode=PoolMode.ON_DEMAND)
    async with (
        FakeBackend(programs={"mcp-notes": SCRIPT.program}, zygotes=True) as backend,
        open_service(forks, never, pool=pool, backend=backend) as service,
    ):
        one, other = [await service.learn(server.name, LOCAL_PRINCIPAL) for server in (forks, never)]
        await service.request(scope("s"), never.name, "tools/call", call("read"), RecordingChannel())
        started = backend.starts[-1].form
    assert (one.form, other.form) == (PrepareForm.ZYGOTE, PrepareForm.COLD)
    assert other.reason == 'its config says zygote = "never"'
    assert started.value == "cold"


@pytest.mark.parametrize("at_once", [1, 2], ids=["one after the other", "at once"])
async def test_two_servers_with_one_launch_spec_are_tried_once_and_have_one_zygote(
    open_service: OpenService, checker: Callable[[CheckedForm], Checker], tmp_path: Path, at_once: int
) -> None:
    asked = checker(zygote())
    one = scripted("notes", tmp_path)
    other = replace(one, name=ResourceId("other"))
    pool = PoolSettings(mode=PoolMode.ON_DEMAND, starts_at_once=at_once)
    async with (
        FakeBackend(programs={"mcp-notes": SCRIPT.program}, zygotes=True) as backend,
        open_service(one, other, pool=pool, backend=backend) as service,
    ):
        for server in (one, other):
            await service.catalogue(server.name, scope())
        with anyio.fail_after(5):
            await service.wait_prepared()
        found = await service.statistics()
    assert [(each.form, each.reason) for each in found.servers] == [(PrepareForm.ZYGOTE, "forks")] * 2
    assert len(asked.checked) == len(found.zygotes) == 1


async def test_zygotes_hold_no_more_than_their_share_of_the_budget(
    scene: OpenScene, checker: Callable[[CheckedForm], Checker]
) -> None:
    checker(zygote())
    async with scene(memory_mb=200) as (service, _):
        status = await service.learn(NOTES, LOCAL_PRINCIPAL)
        found = await service.statistics()
    assert status.form is PrepareForm.COLD
    assert status.reason == "zygotes would hold 60 MB; 50 MB of pool.memory_mb are theirs"
    assert found.zygotes == ()


async def test_who_wants_a_zygote_always_gets_an_error_where_there_can_be_none(
    scene: OpenScene, checker: Callable[[CheckedForm], Checker]
) -> None:
    checker(cold())
    async with scene(zygote="always") as (service, _):
        with pytest.raises(ServerUnavailable, match="none can be made: it starts a thread on import") as caught:
            await read(service, "ses")
    assert caught.value.hint == 'set mcpServers.notes.headstart.zygote to "auto"'


async def test_a_zygote_that_has_died_is_made_again_and_the_start_goes_on_cold(
    scene: OpenScene, checker: Callable[[CheckedForm], Checker]
) -> None:
    checker(zygote())
    async with scene() as (service, backend):
        await service.learn(NOTES, LOCAL_PRINCIPAL)
        backend.fail_start("notes", message="the zygote has died")
        await read(service, "one")
        with anyio.fail_after(5):
            await service.wait_prepared()
        await read(service, "two")
        assert [start.form.value for start in backend.starts][-3:] == ["zygote", "cold", "zygote"]


async def test_a_program_that_changed_on_disk_gets_a_new_zygote(
    scene: OpenScene, checker: Callable[[CheckedForm], Checker], tmp_path: Path
) -> None:
    imported = tmp_path / "module.py"
    imported.write_text("one")
    files = (str(imported),)
    asked = checker(replace(zygote(), files=files, fingerprint=fingerprint(files)))
    async with scene() as (service, _):
        await service.learn(NOTES, LOCAL_PRINCIPAL)
        await service.recheck_zygotes()
        assert asked.checked == ["notes"]
        imported.write_text("another")
        asked.answer = replace(zygote(), files=files, fingerprint=fingerprint(files))
        await service.recheck_zygotes()
        with anyio.fail_after(5):
            await service.wait_prepared()
        status = (await service.statistics()).servers[0]
    assert asked.checked == ["notes", "notes"]
    assert status.form is PrepareForm.ZYGOTE


async def test_a_program_that_changes_often_gets_a_new_zygote_each_time(
    scene: OpenScene, checker: Callable[[CheckedForm], Checker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forms, "MOST_FAILURES", 1)
    program = tmp_path / "mcp-notes"
    files = (str(program),)
    async with scene() as (service, _):
        asked = checker(replace(zygote(), files=files, fingerprint=fingerprint(files)))
        await service.learn(NOTES, LOCAL_PRINCIPAL)
        for text in ("one", "other", "third"):
            program.write_text(text * 2)
            asked.answer = replace(zygote(), files=files, fingerprint=fingerprint(files))
            await service.recheck_zygotes()
            with anyio.fail_after(5):
                await service.wait_prepared()
        found = await service.statistics()
        known = service.servers(LOCAL_PRINCIPAL)[0].learned
    assert found.servers[0].form is PrepareForm.ZYGOTE
    assert len(found.zygotes) == 1
    assert known, "its lists hold until a fresh sandbox says something else"


async def test_a_program_that_is_gone_says_so_and_comes_back(
    scene: OpenScene, checker: Callable[[CheckedForm], Checker], tmp_path: Path
) -> None:
    program = tmp_path / "mcp-notes"
    files = (str(program),)
    async with scene() as (service, _):
        asked = checker(replace(zygote(), files=files, fingerprint=fingerprint(files)))
        await service.learn(NOTES, LOCAL_PRINCIPAL)
        program.unlink()
        await service.recheck_zygotes()
        gone = (await service.statistics()).servers[0]
        program.touch(mode=0o755)
        asked.answer = replace(zygote(), files=files, fingerprint=fingerprint(files))
        back = await service.learn(NOTES, LOCAL_PRINCIPAL)
    assert (gone.form, gone.reason) == (PrepareForm.COLD, f"notes: command '{program}' was not found")
    assert back.form is PrepareForm.ZYGOTE


async def test_deaths_of_zygotes_count_only_in_a_row(
    scene: OpenScene, checker: Callable[[CheckedForm], Checker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forms, "MOST_FAILURES", 1)
    checker(zygote())
    async with scene() as (service, backend):
        await service.learn(NOTES, LOCAL_PRINCIPAL)
        for number in range(3):
            backend.fail_start("notes", message="the zygote has died")
            await read(service, f"fails {number}")
            with anyio.fail_after(5):
                await service.wait_prepared()
            await read(service, f"forks {number}")
        status = (await service.statistics()).servers[0]
    assert status.form is PrepareForm.ZYGOTE


async def test_a_zygote_that_keeps_dying_is_given_up(
    scene: OpenScene, checker: Callable[[CheckedForm], Checker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forms, "MOST_FAILURES", 1)
    checker(zygote())
    async with scene() as (service, backend):
        await service.learn(NOTES, LOCAL_PRINCIPAL)
        for session in ("one", "two"):
            backend.fail_start("notes", message="the zygote has died")
            await read(service, session)
            with anyio.fail_after(5):
                await service.wait_prepared()
        status = (await service.statistics()).servers[0]
    assert (status.form, status.reason) == (
        PrepareForm.COLD,
        "its zygote failed 2 times, the last time: the zygote has died",
    )


async def test_a_bug_in_choosing_is_told_as_the_reason_and_the_next_one_is_chosen(
    scene: OpenScene, checker: Callable[[CheckedForm], Checker], monkeypatch: pytest.MonkeyPatch
) -> None:
    checker(zygote())

    async def broken(template: Template, check: FormCheck) -> CheckedForm:
        raise OSError(f"{template.name} went away")

    async with scene() as (service, _):
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(forms, "choose_form", broken)
            await service.catalogue(NOTES, scope())
            with anyio.fail_after(5):
                await service.wait_prepared()
            reason = (await service.statistics()).servers[0].reason
        status = await service.learn(NOTES, LOCAL_PRINCIPAL)
    assert reason == "headstart failed at choosing: OSError('notes went away')"
    assert status.form is PrepareForm.ZYGOTE


async def test_the_form_of_a_server_is_told_for_each_principal_that_uses_it(
    open_service: OpenService, checker: Callable[[CheckedForm], Checker], tmp_path: Path
) -> None:
    checker(zygote())
    async with (
        FakeBackend(programs={"mcp-notes": SCRIPT.program}, zygotes=True) as backend,
        open_service(
            scripted("notes", tmp_path), pool=PoolSettings(mode=PoolMode.ON_DEMAND), backend=backend, keys=("a", "b")
        ) as service,
    ):
        before = [(one.name, one.reason) for one in (await service.statistics()).servers]
        for key in ("key-a", "key-b"):
            one = scope(f"{key}/s", principal=PrincipalId(key))
            await service.request(one, NOTES, "tools/call", call("read"), RecordingChannel())
        with anyio.fail_after(5):
            await service.wait_prepared()
        found = await service.statistics()
    assert before == [(NOTES, "not looked at yet")]
    assert [(one.principal, one.form, one.reason) for one in found.servers] == [
        ("key-a", PrepareForm.ZYGOTE, "forks"),
        ("key-b", PrepareForm.ZYGOTE, "forks"),
    ]
