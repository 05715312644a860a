"""A turn as OpenAI's Responses write it: items, one after the other, each with its events and its place in the whole."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from octavo.base.errors import OctavoError
from octavo.frontend.server.routes.encoders import Events
from octavo.frontend.server.sse import encode_json, named_event
from octavo.frontend.server.turns import Turn, WholeTurn
from octavo.frontend.text.dialects.events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
    TurnDelta,
)

# Type of an item -> beginning of its id, names of its events, and of its part.
_KINDS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "message": ("msg", "response.output_text", {"type": "output_text", "text": "", "annotations": [], "logprobs": []}),
    "reasoning": ("rs", "response.reasoning_text", {"type": "reasoning_text", "text": ""}),
    "function_call": ("fc", "response.function_call_arguments", {}),
}


class ResponseEncoder:
    """One response. head: what it repeats of its request. when_ended: called at its good end, with the size of its output."""

    media_type = "text/event-stream"

    def __init__(self, turn: Turn, head: Mapping[str, Any]) -> None:
        self.when_ended: Callable[[int], None] = lambda _num_bytes: None
        self._turn = turn
        self._head = head
        self._state: dict[str, Any] = {
            "status": "in_progress",
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "usage": None,
        }
        self._output: list[dict[str, Any]] = []
        self._item: dict[str, Any] | None = None
        self._parts: list[str] = []
        self._made = WholeTurn(index=0)
        self._num_events = 0

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self._state["status"] != "in_progress"

    @property
    def message(self) -> dict[str, Any]:
        """The answer as the chat's next message."""
        made = self._made
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in made.calls
        ]
        thoughts = {"reasoning_content": made.reasoning} if made.reasoning else {}
        return {"role": "assistant", "content": made.text, **thoughts, **({"tool_calls": calls} if calls else {})}

    def begin(self) -> Events:
        """Return the events of a response without output."""
        return [self._event(f"response.{name}", response=self.whole()) for name in ("created", "in_progress")]

    def take(self, delta: TurnDelta) -> Events:
        """Return the events of a delta."""
        self._made.add(delta)
        return [made for event in delta.events for made in self._events(event)]

    def end(self) -> Events:
        """Return the end of the last item, and that of the response."""
        events = self._close()
        self._state |= {"status": "completed", "completed_at": int(time.time()), "usage": self._usage()}
        if self._made.finish_reason == "length":
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

    def frame(self, event: Mapping[str, Any]) -> bytes:
        """Return a server-sent event."""
        return named_event(event)

    def _events(self, event: Event) -> Events:
        match event:
            case TextDelta(text=text):
                return [*self._open("message"), self._delta(text, content_index=0, logprobs=[])]
            case ReasoningDelta(text=text):
                return [*self._open("reasoning"), self._delta(text, content_index=0)]
            case ToolCallBegin(id=id, name=name):
                call = {"call_id": id, "name": name, "arguments": ""}
                return [*self._close(), *self._start("function_call", call)]
            case ToolCallArguments(fragment=fragment):
                return [self._delta(fragment)]
            case ToolCallEnd():
                return self._close()

    def _open(self, kind: str) -> Events:
        """Begin an item of text, unless one of this kind is being written."""
        if self._item is not None and self._item["type"] == kind:
            return []
        fields = {"role": "assistant", "content": []} if kind == "message" else {"summary": [], "content": []}
        events = [*self._close(), *self._start(kind, fields)]
        part = dict(_KINDS[kind][2])
        return [*events, self._item_event("response.content_part.added", content_index=0, part=part)]

    def _start(self, kind: str, fields: dict[str, Any]) -> Events:
        id = f"{_KINDS[kind][0]}_{uuid.uuid4().hex}"
        self._item = {"type": kind, "id": id, "status": "in_progress", **fields}
        self._output.append(self._item)
        return [self._whole_item("added")]

    def _delta(self, piece: str, **fields: Any) -> dict[str, Any]:
        assert self._item is not None
        self._parts.append(piece)
        return self._item_event(f"{_KINDS[self._item['type']][1]}.delta", delta=piece, **fields)

    def _close(self) -> Events:
        """End the item that is being written, if one is, and keep it whole."""
        item, written = self._item, "".join(self._parts)
        if item is None:
            return []
        _, name, part = _KINDS[item["type"]]
        item["status"] = "completed" if self._made.finish_reason in (None, "stop", "tool_calls") else "incomplete"
        if item["type"] == "function_call":
            item["arguments"] = written
            events = [self._item_event(f"{name}.done", name=item["name"], arguments=written)]
        else:
            item["content"] = [{**part, "text": written}]
            logprobs = {"logprobs": []} if "logprobs" in part else {}
            events = [
                self._item_event(f"{name}.done", content_index=0, text=written, **logprobs),
                self._item_event("response.content_part.done", content_index=0, part=item["content"][0]),
            ]
        events.append(self._whole_item("done"))
        self._item, self._parts = None, []
        return events

    def _whole_item(self, what: str) -> dict[str, Any]:
        assert self._item is not None
        return self._event(f"response.output_item.{what}", output_index=len(self._output) - 1, item=dict(self._item))

    def _item_event(self, kind: str, **fields: Any) -> dict[str, Any]:
        assert self._item is not None
        return self._event(kind, item_id=self._item["id"], output_index=len(self._output) - 1, **fields)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        number, self._num_events = self._num_events, self._num_events + 1
        return {"type": kind, "sequence_number": number, **fields}

    def _usage(self) -> dict[str, Any]:
        usage = self._turn.usage
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0, **usage.get("completion_tokens_details", {})},
            "total_tokens": usage["total_tokens"],
        }
