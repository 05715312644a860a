"""Server-sent events: chunks glued from parts that are encoded once, and the answer that sends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.base.errors import OctavoError
from octavo.base.logging import get_logger
from octavo.frontend.server.disconnect import ClientGoneError, until_disconnect
from octavo.frontend.server.errors import defect, error_object

DONE = b"data: [DONE]\n\n"
# In a request's scope: what sends without the layers of middleware, of which each costs every token two microseconds.
RAW_SEND = "octavo.send"
# What writes a piece of an answer whose head is out, without a message and a task's turn; False where that would have to wait.
RAW_WRITE = "octavo.write"
_logger = get_logger(__name__)
_T = TypeVar("_T")
encode_json = msgspec.json.encode


class ChunkFrame:
    """The parts of a stream's chunks that never change: all but the choices.

    with_usage: the client asked for usage, so every chunk has the key and one last chunk has the figures.
    """

    def __init__(self, head: Mapping[str, Any], *, with_usage: bool) -> None:
        self._start = b"data: " + encode_json(head)[:-1] + b","
        self._head = self._start + b'"choices":['
        self._tail = b'],"usage":null}\n\n' if with_usage else b"]}\n\n"

    def chunk(self, choice: bytes, usage: Mapping[str, Any] | None = None) -> bytes:
        """Return one event with one choice, given as JSON, or none, and the usage so far, if it is to be told."""
        if usage is not None:
            return self._head + choice + b'],"usage":' + encode_json(usage) + b"}\n\n"
        return self._head + choice + self._tail

    def event(self, fields: Mapping[str, Any]) -> bytes:
        """Return one event with these fields, the choices among them."""
        return self._start + encode_json(fields)[1:] + b"\n\n"


def error_end(error: OctavoError) -> bytes:
    """Return what ends a stream with an error, in OpenAI's shape."""
    return b"data: " + encode_json(error_object(error)) + b"\n\n" + DONE


def named_event(event: Mapping[str, Any]) -> bytes:
    """Return an event that is named by its type, as Anthropic's and those of Responses are."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode_json(event))


def _nothing_written(_data: bytes) -> bool:
    return False


class EventStream(Response, Generic[_T]):
    """Sends what comes, and ends well, by an error too.

    events: what comes. encode: how one of them goes over the wire, empty if it does not. close: aborts what still runs; called
    at the end, also when the client leaves before it. begin: what goes before all of them. end, fail: return the last bytes.
    """

    def __init__(
        self,
        events: AsyncIterator[_T],
        encode: Callable[[_T], bytes],
        close: Callable[[], Awaitable[None]],
        headers: Mapping[str, str],
        *,
        begin: bytes = b"",
        end: Callable[[], bytes],
        fail: Callable[[OctavoError], bytes] = error_end,
        media_type: str = "text/event-stream",
    ) -> None:
        self._events = events
        self._encode = encode
        self._close = close
        self._begin = begin
        self._end = end
        self._fail = fail
        self._silent = True
        self.media_type = media_type
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        try:
            interval = scope["app"].state.context.config.sse_keep_alive_interval if "app" in scope else 0.0
            write = scope.get(RAW_WRITE, _nothing_written)
            await until_disconnect(receive, self._send_all(send, scope.get(RAW_SEND, send), write, interval))
        except (ClientGoneError, OSError):
            _logger.debug("client left during a stream")
        finally:
            await self._close()

    async def _send_all(self, begin: Send, send: Send, write: Callable[[bytes], bool], interval: float) -> None:
        await begin({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        keeping = asyncio.ensure_future(self._keep_alive(send, interval))
        encode = self._encode
        try:
            try:
                if self._begin:
                    await send({"type": "http.response.body", "body": self._begin, "more_body": True})
                async for event in self._events:
                    if data := encode(event):
                        self._silent = False
                        if not write(data):
                            await send({"type": "http.response.body", "body": data, "more_body": True})
            finally:
                keeping.cancel()
            last = self._end()
        except OctavoError as error:
            _logger.warning("a stream ended with an error: %s", error.message)
            last = self._fail(error)
        except Exception:
            await send({"type": "http.response.body", "body": self._fail(defect()), "more_body": False})
            raise
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _keep_alive(self, send: Send, interval: float) -> None:
        """Send a comment whenever there was nothing else in an interval: proxies cut connections that are silent."""
        while interval and self.media_type == "text/event-stream":
            await asyncio.sleep(interval)
            if self._silent:
                await send({"type": "http.response.body", "body": b": alive\n\n", "more_body": True})
            self._silent = True
