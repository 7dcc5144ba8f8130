"""The connection, driven byte by byte without a network."""

import asyncio
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.proxy.upstream import ResponseHead, UpstreamBroke, UpstreamConnection

T = TypeVar("T")


class FakeTransport(asyncio.Transport):
    """Keeps what is written, and notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = False
        self.reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def connected(method: str = "GET") -> tuple[UpstreamConnection, FakeTransport]:
    connection, transport = UpstreamConnection(), FakeTransport()
    connection.connection_made(transport)
    begin(connection, method)
    return connection, transport


def begin(connection: UpstreamConnection, method: str = "GET") -> None:
    connection.begin(method=method, target=b"/v1/x?a=1", host=b"up:8000", headers=[(b"accept", b"*/*")])
    connection.body_sent()


def now(step: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine gives without waiting; it must not wait."""
    try:
        step.send(None)
    except StopIteration as done:
        return done.value
    finally:
        step.close()
    raise AssertionError("it waits")


def waits(step: Coroutine[Any, Any, Any]) -> bool:
    async def ask() -> bool:
        try:
            await asyncio.wait_for(step, 0)
        except TimeoutError:
            return True
        return False

    return asyncio.run(ask())


def test_a_request_goes_out_in_one_write_as_it_is() -> None:
    _, transport = connected()
    assert transport.written == b"GET /v1/x?a=1 HTTP/1.1\r\nhost: up:8000\r\naccept: */*\r\n\r\n"


def test_a_response_keeps_its_fields_as_sent_empty_ones_too() -> None:
    connection, _ = connected()
    connection.data_received(
        b"HTTP/1.1 200 OK\r\nX-Empty:\r\nX-Twice: 1\r\nx-twice: \xe9\r\nContent-Length: 2\r\n\r\nok"
    )
    fields = [(b"X-Empty", b""), (b"X-Twice", b"1"), (b"x-twice", b"\xe9"), (b"Content-Length", b"2")]
    assert now(connection.response_head()) == ResponseHead(200, fields)
    assert (now(connection.read()), now(connection.read())) == (b"ok", b"")
    assert connection.reusable


def test_chunks_are_there_when_they_come() -> None:
    connection, _ = connected()
    connection.data_received(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
    assert now(connection.read()) == b"one"
    connection.data_received(b"3\r\nt")
    assert now(connection.read()) == b"t"
    connection.data_received(b"wo\r\n1\r\n!\r\n0\r\nx-trailer: 1\r\n\r\n")
    assert (now(connection.read()), now(connection.read())) == (b"wo!", b"")
    assert (b"x-trailer", b"1") not in now(connection.response_head()).headers


@given(pieces=st.lists(st.binary(min_size=1, max_size=40), max_size=8), cuts=st.sets(st.integers(0, 600)))
def test_however_a_stream_is_cut_its_bytes_come_out_equal(pieces: list[bytes], cuts: set[int]) -> None:
    connection, _ = connected()
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    stream = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for start, stop in pairwise(places):
        connection.data_received(stream[start:stop])
    got = b""
    while piece := now(connection.read()):
        got += piece
    assert got == b"".join(pieces)
    assert connection.reusable


def test_informational_responses_are_passed_over() -> None:
    connection, _ = connected()
    connection.data_received(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
    assert waits(connection.response_head())
    connection.data_received(b"HTTP/1.1 204 No Content\r\na: b\r\n\r\n")
    assert now(connection.response_head()) == ResponseHead(204, [(b"a", b"b")])
    assert now(connection.read()) == b""


def test_a_connection_carries_one_exchange_after_another() -> None:
    connection, _ = connected()
    for body in (b"one", b"two"):
        connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n" + body)
        assert (now(connection.read()), now(connection.read())) == (body, b"")
        assert connection.reusable
        begin(connection)


def test_a_response_to_head_ends_with_its_head() -> None:
    connection, _ = connected("HEAD")
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n")
    assert now(connection.response_head()).status == 200
    assert now(connection.read()) == b""
    assert not connection.reusable


@pytest.mark.parametrize("close", [b"connection: close\r\ncontent-length: 1\r\n\r\nx", b"\r\nx"])
def test_what_the_upstream_closes_is_not_reused(close: bytes) -> None:
    connection, _ = connected()
    connection.data_received(b"HTTP/1.1 200 OK\r\n" + close)
    connection.eof_received()
    assert (now(connection.read()), now(connection.read())) == (b"x", b"")
    assert not connection.reusable


def test_a_request_that_is_still_going_out_keeps_a_connection_from_reuse() -> None:
    connection, transport = UpstreamConnection(), FakeTransport()
    connection.connection_made(transport)
    connection.begin(method="POST", target=b"/", host=b"h", headers=[(b"content-length", b"9")], body=b"x")
    connection.data_received(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
    assert now(connection.read()) == b""
    assert not connection.reusable


@pytest.mark.parametrize(
    "part",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\npart",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\npart\r\n",
    ],
)
def test_a_body_cut_short_is_given_as_far_as_it_came_and_then_breaks(part: bytes) -> None:
    connection, _ = connected()
    connection.data_received(part)
    connection.eof_received()
    assert now(connection.read()) == b"part"
    with pytest.raises(UpstreamBroke, match="closed before the response ended"):
        now(connection.read())


def test_a_reset_breaks_a_body_that_only_a_close_may_end() -> None:
    connection, _ = connected()
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\npart")
    connection.connection_lost(ConnectionResetError("reset by peer"))
    assert now(connection.read()) == b"part"
    with pytest.raises(UpstreamBroke, match="reset by peer"):
        now(connection.read())


@pytest.mark.parametrize(
    "junk", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 xyz\r\n\r\n", b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n"]
)
def test_what_is_not_http_breaks_at_once(junk: bytes) -> None:
    connection, transport = connected()
    connection.data_received(junk)
    with pytest.raises(UpstreamBroke, match="not HTTP"):
        now(connection.response_head())
    assert transport.aborted


def test_an_endless_head_breaks() -> None:
    connection, transport = connected()
    connection.data_received(b"HTTP/1.1 200 OK\r\n")
    for _ in range(300):
        connection.data_received(b"x: " + b"y" * 1_000 + b"\r\n")
    assert transport.aborted


def test_reading_pauses_while_nobody_takes_the_bytes() -> None:
    connection, transport = connected()
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 9000000\r\n\r\n" + bytes(300_000))
    assert not transport.reading
    now(connection.read())
    assert transport.reading


def test_drain_waits_while_the_upstream_takes_nothing_and_ends_with_the_connection() -> None:
    connection, _ = connected()
    now(connection.drain())
    connection.pause_writing()
    assert waits(connection.drain())
    connection.connection_lost(None)
    now(connection.drain())


def test_trailers_come_apart_from_the_head() -> None:
    connection, _ = connected()
    connection.data_received(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nX-T: 1\r\n\r\n")
    assert now(connection.read()) == b""
    assert connection.trailers == [(b"X-T", b"1")]
    begin(connection)
    assert connection.trailers == []


@pytest.mark.parametrize("more", [b"HTTP/1.1 200 OK\r\nx: forged\r\ncontent-length: 6\r\n\r\nforged", b"garbage"])
def test_what_comes_behind_a_complete_response_touches_neither_it_nor_the_next(more: bytes) -> None:
    connection, transport = connected()
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok" + more)
    assert now(connection.response_head()).headers == [(b"content-length", b"2")]
    assert (now(connection.read()), now(connection.read())) == (b"ok", b"")
    assert transport.aborted
    assert not connection.reusable


def test_a_response_that_nobody_asked_for_closes_an_idle_connection() -> None:
    connection, _ = connected()
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    assert connection.reusable
    connection.data_received(b"HTTP/1.1 408 Request Timeout\r\n")
    assert connection.closed


@pytest.mark.parametrize("coding", [b"gzip", b"gzip, chunked", b"chunked, gzip", b"gzip\r\nTransfer-Encoding: chunked"])
def test_a_transfer_coding_that_nobody_asked_for_breaks(coding: bytes) -> None:
    connection, _ = connected()
    connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: " + coding + b"\r\n\r\n4\r\nabcd\r\n0\r\n\r\n")
    with pytest.raises(UpstreamBroke, match="was not asked for"):
        now(connection.response_head())


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n",
        b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
        b"X: a\r\n Content-Length: 4\r\n\r\nabcd",
        b"X: a\nContent-Length: 4\r\n\r\nabcd",
        b"X: a\x00b\r\nContent-Length: 4\r\n\r\nabcd",
    ],
)
def test_a_response_that_two_parsers_could_read_in_two_ways_breaks(head: bytes) -> None:
    connection, _ = connected()
    connection.data_received(b"HTTP/1.1 200 OK\r\n" + head)
    with pytest.raises(UpstreamBroke, match="not HTTP"):
        now(connection.response_head())


@pytest.mark.parametrize("status", [b"099", b"101", b"600", b"999"])
def test_a_status_that_is_no_answer_breaks(status: bytes) -> None:
    connection, _ = connected()
    connection.data_received(b"HTTP/1.1 " + status + b" X\r\ncontent-length: 4\r\n\r\nabcd")
    with pytest.raises(UpstreamBroke, match="is no answer"):
        now(connection.response_head())


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [
        (b"HTTP/1.1 200 OK\r\nx: ", b"y" * 1_000),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 40),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;x=", b"y" * 1_000),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: ", b"y" * 1_000),
    ],
    ids=["field", "interim responses", "chunk extension", "trailer"],
)
def test_what_has_no_end_and_brings_no_body_breaks(begins: bytes, goes_on: bytes) -> None:
    connection, transport = connected()
    connection.data_received(begins)
    for _ in range(300):
        connection.data_received(goes_on)
    assert transport.aborted


def test_a_long_body_in_small_chunks_with_extensions_is_no_endless_head() -> None:
    connection, transport = connected()
    connection.data_received(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(3_000):
        connection.data_received(b"1;" + b"x" * 100 + b"\r\n")
        connection.data_received(b"a\r\n")
        now(connection.read())
    assert not transport.aborted
