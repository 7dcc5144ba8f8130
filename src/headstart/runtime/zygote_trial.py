"""One trial start of a server: all that it says of itself and one call's answer, to be compared."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import anyio
from mcp.shared.exceptions import MCPError

from headstart.backends.contract import RunningSandbox, Usage
from headstart.clock import Clock
from headstart.config.model import EffectName, WarmupCall
from headstart.errors import BackendError
from headstart.ids import ResourceId
from headstart.runtime.handshake import HandshakeRefused, Lists, introduce, shake_hands
from headstart.runtime.link import StdioLink, open_stdio_link
from headstart.runtime.outbox import LinkClosed
from headstart.runtime.rpc import Conversation, Nobody, Peer

__all__ = ["Trial", "TrialFailed", "difference", "reading_call", "time_to_tools", "try_server"]

LAST_WORDS_S = 0.25


class TrialFailed(Exception):
    """The server did not come up; the text says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a started server showed.

    Attributes:
        lists: Canonical JSON of its `initialize` result and of each list, by name.
        call: The tool that was called, "" if there is none that only reads.
        answers: Canonical JSON of two answers in a row; they differ if the tool tells the time, say.
        start_s: From `attach` to all lists read.
        taken: What `while_up` returned.
    """

    lists: Mapping[str, str]
    call: str
    answers: tuple[str, ...]
    start_s: float
    usage: Usage
    taken: object = None


async def _nothing() -> None:
    """Take nothing from a server that is up."""


async def try_server(
    sandbox: RunningSandbox,
    *,
    choose: Callable[[Lists], WarmupCall | None],
    clock: Clock,
    descriptors: Sequence[int] = (),
    while_up: Callable[[], Awaitable[object]] = _nothing,
) -> Trial:
    """Start the sandbox's server, read its lists, make one READ call twice.

    Args:
        sandbox: Not attached to yet.
        choose: Returns the call to make, None for none.
        clock: What `start_s` is measured by.
        descriptors: For the server, see `RunningSandbox.attach`.
        while_up: Called when the lists and the call were answered.

    Raises:
        TrialFailed: It refused the handshake or ended.
        BackendError: The sandbox failed.
    """
    began_s = clock.monotonic_s()
    server = ResourceId(str(sandbox.id))
    async with (
        sandbox.attach(descriptors=descriptors) as streams,
        open_stdio_link(streams, server=server, owner=Nobody(), clock=clock) as link,
    ):
        try:
            outcome: Trial | Exception = await _observe(link.peer, sandbox, choose, clock, while_up)
        except LinkClosed:
            await anyio.sleep(LAST_WORDS_S)  # stdout has ended; stderr may still be on its way
            outcome = TrialFailed(f"it ended before it answered{_last_words(link)}")
        except HandshakeRefused as refused:
            outcome = TrialFailed(str(refused))
        except BackendError as failed:
            outcome = failed
    if isinstance(outcome, Exception):
        raise outcome  # only here, because the link's tasks would make a group of it
    return replace(outcome, start_s=outcome.start_s - began_s)


async def _observe(
    peer: Peer,
    sandbox: RunningSandbox,
    choose: Callable[[Lists], WarmupCall | None],
    clock: Clock,
    while_up: Callable[[], Awaitable[object]],
) -> Trial:
    """Return what the server shows; `start_s` is still a time, not a duration."""
    server, lists = await shake_hands(peer)
    listed_s = clock.monotonic_s()
    call = choose(lists)
    return Trial(
        lists=_canonical_lists(lists),
        call=call.tool if call is not None else "",
        answers=() if call is None else (await _call(server, call), await _call(server, call)),
        start_s=listed_s,
        usage=await sandbox.usage(),
        taken=await while_up(),
    )


async def time_to_tools(sandbox: RunningSandbox, *, clock: Clock) -> float:
    """Start the sandbox's server and return the time at which its tools had been listed.

    Raises:
        TrialFailed: It refused the handshake, or ended.
    """
    server = ResourceId(str(sandbox.id))
    listed_s: float | None = None
    async with (
        sandbox.attach() as streams,
        open_stdio_link(streams, server=server, owner=Nobody(), clock=clock) as link,
    ):
        with suppress(HandshakeRefused, LinkClosed, MCPError):
            introduced = await introduce(link.peer)
            await introduced.conversation.request("tools/list", None)
            listed_s = clock.monotonic_s()
    if listed_s is None:
        raise TrialFailed(f"it did not list its tools{_last_words(link)}")
    return listed_s


def difference(cold: Trial, forked: Trial) -> str | None:
    """Return how a forked server differs from the cold one, in plain words; None if it does not."""
    for name, text in cold.lists.items():
        if forked.lists.get(name) != text:
            return f"a fork answers {name} differently than a cold start"
    if not cold.answers:
        return None
    if len(set(cold.answers)) == 1:
        same = set(forked.answers) == set(cold.answers)
    else:  # its answer changes from call to call; that it is an answer can still be compared
        same = _failed(forked.answers[0]) == _failed(cold.answers[0])
    return None if same else f"a fork answers {cold.call} differently than a cold start"


def _canonical_lists(lists: Lists) -> dict[str, str]:
    return {
        "initialize": _canonical(lists.initialize),
        "tools/list": _canonical(list(lists.tools)),
        "resources/list": _canonical(list(lists.resources)),
        "resources/templates/list": _canonical(list(lists.resource_templates)),
        "prompts/list": _canonical(list(lists.prompts)),
    }


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def reading_call(lists: Lists, effects: Mapping[str, EffectName]) -> WarmupCall | None:
    """Find a tool that only reads and that can be called without arguments."""
    for tool in lists.tools:
        schema: Mapping[str, Any] = tool.get("inputSchema") or {}
        name = str(tool.get("name"))
        if _only_reads(tool, effects.get(name)) and not schema.get("required"):
            return WarmupCall(tool=name)
    return None


def _only_reads(tool: Mapping[str, Any], told: EffectName | None) -> bool:
    """Whether a tool may be called to compare: by the operator's word, else by its own.

    A tool's own word is enough here, trusted or not: whoever lies in it could do the same when started.
    """
    if told is not None:
        return told == "read"
    annotations: Mapping[str, Any] = tool.get("annotations") or {}
    return annotations.get("readOnlyHint") is True and annotations.get("openWorldHint") is not True


async def _call(server: Conversation, call: WarmupCall) -> str:
    """Return the canonical answer; an error is an answer too."""
    try:
        exchange = await server.request("tools/call", {"name": call.tool, "arguments": dict(call.arguments)})
    except MCPError as error:
        return _canonical({"isError": True, "error": str(error)})
    return _canonical(exchange.result)


def _failed(answer: str) -> bool:
    return bool(json.loads(answer).get("isError", False))


def _last_words(link: StdioLink) -> str:
    said = link.stderr.last(3)
    return f"; it wrote: {' | '.join(said)}" if said else ""
