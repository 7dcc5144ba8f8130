"""`POST /v1/chat/completions`."""

from __future__ import annotations

from headstart.ids import GenerationId
from headstart.proxy.formats.chat_request import read_chat_request
from headstart.proxy.formats.chat_response import ChatStream, WholeChat
from headstart.proxy.formats.contract import RequestFacts, ResponseReader

__all__ = ["ChatCompletions"]


class ChatCompletions:
    """OpenAI's chat format, as many servers speak it."""

    def matches(self, method: str, path: str) -> bool:
        return method == "POST" and path.rstrip("/") == "/chat/completions"

    def read_request(self, body: bytes) -> RequestFacts:
        return read_chat_request(body)

    def response_reader(self, generation: GenerationId, *, streamed: bool) -> ResponseReader:
        return ChatStream(generation) if streamed else WholeChat(generation)
