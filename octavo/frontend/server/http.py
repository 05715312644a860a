"""HTTP/1.1 by llhttp, which costs a streamed token a third of what h11 does, with the limits on requests that it lacks."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from octavo.frontend.server.sse import RAW_WRITE

_LIMIT = 2**16
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection. A request whose headers are longer than `h11_max_incomplete_event_size` gets 400.

    seconds: in which a request must have come whole; one that has not gets 408. write_seconds: in which a client must take
    what waits for it; one that does not is cut off. pieces: of answers of all connections, which go out together in the
    loop's next turn, because going to and from the system for each makes both of them slower.
    """

    def __init__(
        self,
        seconds: float,
        write_seconds: float,
        pieces: list[tuple[asyncio.Transport, bytes]],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._limit = self.config.h11_max_incomplete_event_size or _LIMIT
        self._seconds, self._write_seconds, self._pieces = seconds, write_seconds, pieces
        self._num_head_bytes, self._in_head = 0, True
        self._answering: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self._seconds, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer, and tell the request that is answered, which need not be the last that came."""
        self._timer.cancel()
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what came; it is counted while headers are incomplete."""
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._num_head_bytes += len(data)
            if self._num_head_bytes > self._limit:
                self.send_400_response("The headers are too long.")

    def on_message_begin(self) -> None:
        """Begin to count and to wait."""
        super().on_message_begin()
        self._num_head_bytes, self._in_head = 0, True
        self._timer.cancel()
        self._timer = self.loop.call_later(self._seconds, self._too_slow)

    def on_headers_complete(self) -> None:
        """Stop counting."""
        self._in_head = False
        super().on_headers_complete()
        self.scope[RAW_WRITE] = functools.partial(self._write, self.cycle)  # pyright: ignore[reportGeneralTypeIssues]

    def on_message_complete(self) -> None:
        """Stop waiting: the answer takes as long as it takes."""
        self._timer.cancel()
        super().on_message_complete()

    def _write(self, cycle: RequestResponseCycle, data: bytes) -> bool:
        if self.flow.write_paused or cycle.disconnected or not cycle.chunked_encoding:
            return False
        if not self._pieces:
            self.loop.call_soon(self._flush)
        self._pieces.append((self.transport, b"%x\r\n%b\r\n" % (len(data), data)))
        return True

    def _flush(self) -> None:
        for transport, piece in self._pieces:
            transport.write(piece)
        self._pieces.clear()

    def pause_writing(self) -> None:
        """Begin to wait for the client to read."""
        super().pause_writing()
        self._stalled = self.loop.call_later(self._write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads."""
        self._stalled.cancel()
        super().resume_writing()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _too_slow(self) -> None:
        answering = self._answering
        if self.transport.is_closing():
            return
        if answering and not answering.response_complete and (self._in_head or answering is not self.cycle):
            # The answer to a request before it is under way: this one has time until that is there.
            self._timer = self.loop.call_later(self._seconds, self._too_slow)
            return
        self.transport.write(_TOO_SLOW)
        self.transport.close()
