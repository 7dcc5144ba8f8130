import gzip
from collections.abc import Callable, Sequence

import anyio
import anyio.lowlevel
import pytest

from headstart.clock import ManualClock
from headstart.core.stream import (
    GenerationEnded,
    GenerationOutcome,
    GenerationStarted,
    ModelEvent,
    TextArrived,
    TextKind,
    ToolCallArgumentsArrived,
)
from headstart.ids import GenerationId, PrincipalId, SequentialIds
from headstart.proxy.formats import ChatCompletions, RequestFacts, ResponseReader
from headstart.proxy.headers import Header
from headstart.proxy.reading import GenerationReading, ModelReader, ReadingLimits, generations
from headstart.proxy.reading.generations import NOTES_AT_ONCE, PATIENCE_S, PAUSE_S
from headstart.proxy.reading.parsing import Parsing
from headstart.proxy.statistics import ProxyStatistics, Tally

CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
SSE: list[Header] = [(b"Content-Type", b"text/event-stream")]


class Bench:
    """A reader whose task does not run: tests decide when it reads."""

    def __init__(self, **limits: int) -> None:
        self.events: list[ModelEvent] = []
        self.first_event = anyio.Event()
        self.tally = Tally()
        self.clock = ManualClock(monotonic_s=5.0)
        self.reader = ModelReader(
            self._observe,
            clock=self.clock,
            ids=SequentialIds(),
            tally=self.tally,
            limits=ReadingLimits(**limits),
        )

    def _observe(self, event: ModelEvent) -> None:
        self.events.append(event)
        self.first_event.set()

    def open(self, *, body: bytes = b"{}", headers: Sequence[Header] = (), at_s: float = 1.0) -> GenerationReading:
        reading = self.reader.open(ChatCompletions(), route="POST /chat/completions", at_s=at_s)
        reading.request_bytes(body)
        reading.request_complete(session=None, principal=PrincipalId("p"), headers=headers)
        return reading

    def ended(self) -> GenerationOutcome:
        last = self.events[-1]
        assert isinstance(last, GenerationEnded)
        assert sum(isinstance(event, GenerationEnded) for event in self.events) == 1
        return last.outcome

    def told(self) -> ProxyStatistics:
        return self.tally.snapshot(queued_bytes=self.reader.queued_bytes)


def test_a_generation_is_read_from_request_to_end_with_the_times_of_its_bytes() -> None:
    bench = Bench()
    reading = bench.open()
    reading.response_started(2.0, status=200, headers=SSE)
    reading.response_bytes(3.0, CHUNK)
    reading.response_bytes(4.0, DONE)
    reading.ended(5.0, GenerationOutcome.COMPLETED)
    bench.reader.drain()
    generation = GenerationId("gen_1")
    assert bench.events[1:] == [
        TextArrived(at_s=3.0, generation=generation, text="hi"),
        GenerationEnded(at_s=4.0, generation=generation, outcome=GenerationOutcome.COMPLETED),
    ]
    assert isinstance(bench.events[0], GenerationStarted)
    assert bench.events[0].at_s == 1.0


@pytest.mark.parametrize("plain", [b"\n", b"data: x\n\n", b"data:\n"])
def test_a_bomb_among_compressed_responses_is_given_up_before_it_takes_long(plain: bytes) -> None:
    bench = Bench()
    reading = bench.open()
    reading.response_started(2.0, status=200, headers=[*SSE, (b"Content-Encoding", b"gzip")])
    reading.response_bytes(3.0, gzip.compress(plain * 4_000_000))
    reading.ended(5.0, GenerationOutcome.COMPLETED)
    bench.reader.drain()
    assert bench.ended() is GenerationOutcome.UNREADABLE
    assert [one.reason for one in bench.told().unread] == ["it decompresses to more than is read"]


def test_much_at_once_is_read_in_pieces_to_the_same_end() -> None:
    bench = Bench(piece_bytes=10)
    reading = bench.open()
    reading.response_started(2.0, status=200, headers=SSE)
    reading.response_bytes(3.0, CHUNK * 3 + DONE)
    assert bench.told().queued_bytes > len(CHUNK * 3 + DONE)
    bench.reader.drain()
    assert bench.ended() is GenerationOutcome.COMPLETED
    assert "".join(event.text for event in bench.events if isinstance(event, TextArrived)) == "hi" * 3
    assert bench.told().queued_bytes == 0


def test_who_looks_at_what_a_client_did_in_answer_has_everything_read_before() -> None:
    bench = Bench()
    bench.reader.catch_up()
    reading = bench.open()
    reading.response_started(2.0, status=200, headers=SSE)
    reading.response_bytes(3.0, CHUNK)
    reading.response_bytes(4.0, DONE)
    bench.reader.catch_up()
    assert bench.ended() is GenerationOutcome.COMPLETED
    assert bench.told().queued_bytes == 0


@pytest.mark.anyio
async def test_the_reader_goes_on_after_somebody_caught_up_for_it() -> None:
    bench = Bench()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.reader.run)
            await anyio.lowlevel.checkpoint()
            bench.open()
            await anyio.lowlevel.checkpoint()  # it is awake, and stands back
            bench.reader.catch_up()
            assert len(bench.events) == 1
            bench.first_event = anyio.Event()
            await anyio.sleep(2 * PAUSE_S)
            bench.open()
            await bench.first_event.wait()
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (GenerationOutcome.COMPLETED, GenerationOutcome.COMPLETED),
        (GenerationOutcome.UPSTREAM_FAILED, GenerationOutcome.UPSTREAM_FAILED),
        (GenerationOutcome.CLIENT_LEFT, GenerationOutcome.CLIENT_LEFT),
    ],
)
def test_without_done_the_exchange_says_how_it_ended(outcome: GenerationOutcome, expected: GenerationOutcome) -> None:
    bench = Bench()
    reading = bench.open()
    reading.response_started(2.0, status=200, headers=SSE)
    reading.response_bytes(3.0, CHUNK)
    reading.ended(5.0, outcome)
    bench.reader.drain()
    assert bench.ended() is expected


def test_an_error_response_is_the_upstreams_failure() -> None:
    bench = Bench()
    reading = bench.open()
    reading.response_started(2.0, status=429, headers=[(b"content-type", b"application/json")])
    reading.response_bytes(3.0, b'{"error":{}}')
    reading.ended(5.0, GenerationOutcome.COMPLETED)
    bench.reader.drain()
    assert bench.ended() is GenerationOutcome.UPSTREAM_FAILED


@pytest.mark.parametrize(
    ("headers", "body", "reason"),
    [
        (SSE, b"data: {\n\n", "not JSON"),
        ([(b"content-type", b"text/html")], b"<p>", "text/html"),
        ([*SSE, (b"content-encoding", b"dcb")], b"x", "'dcb'"),
        ([*SSE, (b"content-encoding", b"gzip")], b"no gzip", "header"),
    ],
)
def test_what_cannot_be_read_ends_unreadable_and_is_counted(headers: list[Header], body: bytes, reason: str) -> None:
    bench = Bench()
    reading = bench.open()
    reading.response_started(2.0, status=200, headers=headers)
    reading.response_bytes(3.0, body)
    reading.response_bytes(4.0, DONE)
    reading.ended(5.0, GenerationOutcome.COMPLETED)
    bench.reader.drain()
    assert bench.ended() is GenerationOutcome.UNREADABLE
    (unread,) = bench.told().unread
    assert reason in unread.reason
    assert (unread.route, unread.count, bench.told().read) == ("POST /chat/completions", 1, 0)


def test_when_the_queue_is_full_the_generation_is_dropped_and_others_are_read() -> None:
    bench = Bench(queued_bytes=2_000)
    slow, quick = bench.open(), bench.open()
    for reading in (slow, quick):
        reading.response_started(2.0, status=200, headers=SSE)
    for _ in range(1_000):
        slow.response_bytes(3.0, CHUNK)
    assert bench.reader.queued_bytes <= 2_000
    bench.reader.drain()
    quick.response_bytes(4.0, CHUNK + DONE)
    slow.ended(5.0, GenerationOutcome.COMPLETED)
    quick.ended(5.0, GenerationOutcome.COMPLETED)
    bench.reader.drain()
    outcomes = {event.generation: event.outcome for event in bench.events if isinstance(event, GenerationEnded)}
    assert outcomes == {"gen_1": GenerationOutcome.UNREADABLE, "gen_2": GenerationOutcome.COMPLETED}
    assert [one.reason for one in bench.told().unread] == ["reading fell behind"]
    assert bench.reader.queued_bytes == 0


def test_a_request_too_large_to_copy_still_starts_a_generation_that_is_read() -> None:
    bench = Bench(request_bytes=100)
    reading = bench.open(body=b"x" * 101)
    reading.response_started(2.0, status=200, headers=SSE)
    reading.response_bytes(3.0, CHUNK + DONE)
    bench.reader.drain()
    assert bench.ended() is GenerationOutcome.COMPLETED
    assert [one.reason for one in bench.told().unread] == ["request too large to read"]


def test_request_bodies_on_their_way_share_the_bound_and_give_it_back() -> None:
    bench = Bench(queued_bytes=2_000)
    readings = [bench.reader.open(ChatCompletions(), route="", at_s=1.0) for _ in range(10)]
    for reading in readings:
        for _ in range(6):
            reading.request_bytes(b"x" * 100)
    assert 1_000 < bench.reader.queued_bytes <= 2_000
    for reading in readings:
        reading.ended(2.0, GenerationOutcome.CLIENT_LEFT)
    assert bench.reader.queued_bytes == 0


def test_a_response_without_end_is_given_up() -> None:
    bench = Bench(response_bytes=1_000)
    reading = bench.open()
    reading.response_started(2.0, status=200, headers=SSE)
    for _ in range(100):
        reading.response_bytes(3.0, CHUNK)
    bench.reader.drain()
    assert bench.ended() is GenerationOutcome.UNREADABLE
    assert [one.reason for one in bench.told().unread] == ["response too large to read"]


def test_a_request_that_never_was_whole_says_nothing() -> None:
    bench = Bench()
    reading = bench.reader.open(ChatCompletions(), route="", at_s=1.0)
    reading.request_bytes(b"{")
    reading.ended(2.0, GenerationOutcome.CLIENT_LEFT)
    bench.reader.drain()
    assert bench.events == []


def test_session_headers_are_hints_and_credentials_are_nowhere() -> None:
    bench = Bench()
    headers = [(b"x-session-id", b"s7"), (b"authorization", b"Bearer top-secret"), (b"x-api-key", b"top-secret")]
    reading = bench.open(headers=headers)
    bench.reader.drain()
    (started,) = bench.events
    assert isinstance(started, GenerationStarted)
    assert started.hints == ("x-session-id=s7",)
    assert "top-secret" not in repr((started, reading, bench.reader, bench.told()))


class TripsOverEverything:
    """A format with a bug."""

    def matches(self, method: str, path: str) -> bool:
        return True

    def read_request(self, body: bytes) -> RequestFacts:
        raise ZeroDivisionError

    def response_reader(self, generation: GenerationId, *, streamed: bool) -> ResponseReader:
        raise ZeroDivisionError


def test_a_bug_in_a_parser_ends_one_generation_and_not_the_reading() -> None:
    bench = Bench()
    reading = bench.reader.open(TripsOverEverything(), route="POST /x", at_s=1.0)
    reading.request_complete(session=None, principal=PrincipalId("p"), headers=())
    bench.open()
    bench.reader.drain()
    assert isinstance(bench.events[0], GenerationEnded)
    assert bench.events[0].outcome is GenerationOutcome.UNREADABLE
    assert isinstance(bench.events[1], GenerationStarted)


@pytest.mark.anyio
async def test_the_task_reads_without_being_asked_and_notes_its_lag() -> None:
    bench = Bench()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(bench.reader.run)
            bench.open()
            await bench.first_event.wait()
            group.cancel_scope.cancel()
    assert bench.told().parse_lag_s == 4.0


def _delta(fields: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{%b}}]}\n\n' % fields.encode()


def test_text_that_waits_becomes_one_event_with_the_time_of_its_first_piece() -> None:
    bench = Bench()
    reading = bench.open()
    reading.response_started(2.0, status=200, headers=SSE)
    for at_s, fields in enumerate(
        [
            '"reasoning":"so"',
            '"reasoning":"-so"',
            '"content":"he"',
            '"content":"llo"',
            '"tool_calls":[{"index":0,"id":"a","function":{"name":"find","arguments":"{"}}]',
            '"tool_calls":[{"index":0,"function":{"arguments":"\\"q\\":"}}]',
            '"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]',
        ],
        start=3,
    ):
        reading.response_bytes(float(at_s), _delta(fields))
    bench.reader.drain()
    generation = bench.events[0]
    assert isinstance(generation, GenerationStarted)
    texts = [event for event in bench.events if isinstance(event, TextArrived)]
    assert [(event.at_s, event.text, event.kind) for event in texts] == [
        (3.0, "so-so", TextKind.REASONING),
        (5.0, "hello", TextKind.VISIBLE),
    ]
    arguments = [event for event in bench.events if isinstance(event, ToolCallArgumentsArrived)]
    assert [(event.at_s, event.text) for event in arguments] == [(7.0, '{"q":1}')]


def test_generations_take_turns() -> None:
    bench = Bench()
    readings = [bench.open() for _ in range(2)]
    for reading in readings:
        reading.response_started(2.0, status=200, headers=SSE)
        for _ in range(2 * NOTES_AT_ONCE):
            reading.response_bytes(3.0, CHUNK)
    bench.reader.drain()
    order = [event.generation for event in bench.events if isinstance(event, TextArrived)]
    assert order == [order[0], order[1]] * (len(order) // 2)
    assert len(set(order)) == 2


class Paced:
    """A bench whose reader runs, in slices of one generation, and whose pauses are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, generations_waiting: int) -> None:
        monkeypatch.setattr(generations, "SLICE_S", 0.0)
        monkeypatch.setattr(generations, "LATE_SLICE_PER_LAG", 0.0)
        self.bench = Bench()
        self.readings = [self.bench.open(at_s=5.0) for _ in range(generations_waiting)]
        self.read_before_pause: list[int] = []
        self.loop_is_busy = False
        monkeypatch.setattr(self.bench.reader, "_stand_back", self._stand_back)

    @property
    def read(self) -> int:
        return len(self.bench.events)

    async def _stand_back(self) -> bool:
        self.read_before_pause.append(self.read)
        await anyio.lowlevel.checkpoint()
        return self.loop_is_busy

    async def until(self, reached: Callable[[], bool]) -> list[int]:
        """Let the reader run; return how many generations it read in each turn of the loop."""
        turns: list[int] = []
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.bench.reader.run)
                while not reached():
                    before = self.read
                    await anyio.lowlevel.checkpoint()
                    turns.append(self.read - before)
                tasks.cancel_scope.cancel()
        return turns


@pytest.mark.anyio
async def test_reading_goes_on_while_nothing_is_forwarded_and_lets_others_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    paced = Paced(monkeypatch, generations_waiting=20)
    turns = await paced.until(lambda: paced.read == 20)
    assert paced.read_before_pause == [0]
    assert max(turns) == 1


@pytest.mark.anyio
async def test_reading_stands_back_as_soon_as_something_is_forwarded(monkeypatch: pytest.MonkeyPatch) -> None:
    paced = Paced(monkeypatch, generations_waiting=20)

    def forward() -> bool:
        paced.readings[-1].response_bytes(5.0, b": nothing\n\n")
        return paced.read >= 10

    await paced.until(forward)
    assert paced.read_before_pause == list(range(len(paced.read_before_pause)))
    assert len(paced.read_before_pause) >= 10


@pytest.mark.anyio
async def test_a_busy_loop_is_left_alone_until_reading_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    paced = Paced(monkeypatch, generations_waiting=20)
    paced.loop_is_busy = True
    await paced.until(lambda: len(paced.read_before_pause) == 50)
    assert paced.read == 0
    paced.bench.clock.advance(2 * PATIENCE_S)
    paced.bench.reader.put(*_a_note(paced))
    await paced.until(lambda: paced.read >= 10)
    assert paced.read_before_pause[50:] == list(range(len(paced.read_before_pause) - 50)), "a slice after each pause"


def _a_note(paced: Paced) -> tuple[Parsing, float, bytes, int]:
    """Something new, since a reader that is started again waits for that."""
    parsing = Parsing(ChatCompletions(), GenerationId("late"), "", paced.bench.reader.limits, paced.bench.tally)
    return parsing, 5.0, b"", 0
