"""Server-sent events: chunks glued from parts that are encoded once, and the answer that sends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.base.errors import OctavoError
from octavo.base.logging import get_logger
from octavo.frontend.server.disconnect import ClientGoneError, until_disconnect
from octavo.frontend.server.errors import defect, error_object
from octavo.frontend.server.events import Generation
from octavo.protocol.output import CompletionOutput

DONE = b"data: [DONE]\n\n"
# In a request's scope: writes a piece of an answer whose head is out, in the loop's next turn, past the layers of middleware, of
# which each costs every token two microseconds; False where that would have to wait.
RAW_WRITE = "octavo.write"
_logger = get_logger(__name__)
encode_json = msgspec.json.encode


class ChunkFrame:
    """The parts of a stream's chunks that never change: all but the choices.

    with_usage: the client asked for usage, so every chunk has the key and one last chunk has the figures. start: of its JSON.
    """

    def __init__(self, head: Mapping[str, Any], *, with_usage: bool) -> None:
        self.start = encode_json(head)[:-1] + b","
        self._head = b"data: " + self.start + b'"choices":['
        self._tail = b'],"usage":null}\n\n' if with_usage else b"]}\n\n"

    def chunk(self, choice: bytes, usage: Mapping[str, Any] | None = None) -> bytes:
        """Return one event with one choice, given as JSON, or none, and the usage so far, if it is to be told."""
        if usage is not None:
            return self._head + choice + b'],"usage":' + encode_json(usage) + b"}\n\n"
        return self._head + choice + self._tail


def error_end(error: OctavoError) -> bytes:
    """Return what ends a stream with an error, in OpenAI's shape."""
    return b"data: " + encode_json(error_object(error)) + b"\n\n" + DONE


class EventStream(Response):
    """Sends what comes, and ends well, by an error too.

    generation: closed at the end, also when the client leaves before it. encode: how its outputs go over the wire, empty if
    they do not. begin: what goes before all of them. end, fail: return the last bytes.
    """

    def __init__(
        self,
        generation: Generation,
        encode: Callable[[list[CompletionOutput]], bytes],
        headers: Mapping[str, str],
        *,
        begin: bytes = b"",
        end: Callable[[], bytes],
        fail: Callable[[OctavoError], bytes] = error_end,
        media_type: str = "text/event-stream",
    ) -> None:
        self._generation = generation
        self._encode = encode
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
            await until_disconnect(receive, self._send_all(send, scope.get(RAW_WRITE), interval))
        except (ClientGoneError, OSError):
            _logger.debug("client left during a stream")
        finally:
            await self._generation.aclose()

    async def _send_all(self, send: Send, write: Callable[[bytes], bool] | None, interval: float) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        keeping = asyncio.ensure_future(self._keep_alive(send, interval))
        try:
            try:
                if self._begin:
                    await send({"type": "http.response.body", "body": self._begin, "more_body": True})
                async for outputs in self._generation.events():
                    if data := self._encode(outputs):
                        self._silent = False
                        if write is None or not write(data):
                            await send({"type": "http.response.body", "body": data, "more_body": True})
            finally:
                keeping.cancel()
                await asyncio.sleep(0)  # What is written goes out first.
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
