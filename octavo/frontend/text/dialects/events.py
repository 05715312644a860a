"""What a turn of a conversation is made of, whoever asked and however it is written: the events under every chat protocol.

A route gets them of `Turn.deltas` (`octavo/frontend/server/turns.py`), which returns a list of `TurnDelta`, one for each
choice that has news. The events of one choice keep this order, however the text was cut into tokens:

- `ReasoningDelta` and `TextDelta`: never empty; joined they are the whole reasoning and the whole text. Reasoning mostly
  comes first, but a model may think again behind a call.
- A call is `ToolCallBegin`, any number of `ToolCallArguments`, `ToolCallEnd`. Calls do not overlap, their indices count from
  0. The fragments joined are one JSON object, unless the answer was cut off in the call, when the finish reason is "length"
  (or another that is not "tool_calls"); `ToolCallEnd` comes all the same.
- The last delta of a choice has the finish reason. "tool_calls" means that the model itself ended its turn, and that there
  is at least one call.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from octavo.protocol.output import FinishReason, Logprob

TurnFinish = FinishReason | Literal["tool_calls"]


class TextDelta(msgspec.Struct, frozen=True):
    """More of the answer."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True):
    """More of the thoughts before the answer."""

    text: str


class ToolCallBegin(msgspec.Struct, frozen=True):
    """A call of a tool begins. index: of the calls of this choice, from 0. id: as clients will name it in their answer."""

    index: int
    id: str
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True):
    """More of the arguments' JSON text, which is one object when the call has ended."""

    index: int
    fragment: str


class ToolCallEnd(msgspec.Struct, frozen=True):
    """The call has ended; nothing more comes of it."""

    index: int


Event = TextDelta | ReasoningDelta | ToolCallBegin | ToolCallArguments | ToolCallEnd


class TurnDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of one choice. `events` may be empty: tokens came whose text is held back, or that are only markers.

    token_ids, logprobs: of all new tokens, markers too; logprobs is None where none were asked for. stop_reason: the stop
    string or token id that ended the choice.
    """

    index: int
    events: list[Event]
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: TurnFinish | None = None
    stop_reason: int | str | None = None
