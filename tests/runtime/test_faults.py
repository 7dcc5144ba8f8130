"""What goes wrong with servers: a clear error that names what, where and the cure, and nothing else is lost."""

from dataclasses import replace
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from headstart.config.model import PoolMode, PoolSettings, ServerSettings, WarmupCall
from headstart.errors import BudgetExceeded, CatalogueUnavailable, ServerUnavailable, StartTimedOut
from headstart.ids import LOCAL_PRINCIPAL, ResourceId
from headstart.runtime import link
from headstart.runtime.contract import JsonObject
from headstart.runtime.service import Service

from .conftest import NOTES, OpenService, RecordingChannel, call, scope, stdio_server, text_of

pytestmark = pytest.mark.anyio


async def ask(service: Service, tool: str, **arguments: object) -> JsonObject:
    return await service.request(scope(), NOTES, "tools/call", call(tool, **arguments), RecordingChannel())


async def test_what_a_server_wrote_before_it_exited_is_for_the_operator_alone(open_service: OpenService) -> None:
    async with open_service(stdio_server("exits.py")) as service:
        with pytest.raises(ServerUnavailable) as caught:
            await ask(service, "anything")
        (status,) = (await service.statistics()).servers
    assert "notes did not start" in str(caught.value)
    assert "exited with code 3 before its handshake was done" in str(caught.value)
    assert "no API key" not in str(caught.value)
    assert "| Traceback: no API key" in caught.value.detail
    assert "| Traceback: no API key" in (status.last_failure or "")
    assert caught.value.hint is not None
    assert "run it by hand to see why" in caught.value.hint
    assert "with mcpServers.notes.args" in caught.value.hint


async def test_what_is_in_a_servers_arguments_is_not_told_to_models(open_service: OpenService) -> None:
    for failing in ("exits.py", "silent.py"):
        server = stdio_server(failing, start_timeout_s=1.0)
        async with open_service(replace(server, args=(*server.args, "--api-key=sk-secret"))) as service:
            with pytest.raises(ServerUnavailable) as caught:
                await ask(service, "anything")
        assert "sk-secret" not in f"{caught.value} {caught.value.hint}"


async def test_a_server_that_failed_lately_is_not_started_again_at_once(open_service: OpenService) -> None:
    async with open_service(stdio_server("exits.py")) as service:
        with pytest.raises(ServerUnavailable):
            await ask(service, "anything")
        with pytest.raises(ServerUnavailable, match=r"tried again in .* s: .*exited with code 3") as caught:
            await ask(service, "anything")
    assert caught.value.retry_after_s is not None


async def test_a_server_that_never_answers_is_given_up_after_its_deadline(open_service: OpenService) -> None:
    async with open_service(stdio_server("silent.py", start_timeout_s=2.0)) as service:
        with pytest.raises(StartTimedOut) as caught:
            await ask(service, "anything")
    assert "did not answer its handshake within 2 s" in str(caught.value)
    assert "| loading a very large model" in caught.value.detail
    assert caught.value.hint is not None
    assert "mcpServers.notes.headstart.start_timeout_s" in caught.value.hint


async def test_the_lists_of_a_server_that_does_not_start_say_why(open_service: OpenService) -> None:
    async with open_service(stdio_server("exits.py")) as service:
        with pytest.raises(CatalogueUnavailable, match=r"its tools are not known: .*exited with code 3") as caught:
            await service.catalogue(NOTES, scope())
        (entry,) = service.servers(LOCAL_PRINCIPAL)
        (status,) = (await service.statistics()).servers
    assert "no API key" not in f"{caught.value} {entry.problem}"
    assert "| Traceback: no API key" in (status.last_failure or "")


async def test_lists_that_take_long_to_learn_are_not_waited_for_without_end(open_service: OpenService) -> None:
    async with open_service(stdio_server("silent.py"), learn_timeout_s=0.3) as service:
        with pytest.raises(CatalogueUnavailable, match=r"still being learned after 0.3 s") as caught:
            await service.catalogue(NOTES, scope())
    assert "learn_timeout_s" in str(caught.value.hint)
    assert "by hand" in str(caught.value.hint)


async def test_a_command_that_does_not_exist_is_named_with_its_key(open_service: OpenService) -> None:
    missing = ServerSettings(name=NOTES, command="no-such-mcp-server")
    async with open_service(missing) as service:
        with pytest.raises(ServerUnavailable, match="command 'no-such-mcp-server' was not found") as caught:
            await ask(service, "anything")
    assert caught.value.hint is not None
    assert "mcpServers.notes.command" in caught.value.hint


async def test_an_unknown_server_is_told_with_the_known_ones(open_service: OpenService) -> None:
    async with open_service(stdio_server("notes.py")) as service:
        with pytest.raises(ServerUnavailable, match="no server is called 'nots'") as caught:
            await service.request(scope(), ResourceId("nots"), "tools/call", call("x"), RecordingChannel())
    assert caught.value.hint == "the configured ones are notes"


async def test_junk_on_stdout_does_not_disturb_the_conversation(open_service: OpenService) -> None:
    async with open_service(stdio_server("chatty.py")) as service:
        catalogue = await service.catalogue(NOTES, scope())
        result = await ask(service, "hello")
    assert catalogue.tools[0]["x-unknown"] == [1.0, None]
    assert result == {"content": [{"type": "text", "text": "hello"}], "later": {"field": 1}}


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (
            ("chatty.py",),
            ("(the first: '*** chatty server, version 1 ***'). hint: have it log to stderr", "but at SIGTERM"),
        ),
        (("chatty.py", "--stubborn"), ("such lines are skipped", "not at SIGTERM either: it was killed. hint: ")),
    ],
    ids=["chatty", "stubborn"],
)
async def test_the_operator_is_warned_of_a_working_servers_bad_habits_once(
    args: tuple[str, ...], told: tuple[str, ...], open_service: OpenService, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_service(stdio_server(*args)) as service:
        await service.catalogue(NOTES, scope())
        for session in ("one", "two"):
            one = scope(session)
            await service.request(one, NOTES, "tools/call", call("hello"), RecordingChannel())
            await service.close_session(one.session, reason="left")
            await service.wait_stopped(one.session)
    warnings = [record.getMessage() for record in caplog.records if record.name == "headstart.runtime.habits"]
    assert len(warnings) == len(told)
    for warning, part in zip(warnings, told, strict=True):
        assert warning.startswith("notes: it ")
        assert part in warning


async def test_a_server_that_ignores_the_end_of_its_stdin_is_stopped_in_bounded_time(open_service: OpenService) -> None:
    with anyio.fail_after(15):
        async with open_service(stdio_server("chatty.py", "--stubborn")) as service:
            await ask(service, "hello")
    # leaving the service has waited for its end


async def test_a_server_that_dies_in_a_call_is_told_by_it_and_its_lost_state_once(
    open_service: OpenService,
) -> None:
    async with open_service(stdio_server("notes.py")) as service:
        await ask(service, "add_note", text="mine")
        with pytest.raises(ServerUnavailable) as caught:
            await ask(service, "die")
        assert text_of(await ask(service, "read_notes")) == ""
    assert "it exited with code 7 during the call" in str(caught.value)
    assert "about to die of a bug" not in str(caught.value)
    assert "| about to die of a bug" in caught.value.detail
    assert caught.value.hint is not None


async def test_what_a_server_said_in_one_session_is_not_told_in_another(open_service: OpenService) -> None:
    async def until_it_backs_off(service: Service) -> str:
        for number in range(5):
            one = scope(f"s{number}")
            try:
                await service.request(one, NOTES, "tools/call", call("die"), RecordingChannel())
            except ServerUnavailable as refused:
                if refused.retry_after_s is not None:
                    return str(refused)
        raise AssertionError("it was started again and again")

    async with open_service(stdio_server("notes.py")) as service:
        told = await until_it_backs_off(service)
    assert "exited with code 7" in told
    assert "about to die of a bug" not in told


async def test_what_a_failed_call_has_told_is_not_told_again_after_a_restart(open_service: OpenService) -> None:
    async with open_service(stdio_server("notes.py")) as service:
        await ask(service, "add_note", text="mine")
        with pytest.raises(ServerUnavailable):
            await ask(service, "die")
    async with open_service(stdio_server("notes.py")) as service:
        assert text_of(await ask(service, "read_notes")) == ""


async def test_other_calls_of_a_server_that_dies_fail_too(open_service: OpenService) -> None:
    failures: list[str] = []

    async def wait_for_ever(service: Service) -> None:
        with pytest.raises(ServerUnavailable) as caught:
            await ask(service, "never_answer")
        failures.append(str(caught.value))

    async with open_service(stdio_server("notes.py")) as service:
        await ask(service, "read_notes")
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait_for_ever, service)
                with pytest.raises(ServerUnavailable):
                    await ask(service, "die")
    assert "exited with code 7" in failures[0]


async def test_an_answer_of_50_mb_arrives_whole(open_service: OpenService) -> None:
    async with open_service(stdio_server("notes.py")) as service:
        with anyio.fail_after(60):
            result = await ask(service, "big", size_mb=50)
    assert len(text_of(result)) == 50 * 1024 * 1024


async def test_an_answer_over_the_limit_is_told_with_the_limit_and_the_server_is_started_again(
    open_service: OpenService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "MAX_MESSAGE_BYTES", 1024**2)
    async with open_service(stdio_server("notes.py")) as service:
        await ask(service, "add_note", text="mine")
        with pytest.raises(ServerUnavailable, match="notes: it wrote a message of more than 1 MiB") as caught:
            await ask(service, "big", size_mb=2)
        assert text_of(await ask(service, "read_notes")) == ""
    assert caught.value.hint == "ask it for less at once: a fresh one starts, without what this one held"


async def test_a_call_past_its_own_deadline_is_cancelled_and_the_server_lives_on(open_service: OpenService) -> None:
    async with open_service(stdio_server("notes.py", call_timeout_s=1.0)) as service:
        await ask(service, "add_note", text="kept")
        with pytest.raises(ServerUnavailable, match="tools/call got no answer within 1 s and was cancelled") as caught:
            await ask(service, "never_answer")
        assert text_of(await ask(service, "read_notes")) == "kept"
    assert caught.value.hint == "raise mcpServers.notes.headstart.call_timeout_s"


async def test_a_client_that_leaves_in_a_call_cancels_it_at_the_server(open_service: OpenService) -> None:
    async with open_service(stdio_server("notes.py")) as service:
        await ask(service, "add_note", text="kept")
        async with anyio.create_task_group() as client:
            client.start_soon(partial(ask, service, "never_answer"))
            with anyio.fail_after(30):
                while text_of(await ask(service, "unanswered_calls")) != "1":
                    await anyio.lowlevel.checkpoint()  # the other call may not have been sent yet
            client.cancel_scope.cancel()
        assert text_of(await ask(service, "cancelled_calls")) == "1"
        assert text_of(await ask(service, "read_notes")) == "kept"


async def test_a_warm_up_call_that_fails_is_named(open_service: OpenService) -> None:
    warmup = WarmupCall(tool="warm", arguments={"a": 1})
    async with open_service(stdio_server("refusing.py", warmup=warmup)) as service:
        with pytest.raises(ServerUnavailable, match="its warm-up call warm failed: no tool is called warm"):
            await ask(service, "anything")


async def test_a_memory_budget_too_small_for_one_server_says_how_much_is_needed(open_service: OpenService) -> None:
    pool = PoolSettings(mode=PoolMode.ON_DEMAND, memory_mb=10)
    async with open_service(stdio_server("notes.py"), pool=pool) as service:
        with pytest.raises(BudgetExceeded, match=r"notes needs about \d+ MB.*set memory_mb of \[pool\]"):
            await ask(service, "read_notes")
