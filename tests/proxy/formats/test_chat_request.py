import json
from typing import Any

import pytest

from headstart.proxy.formats import ChatCompletions, RequestFacts, Unreadable

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "What changed?"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "git__log", "arguments": "{}"}}
ASSISTANT = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "two commits"}


def read(messages: list[Any], **more: Any) -> RequestFacts:
    return ChatCompletions().read_request(json.dumps({"model": "m", "messages": messages, **more}).encode())


def test_a_first_turn_has_the_users_words_and_no_prefix() -> None:
    facts = read([SYSTEM, USER])
    assert (facts.model, facts.text, facts.prefix, facts.turn) == ("m", "Be brief.\nWhat changed?", "", 0)


def test_a_later_turn_has_only_what_is_new() -> None:
    facts = read([SYSTEM, USER, ASSISTANT, RESULT])
    assert (facts.text, facts.answered_calls, facts.turn) == ("two commits", ("call_1",), 1)


def test_the_prefix_covers_what_came_up_to_the_last_assistant_message() -> None:
    first = read([SYSTEM, USER, ASSISTANT, RESULT])
    again = read([SYSTEM, USER, ASSISTANT, {**RESULT, "content": "three commits"}])
    other = read([SYSTEM, USER, {**ASSISTANT, "content": "Hm."}, RESULT])
    assert first.prefix == again.prefix
    assert first.prefix != other.prefix
    assert first.opening == again.opening == other.opening


def test_the_opening_stays_while_the_conversation_grows_and_tells_two_apart() -> None:
    assert read([SYSTEM, USER]).opening == read([SYSTEM, USER, ASSISTANT, RESULT, USER]).opening
    assert read([SYSTEM, USER]).opening != read([USER]).opening


def test_text_parts_are_read_and_others_left_out() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,x"}}
    parts = [{"type": "text", "text": "Look"}, image, {"type": "text", "text": "here"}]
    assert read([{"role": "user", "content": parts}]).text == "Look\nhere"


def test_of_a_long_text_the_newest_is_kept() -> None:
    facts = read([{"role": "user", "content": "a" * 20_000 + "end"}])
    assert len(facts.text) == 16_384
    assert facts.text.endswith("aend")


def test_offered_tools_are_named_in_order_in_all_three_spellings() -> None:
    tools = [{"type": "function", "function": {"name": "b"}}, {"type": "custom", "name": "a"}, {"type": "web_search"}]
    assert read([USER], tools=tools, functions=[{"name": "old"}]).offered_tools == ("b", "a", "old")


def test_ids_that_clients_send_become_hints() -> None:
    metadata = {"session_id": "s1", "purpose": "test", "user_id": 7}
    facts = read([USER], user="u", prompt_cache_key="k", previous_response_id="r", metadata=metadata)
    expected = (
        "user=u",
        "previous_response_id=r",
        "prompt_cache_key=k",
        "metadata.session_id=s1",
        "metadata.user_id=7",
    )
    assert facts.hints == expected


@pytest.mark.parametrize("messages", [[], [None], ["x"], [{"role": "user"}], [{"role": "user", "content": 3}]])
def test_odd_messages_are_no_error(messages: list[Any]) -> None:
    assert read(messages).text == ""


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff"])
def test_what_is_no_json_object_is_unreadable(body: bytes) -> None:
    with pytest.raises(Unreadable):
        ChatCompletions().read_request(body)


def test_a_lone_surrogate_is_read_like_any_text() -> None:
    assert read([{"role": "user", "content": "\ud83d half"}]).text == "\ud83d half"


@pytest.mark.parametrize(
    ("method", "path", "matches"),
    [
        ("POST", "/chat/completions", True),
        ("POST", "/chat/completions/", True),
        ("GET", "/chat/completions", False),
        ("POST", "/completions", False),
        ("POST", "/chat/completions/x/messages", False),
    ],
)
def test_only_generations_match(method: str, path: str, matches: bool) -> None:
    assert ChatCompletions().matches(method, path) is matches
