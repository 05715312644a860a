"""Turns of one choice as a row of blocks, as all protocols but chat completions see them: text, thoughts and calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from octavo.frontend.server.routes.encoders import Events, TurnEncoder
from octavo.frontend.server.sse import encode_json
from octavo.frontend.server.turns import Turn
from octavo.frontend.text.dialects.events import (
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
    TurnDelta,
    TurnFinish,
)

BlockKind = Literal["text", "thoughts", "call"]


@dataclass(slots=True, kw_only=True)
class Block:
    """One block. call: which one, of that kind. pieces: of its text, or of its arguments."""

    kind: BlockKind
    call: ToolCallBegin | None = None
    pieces: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.pieces)


class BlockEncoder(TurnEncoder):
    """An encoder of which a protocol says what opens, fills and closes a block.

    blocks: all so far, the last one is open until `close`.
    """

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.blocks: list[Block] = []
        self.finish_reason: TurnFinish | None = None
        self.stop_reason: int | str | None = None
        self._open = False

    def take(self, delta: TurnDelta) -> Events:
        """Return what the delta makes known."""
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        events: Events = []
        for event in delta.events:
            match event:
                case TextDelta(text=text):
                    events += self._more("text", text)
                case ReasoningDelta(text=text):
                    events += self._more("thoughts", text)
                case ToolCallBegin():
                    events += self._begin(Block(kind="call", call=event))
                case ToolCallArguments(fragment=fragment):
                    events += self._more("call", fragment)
                case _:
                    events += self.close()
        return events

    def close(self) -> Events:
        """End the block that is being written, if one is."""
        is_open, self._open = self._open, False
        return self.closed(self.blocks[-1]) if is_open else []

    def text_of(self, kind: BlockKind) -> str:
        """Return the text of all blocks of a kind."""
        return "".join(block.text for block in self.blocks if block.kind == kind)

    def _begin(self, block: Block) -> Events:
        ended = self.close()
        self.blocks.append(block)
        self._open = True
        return [*ended, *self.opened(block)]

    def _more(self, kind: BlockKind, piece: str) -> Events:
        same = self._open and self.blocks[-1].kind == kind
        begun = [] if same else self._begin(Block(kind=kind))
        self.blocks[-1].pieces.append(piece)
        return [*begun, *self.filled(self.blocks[-1], piece)]

    def opened(self, block: Block) -> Events:
        """Return the events with which a block begins."""
        return []

    def filled(self, block: Block, piece: str) -> Events:
        """Return the events of more of a block."""
        raise NotImplementedError

    def closed(self, block: Block) -> Events:
        """Return the events with which a block ends."""
        raise NotImplementedError

    def frame(self, event: Mapping[str, Any]) -> bytes:
        """Return an event that is named by its type, as Anthropic's and those of Responses are."""
        return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode_json(event))


def arguments_of(block: Block) -> dict[str, Any]:
    """Return the arguments of a call, none if it was cut off: the finish reason says so."""
    try:
        return msgspec.json.decode(block.text, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
