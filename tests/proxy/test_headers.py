from headstart.proxy.headers import BodyFraming, framing_of, passable_trailers, request_headers, response_headers

SIZED = BodyFraming(2, chunked=False)
CHUNKED = BodyFraming(None, chunked=True)


def test_headers_go_up_in_order_and_as_they_are() -> None:
    headers = [(b"user-agent", b"me/1"), (b"authorization", b"Bearer k"), (b"x-twice", b"1"), (b"x-twice", b"2")]
    assert request_headers(headers, framing=SIZED) == headers


def test_one_connections_own_fields_and_those_it_names_stay_behind() -> None:
    headers = [
        (b"connection", b"keep-alive, X-Private"),
        (b"keep-alive", b"timeout=5"),
        (b"te", b"deflate"),
        (b"proxy-authorization", b"Basic x"),
        (b"upgrade", b"h2c"),
        (b"x-private", b"1"),
        (b"accept", b"*/*"),
    ]
    assert request_headers(headers, framing=SIZED) == [(b"accept", b"*/*")]


def test_headstarts_own_fields_never_leave() -> None:
    headers = [(b"x-headstart-key", b"secret"), (b"x-headstart-session", b"s"), (b"accept", b"*/*")]
    assert request_headers(headers, framing=SIZED) == [(b"accept", b"*/*")]


def test_connection_cannot_be_used_to_remove_what_gives_a_message_its_meaning() -> None:
    headers = [(b"connection", b"authorization, content-length"), (b"authorization", b"k"), (b"content-length", b"2")]
    assert request_headers(headers, framing=SIZED) == headers[1:]


def test_a_chunked_body_has_no_length_beside_it() -> None:
    headers = [(b"transfer-encoding", b"chunked"), (b"content-length", b"4")]
    assert framing_of(headers) == CHUNKED
    assert request_headers(headers, framing=CHUNKED) == []


def test_responses_keep_their_fields_case_and_order() -> None:
    headers = [(b"Server", b"vllm"), (b"Content-Encoding", b"gzip"), (b"Transfer-Encoding", b"chunked"), (b"X-A", b"")]
    assert response_headers(headers, status=200) == [headers[0], headers[1], headers[3]]


def test_a_not_modified_response_announces_no_body() -> None:
    assert response_headers([(b"Content-Length", b"7"), (b"ETag", b"x")], status=304) == [(b"ETag", b"x")]


def test_who_takes_trailers_is_told_to_the_upstream_as_the_senders_own_wish() -> None:
    passed = request_headers([(b"te", b"gzip;q=0.5, Trailers"), (b"connection", b"te")], framing=SIZED)
    assert passed == [(b"te", b"trailers"), (b"connection", b"te")]


def test_trailers_pass_but_for_those_that_would_change_what_the_message_is() -> None:
    fields = [(b"Host", b"evil"), (b"Content-Length", b"9"), (b"X-Headstart-Key", b"k"), (b"X-Digest", b"1")]
    assert passable_trailers(fields) == [(b"X-Digest", b"1")]
