import json
from typing import Any

import pytest

from headstart.core.stream import (
    GenerationOutcome,
    ModelEvent,
    TextArrived,
    TextKind,
    ToolCallArgumentsArrived,
    ToolCallClosed,
    ToolCallOpened,
)
from headstart.ids import GenerationId
from headstart.proxy.formats import ChatCompletions, ResponseReader, Unreadable

GENERATION = GenerationId("gen_1")
DONE = b"data: [DONE]\n\n"


def chunk(delta: dict[str, Any] | None = None, *, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    choice = {"index": index, "delta": delta or {}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice], **more}).encode() + b"\n\n"


def calls(*entries: dict[str, Any]) -> bytes:
    return chunk({"tool_calls": list(entries)})


def entry(arguments: object = None, *, name: str | None = None, **fields: Any) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {**fields, "function": function}


def stream(*chunks: bytes) -> tuple[list[str], ResponseReader]:
    reader = ChatCompletions().response_reader(GENERATION, streamed=True)
    said = [event for one in chunks for event in reader.feed(one, 1.0)]
    if reader.outcome is None:
        said.extend(reader.finish(2.0))
    return list(map(short, said)), reader


def short(event: ModelEvent) -> str:
    match event:
        case TextArrived(text=text, kind=TextKind.VISIBLE):
            return f"text {text}"
        case TextArrived(text=text):
            return f"thought {text}"
        case ToolCallOpened(index=index, tool=tool, wire_id=wire_id):
            return f"open {index} {tool} {wire_id}"
        case ToolCallArgumentsArrived(index=index, text=text):
            return f"piece {index} {text}"
        case ToolCallClosed(index=index, tool=tool, arguments=arguments, wire_id=wire_id):
            return f"close {index} {tool} {arguments} {wire_id}"
        case _:
            return repr(event)


def test_text_and_thoughts_are_told_apart() -> None:
    said, _ = stream(
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": "Hm."}),
        chunk({"reasoning": "So."}),
        chunk({"content": "Yes", "reasoning": None}),
        DONE,
    )
    assert said == ["thought Hm.", "thought So.", "text Yes"]


def test_thoughts_sent_under_both_names_are_read_once() -> None:
    assert stream(chunk({"reasoning_content": "Hm.", "reasoning": "Hm."}))[0] == ["thought Hm."]


def test_content_in_parts_is_read() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": "Yes"}]
    assert stream(chunk({"content": parts}))[0] == ["thought Hm.", "text Yes"]


def test_a_call_in_pieces() -> None:
    said, reader = stream(
        calls(entry("", name="git__log", index=0, id="c1", type="function")),
        calls(entry('{"n"', index=0)),
        calls(entry(":2}", index=0)),
        chunk(finish="tool_calls"),
        DONE,
    )
    assert said == ["open 0 git__log c1", 'piece 0 {"n"', "piece 0 :2}", 'close 0 git__log {"n":2} c1']
    assert reader.outcome is GenerationOutcome.COMPLETED


def test_a_whole_call_in_one_delta_and_done_missing() -> None:
    said, reader = stream(calls(entry('{"a": 1}', name="t", index=0, id="c1")), chunk(finish="tool_calls"))
    assert said == ["open 0 t c1", 'piece 0 {"a": 1}', 'close 0 t {"a":1} c1']
    assert reader.outcome is None


def test_a_call_is_closed_as_soon_as_the_next_one_opens() -> None:
    said, _ = stream(
        calls(entry("{}", name="a", index=0, id="c1")),
        calls(entry("{}", name="b", index=1, id="c2")),
        DONE,
    )
    assert said == ["open 0 a c1", "piece 0 {}", "close 0 a {} c1", "open 1 b c2", "piece 1 {}", "close 1 b {} c2"]


def test_calls_written_in_turns_by_index_are_kept_apart() -> None:
    said, _ = stream(
        calls(entry("", name="a", index=0, id="c1"), entry("", name="b", index=1, id="c2")),
        calls(entry('{"x"', index=0)),
        calls(entry('{"y"', index=1)),
        calls(entry(":1}", index=0)),
        calls(entry(":2}", index=1)),
        chunk(finish="tool_calls"),
    )
    assert said[-2:] == ['close 0 a {"x":1} c1', 'close 1 b {"y":2} c2']


def test_without_index_a_name_opens_a_call_and_the_rest_goes_on_with_it() -> None:
    said, _ = stream(
        calls(entry('{"x":', name="a", id="c1")),
        calls(entry("1}")),
        calls(entry("{}", name="a", id="c2")),
        DONE,
    )
    assert said == [
        "open 0 a c1",
        'piece 0 {"x":',
        "piece 0 1}",
        'close 0 a {"x":1} c1',
        "open 1 a c2",
        "piece 1 {}",
        "close 1 a {} c2",
    ]


def test_without_index_two_whole_calls_in_one_delta_are_two() -> None:
    said, _ = stream(calls(entry("{}", name="a"), entry("{}", name="b")), DONE)
    assert [line for line in said if line.startswith("close")] == ["close 0 a {} ", "close 1 b {} "]


def test_one_index_with_another_id_and_name_is_another_call() -> None:
    said, _ = stream(
        calls(entry("{}", name="a", index=0, id="c1")), calls(entry("{}", name="a", index=0, id="c2")), DONE
    )
    assert [line for line in said if line.startswith("close")] == ["close 0 a {} c1", "close 1 a {} c2"]


def test_id_and_name_repeated_in_every_delta_are_one_call() -> None:
    said, _ = stream(calls(entry("{", name="a", index=0, id="c1")), calls(entry("}", name="a", index=0, id="c1")), DONE)
    assert said == ["open 0 a c1", "piece 0 {", "piece 0 }", "close 0 a {} c1"]


def test_arguments_before_the_name_wait_for_it() -> None:
    said, _ = stream(calls(entry("{", index=0, id="c1")), calls(entry("}", name="a", index=0)), DONE)
    assert said == ["open 0 a c1", "piece 0 {}", "close 0 a {} c1"]


def test_arguments_as_an_object_are_read_as_text() -> None:
    assert stream(calls(entry({"b": 1, "a": 2.0}, name="t", index=0)), DONE)[0][-1] == 'close 0 t {"a":2.0,"b":1} '


def test_a_call_without_arguments_has_an_empty_object() -> None:
    assert stream(calls(entry(name="t", index=0)), DONE)[0] == ["open 0 t ", "close 0 t {} "]


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": NaN}', "3"])
def test_arguments_that_are_no_json_object_are_kept_raw(text: str) -> None:
    assert stream(calls(entry(text, name="t", index=0)), DONE)[0][-1] == f"close 0 t {text} "


def test_the_function_call_of_old_is_a_call() -> None:
    said, _ = stream(
        chunk({"function_call": {"name": "t", "arguments": ""}}),
        chunk({"function_call": {"arguments": "{}"}}),
        chunk(finish="function_call"),
    )
    assert said == ["open 0 t ", "piece 0 {}", "close 0 t {} "]


def test_only_the_first_choice_is_read() -> None:
    assert stream(chunk({"content": "no"}, index=1), chunk({"content": "yes"}), DONE)[0] == ["text yes"]


def test_usage_comes_from_a_last_chunk_without_choices() -> None:
    usage = b'data: {"choices":[],"usage":{"completion_tokens":7}}\n\n'
    said, reader = stream(chunk({"content": "x"}), chunk(finish="stop"), usage, DONE)
    assert (said, reader.output_tokens) == (["text x"], 7)


def test_what_follows_done_is_nobodys() -> None:
    assert stream(chunk({"content": "x"}), DONE, chunk({"content": "y"}))[0] == ["text x"]


def test_an_error_in_the_stream_is_the_upstreams_failure_and_closes_no_call() -> None:
    said, reader = stream(calls(entry("{}", name="t", index=0)), b'data: {"error":{"message":"overloaded"}}\n\n')
    assert said == ["open 0 t ", "piece 0 {}"]
    assert reader.outcome is GenerationOutcome.UPSTREAM_FAILED


@pytest.mark.parametrize("bad", [b"data: {\n\n", b"data: []\n\n", b"data: \xff\xfe\n\n", b"data: hello\n\n"])
def test_data_that_is_no_json_object_is_unreadable(bad: bytes) -> None:
    with pytest.raises(Unreadable):
        stream(bad)


def test_a_stream_without_any_chunk_is_unreadable() -> None:
    with pytest.raises(Unreadable):
        stream(b": nothing\n\n")


def whole(response: object) -> tuple[list[str], ResponseReader]:
    reader = ChatCompletions().response_reader(GENERATION, streamed=False)
    body = json.dumps(response).encode()
    said = [*reader.feed(body[:5], 1.0), *reader.feed(body[5:], 1.0)]
    return list(map(short, said if reader.outcome is not None else reader.finish(2.0))), reader


def test_a_whole_response_gives_the_same_events() -> None:
    entries = [entry('{"x": 1}', name="a", id="c1"), entry("{}", name="b")]
    message = {"role": "assistant", "content": "Yes", "reasoning_content": "Hm.", "tool_calls": entries}
    said, reader = whole({"choices": [{"index": 0, "message": message}], "usage": {"completion_tokens": 9}})
    assert said == [
        "thought Hm.",
        "text Yes",
        "open 0 a c1",
        'piece 0 {"x": 1}',
        'close 0 a {"x":1} c1',
        "open 1 b ",
        "piece 1 {}",
        "close 1 b {} ",
    ]
    assert reader.output_tokens == 9


def test_a_whole_response_is_read_when_it_is_whole_and_not_when_its_exchange_ends() -> None:
    reader = ChatCompletions().response_reader(GENERATION, streamed=False)
    body = json.dumps({"choices": [{"index": 0, "message": {"content": "Yes {really}"}}]}).encode() + b"\n"
    cut = body.index(b"}") + 1
    assert list(reader.feed(body[:cut], 1.0)) == []
    assert reader.outcome is None
    assert list(map(short, reader.feed(body[cut:], 2.0))) == ["text Yes {really}"]
    assert reader.outcome is GenerationOutcome.COMPLETED


@pytest.mark.parametrize("response", [[], {}, {"choices": []}, "x"])
def test_a_response_without_a_choice_is_unreadable(response: object) -> None:
    with pytest.raises(Unreadable):
        whole(response)


def test_a_response_that_seems_whole_again_and_again_is_still_read_at_its_end() -> None:
    reader = ChatCompletions().response_reader(GENERATION, streamed=False)
    filler = "x}" * 32_768
    body = json.dumps({"choices": [{"message": {"content": filler * 40}}]}).encode()
    pieces = [body[start : start + 65_536] for start in range(0, len(body), 65_536)]
    said = [event for piece in pieces for event in reader.feed(piece, 1.0)]
    said += reader.finish(2.0) if reader.outcome is None else []
    assert [event.text for event in said if isinstance(event, TextArrived)] == [filler * 40]
