"""A turn that says what a test wants it to say: thoughts, text and calls, cut as the test cuts them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from octavo.base.errors import GenerationError
from octavo.frontend.server.turns import Turn
from octavo.frontend.text.dialects.events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
    TurnDelta,
)

# Thinks, speaks, calls two tools and speaks again.
EVENTS: list[Event] = [
    ReasoningDelta("Let me"),
    ReasoningDelta(" think. 八"),
    TextDelta("I will"),
    TextDelta(" look. 🙂"),
    ToolCallBegin(0, "call_a", "weather"),
    ToolCallArguments(0, '{"city": "Pa'),
    ToolCallArguments(0, 'ris {x"}'),
    ToolCallEnd(0),
    ToolCallBegin(1, "call_b", "time"),
    ToolCallArguments(1, "{}"),
    ToolCallEnd(1),
    TextDelta("Done."),
]
# The same, cut off in the first call.
CUT: list[Event] = [*EVENTS[:6], ToolCallEnd(0)]


class ScriptedTurn(Turn):
    """Gives one event a delta, and behind them the end. fails: there is an error instead of the end."""

    def __init__(
        self, events: Sequence[Event], finish: Any = "tool_calls", stop: Any = None, fails: bool = False
    ) -> None:
        self._events = events
        self._finish = finish
        self._stop = stop
        self._fails = fails
        self.generation: Any = self
        self.closed = False

    @property
    def usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": 10,
            "completion_tokens": 7,
            "total_tokens": 17,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 3},
        }

    async def events(self) -> AsyncIterator[list[TurnDelta]]:
        for event in self._events:
            yield [TurnDelta(index=0, events=[event], token_ids=[1])]
        if self._fails:
            raise GenerationError("the logits are not numbers")
        yield [TurnDelta(index=0, events=[], token_ids=[], finish_reason=self._finish, stop_reason=self._stop)]

    def deltas(self, outputs: Any) -> list[TurnDelta]:
        return outputs

    async def aclose(self) -> None:
        self.closed = True


def script(monkeypatch: pytest.MonkeyPatch, route: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """Let a module of routes answer with scripted turns; returns the list of the conversations that it will ask for."""
    asked: list[Any] = []

    async def begin_turn(_request: Any, _context: Any, conversation: Any, params: Any, **_: Any) -> ScriptedTurn:
        asked.append((conversation, params))
        return ScriptedTurn(*args, **kwargs)

    monkeypatch.setattr(route, "begin_turn", begin_turn)
    return asked
