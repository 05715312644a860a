"""How a protocol writes a turn: one encoder, whose whole answer is what the events of its stream add up to."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from octavo.base.errors import OctavoError
from octavo.frontend.server.disconnect import until_disconnect
from octavo.frontend.server.routes.answers import json_response
from octavo.frontend.server.sse import EventStream
from octavo.frontend.server.turns import Turn
from octavo.frontend.text.dialects.events import TurnDelta
from octavo.protocol.output import CompletionOutput

Events = list[dict[str, Any]]


class TurnEncoder(Protocol):
    """Writes a turn. Asked for its events in order: begin, take for every delta, then end or fail."""

    media_type: str = "text/event-stream"

    def begin(self) -> Events:
        """Return what comes before the first token: nothing, where a choice begins with it."""
        return []

    def take(self, delta: TurnDelta) -> Events:
        """Return what the delta makes known."""
        ...

    def end(self) -> Events:
        """Return what ends the stream well."""
        ...

    def fail(self, error: OctavoError) -> Events:
        """Return what ends the stream with an error."""
        ...

    def whole(self) -> dict[str, Any]:
        """Return the answer to a request that is not streamed, once `end` was asked for."""
        ...

    def frame(self, event: Mapping[str, Any]) -> bytes:
        """Return an event as it goes over the wire."""
        ...

    def written(self, delta: TurnDelta) -> bytes:
        """Return what `take` returns as it goes over the wire."""
        return b"".join(map(self.frame, self.take(delta)))


async def make(turn: Turn, encoder: TurnEncoder) -> None:
    """Let the encoder see all of a turn; raises the generation's errors."""
    encoder.begin()
    async for outputs in turn.generation.events():
        for delta in turn.deltas(outputs):
            encoder.take(delta)
    encoder.end()


async def answer(
    request: Request, turn: Turn, encoder: TurnEncoder, *, stream: bool, headers: Mapping[str, str], done: bytes = b""
) -> Response:
    """Answer with a turn, streamed or whole. Raises the generation's errors, or ClientGoneError, if it is not streamed."""
    if stream:

        def encode(outputs: list[CompletionOutput]) -> bytes:
            return b"".join(map(encoder.written, turn.deltas(outputs)))

        return EventStream(
            turn.generation,
            encode,
            headers,
            begin=b"".join(map(encoder.frame, encoder.begin())),
            end=lambda: b"".join(map(encoder.frame, encoder.end())) + done,
            fail=lambda error: b"".join(map(encoder.frame, encoder.fail(error))) + done,
            media_type=encoder.media_type,
        )
    async with aclosing(turn.generation):
        await until_disconnect(request.receive, make(turn, encoder))
    return json_response(encoder.whole(), headers)
