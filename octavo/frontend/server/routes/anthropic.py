"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.base.errors import InvalidRequestError, OctavoError
from octavo.frontend.server.body import decode_body, read_body
from octavo.frontend.server.context import context_of
from octavo.frontend.server.errors import anthropic_error, renamed
from octavo.frontend.server.routes.answers import json_response, label
from octavo.frontend.server.routes.anthropic_schema import CountBody, MessagesBody, conversation, sampling
from octavo.frontend.server.routes.encoders import Events, answer
from octavo.frontend.server.sse import named_event
from octavo.frontend.server.turns import Turn, begin_turn, render_turn
from octavo.frontend.text.dialects.events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
    TurnDelta,
)

_messages_decoder = msgspec.json.Decoder(MessagesBody)
_count_decoder = msgspec.json.Decoder(CountBody)
_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


async def messages(request: Request) -> Response:
    """Answer a conversation, streamed or whole."""
    context = context_of(request)
    body = decode_body(_messages_decoder, await read_body(request, context.config.max_body_bytes))
    model = context.served_name(body.model)
    params = sampling(body, context.service.sampling)
    named = label(request, "msg")
    try:
        turn = await begin_turn(request, context, conversation(body), params, request_id=named.id)
    except InvalidRequestError as error:
        raise renamed(error, {"prompt": "messages"}) from error
    encoder = MessageEncoder(turn, named.id, model)
    return await answer(request, turn, encoder, stream=bool(body.stream), headers=named.headers)


async def count_tokens(request: Request) -> Response:
    """Say how many tokens a conversation has, its system prompt and tools included."""
    context = context_of(request)
    body = decode_body(_count_decoder, await read_body(request, context.config.max_body_bytes))
    context.served_name(body.model)
    prompt = await render_turn(request, context, conversation(body))
    return json_response({"input_tokens": len(prompt)})


class MessageEncoder:
    """A message of Anthropic's: blocks of thinking, text and calls, one after the other."""

    media_type = "text/event-stream"

    def __init__(self, turn: Turn, id: str, model: str) -> None:
        self._turn = turn
        self._head = {"id": id, "type": "message", "role": "assistant", "model": model}
        self._content: list[dict[str, Any]] = []
        self._parts: list[str] = []
        self._ending: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}
        self._begun = False
        self._block: dict[str, Any] | None = None

    def begin(self) -> Events:
        """Return nothing: what was cached, which the first event says, is known with the first token."""
        return []

    def take(self, delta: TurnDelta) -> Events:
        """Return the events of a delta."""
        events: Events = []
        if not self._begun:
            self._begun = True
            events += [{"type": "message_start", "message": self.whole()}, {"type": "ping"}]
        for event in delta.events:
            events += self._event(event)
        if delta.finish_reason is not None:
            sequence = delta.stop_reason if isinstance(delta.stop_reason, str) else None
            reason = "stop_sequence" if sequence is not None else _STOP_REASONS.get(delta.finish_reason, "end_turn")
            self._ending = {"stop_reason": reason, "stop_sequence": sequence}
        return events

    def end(self) -> Events:
        """Return the last events: why it ended, and the final usage."""
        ending = {"type": "message_delta", "delta": self._ending, "usage": self._usage()}
        return [*self._close(), ending, {"type": "message_stop"}]

    def fail(self, error: OctavoError) -> Events:
        """Return an error event."""
        return [anthropic_error(error)]

    def whole(self) -> dict[str, Any]:
        """Return the message as far as it has come."""
        return {**self._head, "content": list(self._content), **self._ending, "usage": self._usage()}

    def frame(self, event: Mapping[str, Any]) -> bytes:
        """Return a server-sent event."""
        return named_event(event)

    def _event(self, event: Event) -> Events:
        match event:
            case TextDelta(text=text):
                return [*self._open("text"), self._delta("text_delta", "text", text)]
            case ReasoningDelta(text=text):
                return [*self._open("thinking"), self._delta("thinking_delta", "thinking", text)]
            case ToolCallBegin(id=id, name=name):
                return [*self._close(), *self._start({"type": "tool_use", "id": id, "name": name, "input": {}})]
            case ToolCallArguments(fragment=fragment):
                return [self._delta("input_json_delta", "partial_json", fragment)]
            case ToolCallEnd():
                return self._close()

    def _open(self, kind: str) -> Events:
        """Begin a block of this kind, unless one is being written."""
        if self._block is not None and self._block["type"] == kind:
            return []
        block = {"type": kind, kind: ""}
        return [*self._close(), *self._start({**block, "signature": ""} if kind == "thinking" else block)]

    def _start(self, block: dict[str, Any]) -> Events:
        self._block = block
        self._content.append(block)
        return [{"type": "content_block_start", "index": len(self._content) - 1, "content_block": dict(block)}]

    def _delta(self, kind: str, field: str, piece: str) -> dict[str, Any]:
        self._parts.append(piece)
        delta = {"type": kind, field: piece}
        return {"type": "content_block_delta", "index": len(self._content) - 1, "delta": delta}

    def _close(self) -> Events:
        """End the block that is being written, if one is, and keep it whole."""
        block, written = self._block, "".join(self._parts)
        self._block, self._parts = None, []
        if block is None:
            return []
        index, events = len(self._content) - 1, Events()
        match block["type"]:
            case "tool_use":
                block["input"] = _input(written)
            case "thinking":
                # Clients send thoughts back only if they are signed; nobody looks at what is written there.
                block |= {"thinking": written, "signature": self._head["id"]}
                signature = {"type": "signature_delta", "signature": self._head["id"]}
                events.append({"type": "content_block_delta", "index": index, "delta": signature})
            case kind:
                block[kind] = written
        return [*events, {"type": "content_block_stop", "index": index}]

    def _usage(self) -> dict[str, Any]:
        usage = self._turn.usage
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
        }


def _input(arguments: str) -> dict[str, Any]:
    """Return the arguments of a call, none if it was cut off: its stop_reason says so."""
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
