import gzip
import json
import time
from pathlib import Path
from typing import Any

import anyio
import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.bench.replay_model import Recording, load_recordings, replay_app, serve
from headstart.bench.replay_model.playback import Delta, Pace, output_tokens, play, tokens
from headstart.bench.replay_model.recordings import RecordedStep, select_recording
from headstart.errors import ConfigError
from headstart.ids import SequentialIds

RATES = {
    "session": "rates",
    "user": "What are the rates?",
    "steps": [
        {"text": "Let me look.", "calls": [{"name": "sqlite__query", "arguments": {"q": "ä", "n": 2}}]},
        {"text": "4 %"},
    ],
}
RECORDING = Recording.model_validate(RATES)


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# ---------------------------------------------------------------- files


def test_json_lines_and_toml_say_the_same(tmp_path: Path) -> None:
    toml = """
    [[recordings]]
    session = "rates"
    user = "What are the rates?"
    [[recordings.steps]]
    text = "Let me look."
    calls = [{name = "sqlite__query", arguments = {q = "ä", n = 2}}]
    [[recordings.steps]]
    text = "4 %"
    """
    lines = written(tmp_path / "a.jsonl", "\n" + json.dumps(RATES) + "\n\n")
    assert load_recordings(lines) == load_recordings(written(tmp_path / "a.toml", toml)) == (RECORDING,)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.jsonl", json.dumps(RATES) + "\n{", "a.jsonl:2: Invalid JSON"),
        ("a.jsonl", json.dumps({**RATES, "stpes": []}), "a.jsonl:1: stpes: Extra inputs"),
        ("a.jsonl", json.dumps({**RATES, "steps": []}), "a.jsonl:1: steps: "),
        ("a.jsonl", json.dumps(RATES) + "\n" + json.dumps(RATES), "a.jsonl: session 'rates' is recorded twice"),
        ("a.toml", "recordings = 3", "a.toml: recordings: "),
        ("a.toml", "=", "a.toml: Invalid"),
    ],
)
def test_a_file_that_is_no_recording_names_file_line_and_key(tmp_path: Path, name: str, text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recordings(written(tmp_path / name, text))
    assert told in str(caught.value)


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_recordings(tmp_path / "none.jsonl")


# ---------------------------------------------------------------- which recording


def test_a_conversation_is_found_by_its_first_words_or_by_name() -> None:
    assert select_recording([RECORDING], model="gpt", first_user_text=RECORDING.user) is RECORDING
    assert select_recording([RECORDING], model="replay/rates", first_user_text="else") is RECORDING


def test_two_that_begin_alike_are_told_apart_by_name_only() -> None:
    other = RECORDING.model_copy(update={"session": "other"})
    told = select_recording([RECORDING, other], model="gpt", first_user_text=RECORDING.user)
    assert told == "2 recordings begin with this user message: ask for the model 'replay/rates', say"
    assert select_recording([RECORDING, other], model="replay/other", first_user_text="") is other


# ---------------------------------------------------------------- playback


def text_of(deltas: list[Delta]) -> tuple[str, str]:
    content = "".join(delta.content.get("content", "") for delta in deltas)
    calls = [call for delta in deltas for call in delta.content.get("tool_calls", ())]
    return content, "".join(call["function"]["arguments"] for call in calls)


@given(text=st.text(), arguments=st.text(), hidden=st.integers(0, 5))
def test_deltas_add_up_to_the_step_one_token_after_another(text: str, arguments: str, hidden: int) -> None:
    step = RecordedStep.model_validate(
        {"text": text, "hidden_tokens": hidden, "calls": [{"name": "tool_name", "arguments": arguments}]}
    )
    deltas = list(play(step, SequentialIds()))
    assert text_of(deltas) == (text, arguments)
    numbers = [delta.token for delta in deltas]
    assert numbers == sorted(set(numbers))
    assert numbers[0] >= hidden
    assert numbers[-1] == output_tokens(step) - 1


def test_tokens_are_always_cut_alike() -> None:
    assert tokens("Let me look") == ["Let ", "me l", "ook"]
    assert tokens("") == []


def test_lateness_does_not_add_up_because_the_schedule_is_absolute() -> None:
    pace = Pace(ttft_s=0.5, tpot_s=0.02)
    assert [pace.due_s(token) for token in (0, 1, 1_000)] == [0.5, 0.52, 20.5]


# ---------------------------------------------------------------- served


@pytest.mark.anyio
async def test_a_client_hears_the_recording_and_nothing_else() -> None:
    async with serve([RECORDING]) as base_url, openai.AsyncOpenAI(base_url=base_url, api_key="k") as client:
        stream = await client.chat.completions.create(
            model="gpt",
            messages=[{"role": "user", "content": RECORDING.user}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert "".join(delta.content or "" for delta in deltas) == "Let me look."
    assert [call.function.name for call in calls if call.function and call.function.name] == ["sqlite__query"]
    assert json.loads("".join(call.function.arguments or "" for call in calls if call.function)) == {"q": "ä", "n": 2}
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == output_tokens(RECORDING.steps[0])


@pytest.mark.anyio
async def test_the_conversation_so_far_chooses_the_step() -> None:
    async with serve([RECORDING]) as base_url, openai.AsyncOpenAI(base_url=base_url, api_key="k") as client:
        answer = await client.chat.completions.create(
            model="gpt",
            messages=[{"role": "user", "content": RECORDING.user}, {"role": "assistant", "content": "Let me look."}],
        )
    assert answer.choices[0].message.content == "4 %"
    assert answer.choices[0].finish_reason == "stop"


async def posted(base_url: str, request: object, **headers: str) -> httpx2.Response:
    async with httpx2.AsyncClient() as client:
        return await client.post(f"{base_url}/chat/completions", json=request, headers=headers)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("messages", "status", "told"),
    [
        ([{"role": "user", "content": "Else?"}], 404, "no recording begins with this user message"),
        ([], 404, "no recording begins"),
        (
            [{"role": "user", "content": RECORDING.user}, *({"role": "assistant", "content": ""},) * 2],
            404,
            "recording 'rates' ends after 2 steps",
        ),
        ("x", 400, "messages: "),
    ],
)
async def test_what_no_recording_says_is_an_error_that_says_so(messages: Any, status: int, told: str) -> None:
    async with serve([RECORDING]) as base_url:
        response = await posted(base_url, {"model": "gpt", "messages": messages})
    assert response.status_code == status
    assert told in response.json()["error"]["message"]


@pytest.mark.anyio
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_recording_may_be_compressed_for_clients_that_accept_it(streamed: bool) -> None:
    recording = RECORDING.model_copy(update={"gzip": True})
    request: dict[str, Any] = {"model": "replay/rates", "messages": [], "stream": streamed}
    async with serve([recording]) as base_url, httpx2.AsyncClient() as client:
        async with client.stream(
            "POST", f"{base_url}/chat/completions", json=request, headers={"accept-encoding": "gzip"}
        ) as packed:
            raw = b"".join([piece async for piece in packed.aiter_raw()])
        plain = await posted(base_url, request, **{"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert b"sqlite__query" in gzip.decompress(raw)
    assert b"sqlite__query" in plain.content


@pytest.mark.anyio
async def test_tokens_come_at_the_chosen_pace() -> None:
    async with serve([RECORDING], ttft_s=0.2, tpot_s=0.02) as base_url, httpx2.AsyncClient() as client:
        began_s = time.monotonic()
        async with client.stream(
            "POST", f"{base_url}/chat/completions", json={"model": "replay/rates", "stream": True}
        ) as response:
            lines = response.aiter_lines()
            await anext(lines)
            first_s = time.monotonic() - began_s
            async for _ in lines:
                pass
        whole_s = time.monotonic() - began_s
    assert first_s >= 0.2
    assert whole_s >= 0.2 + 0.02 * (output_tokens(RECORDING.steps[0]) - 1)


@pytest.mark.anyio
async def test_a_client_that_leaves_ends_the_playing() -> None:
    messages = iter(
        [
            {"type": "http.request", "body": json.dumps({"model": "replay/rates", "stream": True}).encode()},
            {"type": "http.disconnect"},
        ]
    )
    sent: list[Any] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    with anyio.fail_after(5):
        await replay_app([RECORDING], ttft_s=3_600)(scope, receive, send)
    assert [message["type"] for message in sent] == ["http.response.start"]
