"""One end of a JSON-RPC conversation, against a scripted other end."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest
from anyio.abc import TaskGroup
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY

from headstart.clock import ManualClock
from headstart.ids import ResourceId
from headstart.runtime import rpc
from headstart.runtime.contract import ClientChannel, JsonObject
from headstart.runtime.outbox import LinkClosed, Outgoing
from headstart.runtime.rpc import Exchange, Peer

from .conftest import RecordingChannel

pytestmark = pytest.mark.anyio


@dataclass
class Wire:
    """What the peer has sent; a message counts as written at once."""

    sent: list[JsonObject] = field(default_factory=list[JsonObject])
    open: bool = True

    async def send(self, item: Outgoing) -> None:
        await anyio.lowlevel.checkpoint()
        if not self.send_nowait(item):
            raise LinkClosed

    def send_nowait(self, item: Outgoing) -> bool:
        if self.open:
            self.sent.append(item.message)
            if item.on_sent is not None:
                item.on_sent()
        return self.open


@dataclass
class Holder:
    """The owner of the conversation."""

    heard: list[str] = field(default_factory=list[str])
    channel: ClientChannel | None = None

    def notified(self, method: str, params: JsonObject | None) -> None:
        self.heard.append(method)

    def fallback_channel(self) -> ClientChannel | None:
        return self.channel


@dataclass
class Scene:
    peer: Peer
    wire: Wire
    holder: Holder
    clock: ManualClock
    tasks: TaskGroup
    answers: list[Exchange | Exception] = field(default_factory=list[Exchange | Exception])

    async def ask(self, method: str = "tools/call", params: JsonObject | None = None, **more: ClientChannel) -> None:
        """Begin a request; returns once it was sent."""
        before = len(self.wire.sent)
        self.tasks.start_soon(self._ask, method, params, more.get("channel"))
        with anyio.fail_after(5):
            while len(self.wire.sent) == before:
                await anyio.lowlevel.checkpoint()

    async def _ask(self, method: str, params: JsonObject | None, channel: ClientChannel | None) -> None:
        try:
            self.answers.append(await self.peer.request(method, params, channel=channel))
        except (MCPError, LinkClosed) as exc:
            self.answers.append(exc)

    async def answered(self, count: int = 1) -> None:
        with anyio.fail_after(5):
            while len(self.answers) < count:
                await anyio.lowlevel.checkpoint()

    async def has_sent(self, count: int) -> JsonObject:
        with anyio.fail_after(5):
            while len(self.wire.sent) < count:
                await anyio.lowlevel.checkpoint()
        return self.wire.sent[count - 1]


@asynccontextmanager
async def scene() -> AsyncGenerator[Scene]:
    wire, holder, clock = Wire(), Holder(), ManualClock()
    async with anyio.create_task_group() as tasks:
        peer = Peer(server=ResourceId("s"), outbox=wire, owner=holder, clock=clock, tasks=tasks)
        yield Scene(peer, wire, holder, clock, tasks)
        tasks.cancel_scope.cancel()


async def test_an_answer_is_the_servers_own_object_with_its_times() -> None:
    async with scene() as it:
        it.clock.advance(1.0)
        await it.ask(params={"name": "x"})
        it.clock.advance(2.0)
        result: JsonObject = {"later": 1, "content": [], "z": None}
        assert it.peer.receive({"jsonrpc": "2.0", "id": 1, "result": result}, size_bytes=70)
        await it.answered()
    assert it.wire.sent == [{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x"}}]
    assert it.answers == [Exchange(result=result, sent_s=1.0, answered_s=3.0, result_bytes=70)]


async def test_what_comes_before_an_answer_reaches_the_client_before_it_in_order() -> None:
    client = RecordingChannel()
    async with scene() as it:
        await it.ask(params={"_meta": {"progressToken": "tok", "other": 1}}, channel=client)
        it.peer.receive(notification("notifications/progress", {"progressToken": 1, "progress": 1}))
        it.peer.receive(notification("notifications/message", {"data": "log"}))
        it.peer.receive(notification("notifications/progress", {"progressToken": 1, "progress": 2}))
        it.peer.receive({"jsonrpc": "2.0", "id": 1, "result": {}})
        await it.answered()
    assert it.wire.sent[0]["params"]["_meta"] == {"progressToken": 1, "other": 1}
    assert client.told == [
        ("notifications/progress", {"progressToken": "tok", "progress": 1}),
        ("notifications/message", {"data": "log"}),
        ("notifications/progress", {"progressToken": "tok", "progress": 2}),
    ]


async def test_two_clients_may_use_the_same_progress_token() -> None:
    one, two = RecordingChannel(), RecordingChannel()
    async with scene() as it:
        await it.ask(params={"_meta": {"progressToken": "t"}}, channel=one)
        await it.ask(params={"_meta": {"progressToken": "t"}}, channel=two)
        it.peer.receive(notification("notifications/progress", {"progressToken": 1, "progress": 5}))
        it.peer.receive({"jsonrpc": "2.0", "id": 1, "result": {}})
        it.peer.receive({"jsonrpc": "2.0", "id": 2, "result": {}})
        await it.answered(2)
    assert (len(one.told), len(two.told)) == (1, 0)


async def test_a_client_that_takes_nothing_does_not_stop_the_reader_nor_lose_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rpc, "MAX_ARRIVALS", 10)
    async with scene() as it:
        await it.ask(params={"_meta": {"progressToken": "t"}}, channel=RecordingChannel())
        for number in range(100):
            it.peer.receive(notification("notifications/progress", {"progressToken": 1, "progress": number}))
        it.peer.receive({"jsonrpc": "2.0", "id": 1, "result": {"kept": True}})
        await it.answered()
    assert it.peer.dropped_notifications == 90
    assert isinstance(it.answers[0], Exchange)


async def test_cancelling_tells_the_server_and_a_late_answer_is_no_junk() -> None:
    async with scene() as it:
        with anyio.move_on_after(0.01):
            await it.peer.request("tools/call", {})
        told = it.wire.sent[1]
        assert it.peer.receive({"jsonrpc": "2.0", "id": 1, "result": {}})
        assert it.peer.open_requests == 0
    assert told["method"] == "notifications/cancelled"
    assert told["params"]["requestId"] == 1


async def test_the_servers_error_is_raised_as_it_sent_it() -> None:
    async with scene() as it:
        await it.ask()
        it.peer.receive({"jsonrpc": "2.0", "id": 1, "error": {"code": -32042, "message": "m", "data": {"u": 1}}})
        await it.answered()
    error = it.answers[0]
    assert isinstance(error, MCPError)
    assert (error.code, error.message, error.data) == (-32042, "m", {"u": 1})


@pytest.mark.parametrize("error", ["text", {}, {"code": "x"}, {"message": 3}])
async def test_an_error_of_the_wrong_shape_is_an_error_all_the_same(error: object) -> None:
    async with scene() as it:
        await it.ask()
        it.peer.receive({"jsonrpc": "2.0", "id": "1", "error": error})
        await it.answered()
    assert isinstance(it.answers[0], MCPError)


async def test_closing_fails_every_open_request_and_every_later_one() -> None:
    async with scene() as it:
        await it.ask()
        await it.ask()
        it.peer.close()
        await it.answered(2)
        with pytest.raises(LinkClosed):
            await it.peer.request("ping", None)
    assert [type(answer) for answer in it.answers] == [LinkClosed, LinkClosed]


async def test_a_servers_request_is_answered_by_the_client_of_the_newest_open_request() -> None:
    old = RecordingChannel(answers={"sampling/createMessage": {"by": "old"}})
    new = RecordingChannel(answers={"sampling/createMessage": {"by": "new"}})
    async with scene() as it:
        await it.ask(channel=old)
        await it.ask(channel=new)
        it.peer.receive({"jsonrpc": "2.0", "id": "srv-1", "method": "sampling/createMessage", "params": {}})
        answer = await it.has_sent(3)
    assert answer == {"jsonrpc": "2.0", "id": "srv-1", "result": {"by": "new"}}


async def test_without_a_client_roots_are_empty_and_sampling_is_refused() -> None:
    async with scene() as it:
        it.peer.receive({"jsonrpc": "2.0", "id": 1, "method": "roots/list"})
        roots = await it.has_sent(1)
        it.peer.receive({"jsonrpc": "2.0", "id": 2, "method": "sampling/createMessage"})
        refused = await it.has_sent(2)
    assert roots["result"] == {"roots": []}
    assert refused["error"]["message"] == "no client is connected that could answer sampling/createMessage"


async def test_a_server_may_take_its_own_request_back() -> None:
    class Slow(RecordingChannel):
        async def request(
            self, method: str, params: JsonObject | None, *, server: ResourceId | None = None
        ) -> JsonObject:
            self._note(method, params)
            await anyio.sleep_forever()
            return {}

    client = Slow()
    async with scene() as it:
        await it.ask(channel=client)
        it.peer.receive({"jsonrpc": "2.0", "id": 7, "method": "elicitation/create", "params": {}})
        await client.wait_for("elicitation/create")
        it.peer.receive(notification("notifications/cancelled", {"requestId": 7}))
        it.peer.receive({"jsonrpc": "2.0", "id": 8, "method": "ping"})
        assert (await it.has_sent(2))["id"] == 8


class Asked(RecordingChannel):
    """A client that is asked, and answers nothing."""

    async def request(self, method: str, params: JsonObject | None, *, server: ResourceId | None = None) -> JsonObject:
        self._note(method, params)
        await anyio.sleep_forever()
        return {}


async def test_a_servers_request_under_an_id_that_is_open_is_refused_and_asks_nobody() -> None:
    client = Asked()
    async with scene() as it:
        await it.ask(channel=client)
        for _ in range(300):
            it.peer.receive({"jsonrpc": "2.0", "id": 7, "method": "sampling/createMessage", "params": {}})
        refused = await it.has_sent(300)
        await client.wait_for("sampling/createMessage")
    assert (refused["id"], refused["error"]["code"]) == (7, rpc.INVALID_REQUEST)
    assert len(client.told) == 1


async def test_a_server_has_a_bounded_number_of_requests_open() -> None:
    client = Asked()
    async with scene() as it:
        await it.ask(channel=client)
        for number in range(rpc.MAX_SERVER_REQUESTS + 1):
            it.peer.receive({"jsonrpc": "2.0", "id": number, "method": "sampling/createMessage", "params": {}})
        refused = await it.has_sent(2)
    assert refused["id"] == rpc.MAX_SERVER_REQUESTS
    assert refused["error"]["message"] == "too many requests of this server are open"


async def test_a_question_that_cannot_be_asked_is_refused_and_the_conversation_goes_on() -> None:
    class Broken(RecordingChannel):
        async def request(
            self, method: str, params: JsonObject | None, *, server: ResourceId | None = None
        ) -> JsonObject:
            raise ValueError("no client's answer may do this")

    async with scene() as it:
        await it.ask(channel=Broken())
        it.peer.receive({"jsonrpc": "2.0", "id": 7, "method": "elicitation/create", "params": {}})
        refused = await it.has_sent(2)
        it.peer.receive({"jsonrpc": "2.0", "id": 1, "result": {}})
        await it.answered()
    assert (refused["id"], refused["error"]["code"]) == (7, rpc.INTERNAL_ERROR)
    assert isinstance(it.answers[0], Exchange)


@pytest.mark.parametrize("number", ["9" * 5_000, True, 1.0, None])
async def test_an_id_that_cannot_be_ours_concerns_no_request(number: object) -> None:
    client = RecordingChannel()
    async with scene() as it:
        await it.ask(params={"_meta": {"progressToken": "t"}}, channel=client)
        assert it.peer.receive({"jsonrpc": "2.0", "id": number, "result": {"wrong": True}})
        assert it.peer.receive(notification("notifications/progress", {"progressToken": number, "progress": 1}))
        meta = {"_meta": {SUBSCRIPTION_ID_META_KEY: number}}
        assert it.peer.receive(notification("notifications/resources/updated", meta))
        assert it.peer.receive({"jsonrpc": "2.0", "id": "1", "result": {}})
        await it.answered()
    assert [answer.result for answer in it.answers if isinstance(answer, Exchange)] == [{}]
    assert client.told == [("notifications/resources/updated", meta)]


async def test_changed_lists_concern_the_owner_even_while_a_request_is_open() -> None:
    client = RecordingChannel()
    async with scene() as it:
        await it.ask(channel=client)
        it.peer.receive(notification("notifications/tools/list_changed", None))
    assert it.holder.heard == ["notifications/tools/list_changed"]
    assert client.told == []


@pytest.mark.parametrize(
    "junk",
    [1, None, "text", {}, {"method": 3}, {"method": "x", "params": [1]}, [{"result": {}}, 5]],
)
async def test_what_is_no_message_is_told_as_such(junk: object) -> None:
    async with scene() as it:
        assert not it.peer.receive(junk)


async def test_a_batch_in_a_batch_is_no_message_however_deep() -> None:
    nested: object = {"jsonrpc": "2.0", "method": "x"}
    for _ in range(2_000):
        nested = [nested]
    async with scene() as it:
        assert not it.peer.receive(nested)


def notification(method: str, params: JsonObject | None) -> JsonObject:
    message: JsonObject = {"jsonrpc": "2.0", "method": method}
    return message if params is None else {**message, "params": params}
