"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from octavo.base.errors import InvalidRequestError, OctavoError
from octavo.frontend.server.body import asked_of
from octavo.frontend.server.errors import anthropic_error, renamed
from octavo.frontend.server.routes.answers import json_response, label
from octavo.frontend.server.routes.anthropic_schema import FORMAT, CountBody, MessagesBody, conversation, sampling
from octavo.frontend.server.routes.blocks import Block, BlockEncoder, BlockKind, arguments_of
from octavo.frontend.server.routes.encoders import Events, answer
from octavo.frontend.server.turns import Turn, begin_turn, render_turn
from octavo.frontend.text.dialects.events import TurnDelta

_DELTAS: Mapping[BlockKind, tuple[str, str]] = {
    "text": ("text_delta", "text"),
    "thoughts": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}
_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


async def messages(request: Request) -> Response:
    """Answer a conversation, streamed or whole."""
    context, body = await asked_of(request, MessagesBody)
    model = context.served_name(body.model)
    params = sampling(body, context.service.sampling)
    named = label(request, "msg")
    try:
        turn = await begin_turn(request, context, conversation(body), params, request_id=named.id)
    except InvalidRequestError as error:
        raise renamed(error, {"prompt": "messages", **FORMAT}) from error
    encoder = MessageEncoder(turn, named.id, model)
    return await answer(request, turn, encoder, stream=bool(body.stream), headers=named.headers)


async def count_tokens(request: Request) -> Response:
    """Say how many tokens a conversation has, its system prompt and tools included."""
    context, body = await asked_of(request, CountBody)
    context.served_name(body.model)
    prompt = await render_turn(request, context, conversation(body))
    return json_response({"input_tokens": len(prompt)})


class MessageEncoder(BlockEncoder):
    """A message of Anthropic's."""

    def __init__(self, turn: Turn, id: str, model: str) -> None:
        super().__init__(turn)
        self._head = {"id": id, "type": "message", "role": "assistant", "model": model}
        self._content: list[dict[str, Any]] = []
        self._begun = False

    def take(self, delta: TurnDelta) -> Events:
        """Return the events of a delta; the first says what was cached, which is known with the first token."""
        start: Events = [] if self._begun else [{"type": "message_start", "message": self.whole()}, {"type": "ping"}]
        self._begun = True
        return [*start, *super().take(delta)]

    def opened(self, block: Block) -> Events:
        """Return the event of a new block."""
        match block.kind:
            case "text":
                empty = {"type": "text", "text": ""}
            case "thoughts":
                empty = {"type": "thinking", "thinking": "", "signature": ""}
            case "call":
                assert block.call is not None
                empty = {"type": "tool_use", "id": block.call.id, "name": block.call.name, "input": {}}
        self._content.append(empty)
        return [self._event("start", content_block=dict(empty))]

    def filled(self, block: Block, piece: str) -> Events:
        """Return the event of a piece of a block."""
        return [self._delta(*_DELTAS[block.kind], piece)]

    def closed(self, block: Block) -> Events:
        """Keep the block whole; return the events of its end."""
        content, events = self._content[-1], Events()
        match block.kind:
            case "text":
                content["text"] = block.text
            case "thoughts":
                # Clients send thoughts back only if they are signed; nobody looks at what is written there.
                content |= {"thinking": block.text, "signature": self._head["id"]}
                events.append(self._delta("signature_delta", "signature", self._head["id"]))
            case "call":
                content["input"] = arguments_of(block)
        return [*events, self._event("stop")]

    def end(self) -> Events:
        """Return the last events: why it ended, and the final usage."""
        ending = {"type": "message_delta", "delta": self._ending(), "usage": self._usage()}
        return [*self.close(), ending, {"type": "message_stop"}]

    def fail(self, error: OctavoError) -> Events:
        """Return an error event."""
        return [anthropic_error(error)]

    def whole(self) -> dict[str, Any]:
        """Return the message as far as it has come."""
        return {**self._head, "content": list(self._content), **self._ending(), "usage": self._usage()}

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": f"content_block_{kind}", "index": len(self._content) - 1, **fields}

    def _delta(self, kind: str, field: str, piece: str) -> dict[str, Any]:
        return self._event("delta", delta={"type": kind, field: piece})

    def _ending(self) -> dict[str, Any]:
        finish, stop = self.finish_reason, self.stop_reason
        if finish is None:
            return {"stop_reason": None, "stop_sequence": None}
        if isinstance(stop, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        return {"stop_reason": _STOP_REASONS.get(finish, "end_turn"), "stop_sequence": None}

    def _usage(self) -> dict[str, Any]:
        usage = self.turn.usage
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
        }
