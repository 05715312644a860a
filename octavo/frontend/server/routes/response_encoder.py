"""A turn as OpenAI's Responses write it: items, one after the other, each with its events and its place in the whole."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from octavo.base.errors import OctavoError
from octavo.frontend.server.routes.blocks import Block, BlockEncoder, BlockKind
from octavo.frontend.server.routes.encoders import Events
from octavo.frontend.server.sse import encode_json
from octavo.frontend.server.turns import Turn

_TEXT = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
# Of each kind of item: its type, the beginning of its id, that of its events' names, and its empty part.
_KINDS: Mapping[BlockKind, tuple[str, str, str, dict[str, Any]]] = {
    "text": ("message", "msg", "response.output_text", _TEXT),
    "thoughts": ("reasoning", "rs", "response.reasoning_text", {"type": "reasoning_text", "text": ""}),
    "call": ("function_call", "fc", "response.function_call_arguments", {}),
}
# What the events of its text say besides.
_PLACES: Mapping[BlockKind, dict[str, Any]] = {
    "text": {"content_index": 0, "logprobs": []},
    "thoughts": {"content_index": 0},
    "call": {},
}


class ResponseEncoder(BlockEncoder):
    """One response. head: what it repeats of its request. when_ended: called at its good end, with the size of its output."""

    def __init__(self, turn: Turn, head: Mapping[str, Any]) -> None:
        super().__init__(turn)
        self.when_ended: Callable[[int], None] = lambda _num_bytes: None
        self._head = head
        self._state: dict[str, Any] = {
            "status": "in_progress",
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "usage": None,
        }
        self._output: list[dict[str, Any]] = []
        self._num_events = 0

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self._state["status"] != "in_progress"

    @property
    def message(self) -> dict[str, Any]:
        """The answer as the chat's next message."""
        calls = [
            {"id": one.call.id, "type": "function", "function": {"name": one.call.name, "arguments": one.text}}
            for one in self.blocks
            if one.call is not None
        ]
        thoughts = self.text_of("thoughts")
        message = {"role": "assistant", "content": self.text_of("text")}
        return {
            **message,
            **({"reasoning_content": thoughts} if thoughts else {}),
            **({"tool_calls": calls} if calls else {}),
        }

    def begin(self) -> Events:
        """Return the events of a response without output."""
        return [self._event(f"response.{name}", response=self.whole()) for name in ("created", "in_progress")]

    def opened(self, block: Block) -> Events:
        """Return the events of a new item, and of its part."""
        type, prefix, _, part = _KINDS[block.kind]
        item = {"type": type, "id": f"{prefix}_{uuid.uuid4().hex}", "status": "in_progress"}
        if block.call is not None:
            item |= {"call_id": block.call.id, "name": block.call.name, "arguments": ""}
        else:
            item |= {"content": [], **({"role": "assistant"} if block.kind == "text" else {"summary": []})}
        self._output.append(item)
        begun = [self._whole_item("added")]
        return [*begun, self._item_event("response.content_part.added", content_index=0, part=part)] if part else begun

    def filled(self, block: Block, piece: str) -> Events:
        """Return the event of a piece of an item."""
        return [self._item_event(f"{_KINDS[block.kind][2]}.delta", delta=piece, **_PLACES[block.kind])]

    def closed(self, block: Block) -> Events:
        """Keep the item whole; return the events of its end."""
        item, text, (_, _, name, part) = self._output[-1], block.text, _KINDS[block.kind]
        item["status"] = "completed" if self.finish_reason in (None, "stop", "tool_calls") else "incomplete"
        if block.call is not None:
            item["arguments"] = text
            return [self._item_event(f"{name}.done", name=item["name"], arguments=text), self._whole_item("done")]
        item["content"] = [{**part, "text": text}]
        return [
            self._item_event(f"{name}.done", text=text, **_PLACES[block.kind]),
            self._item_event("response.content_part.done", content_index=0, part=item["content"][0]),
            self._whole_item("done"),
        ]

    def end(self) -> Events:
        """Return the end of the last item, and that of the response."""
        events = self.close()
        self._state |= {"status": "completed", "completed_at": int(time.time()), "usage": self._usage()}
        if self.finish_reason == "length":
            cut = {"reason": "max_output_tokens"}
            self._state |= {"status": "incomplete", "completed_at": None, "incomplete_details": cut}
        self.when_ended(len(encode_json(self._output)))
        return [*events, self._event(f"response.{self._state['status']}", response=self.whole())]

    def fail(self, error: OctavoError) -> Events:
        """Return the event of a response that failed, with the output so far."""
        self._state |= {"status": "failed", "error": {"code": "server_error", "message": error.message}}
        return [self._event("response.failed", response=self.whole())]

    def cancel(self) -> None:
        """End the response, because it was asked for."""
        self._state["status"] = "cancelled"

    def whole(self) -> dict[str, Any]:
        """Return the response as far as it has come."""
        return {**self._head, **self._state, "output": list(self._output)}

    def _whole_item(self, what: str) -> dict[str, Any]:
        place = len(self._output) - 1
        return self._event(f"response.output_item.{what}", output_index=place, item=dict(self._output[-1]))

    def _item_event(self, kind: str, **fields: Any) -> dict[str, Any]:
        item = self._output[-1]
        return self._event(kind, item_id=item["id"], output_index=len(self._output) - 1, **fields)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        number, self._num_events = self._num_events, self._num_events + 1
        return {"type": kind, "sequence_number": number, **fields}

    def _usage(self) -> dict[str, Any]:
        usage = self.turn.usage
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0, **usage.get("completion_tokens_details", {})},
            "total_tokens": usage["total_tokens"],
        }
