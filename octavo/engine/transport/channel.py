"""The two ends of the wire between a front and an engine.

Nothing grows without bound unseen. Engine to front: at most `HIGH_WATER` messages wait; when a front does not read, the
engine says so once and pauses until it does, because tokens that nobody reads need not be made. Front to engine: no mark,
since every message belongs to a request that the front holds open anyway (it bounds those, `max_num_queued_reqs`), and so
sending never waits.

Bytes that are not a message are logged and ignored, whoever sent them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import zmq
import zmq.asyncio

from octavo.base.logging import get_logger
from octavo.engine.transport.endpoints import engine_endpoint, front_endpoint
from octavo.protocol.codec import Codec, DecodeError
from octavo.protocol.output import EngineMessage
from octavo.protocol.request import FrontMessage

HIGH_WATER = 4096
# Messages taken between two steps, so that a flood of them cannot hold up what runs.
_MESSAGES_PER_TURN = 256
_RETRY_MS = 20
_FLUSH_MS = 2000

_log = get_logger(__name__)


class EngineChannel:
    """The engine's end: messages of all fronts in, and every message out to all of them. Used by one thread only.

    A front passes over the rows of others, which is less work than to take them out one by one.
    stopping: set when the engine has to end; a waiting `send` or `receive` then returns.
    """

    def __init__(self, folder: str, *, stopping: threading.Event, wake_fd: int, num_fronts: int = 1) -> None:
        self._stopping = stopping
        self._context = zmq.Context()
        self._in = self._context.socket(zmq.PULL)
        self._in.set_hwm(0)
        self._in.bind(engine_endpoint(folder))
        self._outs = [_push(self._context, front_endpoint(folder, i), HIGH_WATER) for i in range(num_fronts)]
        self._poller = zmq.Poller()
        self._poller.register(self._in, zmq.POLLIN)
        # Readable at the end: it wakes an idle engine.
        self._poller.register(wake_fd, zmq.POLLIN)
        self._codec: Codec[FrontMessage] = Codec(FrontMessage)
        self._answers: Codec[EngineMessage] = Codec(EngineMessage)

    def wait(self, seconds: float | None = None) -> None:
        """Return when a message can be received, the engine has to stop, or time is up."""
        self._poller.poll(None if seconds is None else int(seconds * 1000))

    def receive(self) -> Iterator[FrontMessage]:
        """Yield the messages that are there, some hundreds at most; never waits."""
        for _ in range(_MESSAGES_PER_TURN):
            try:
                data = self._in.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                yield self._codec.decode(data)
            except DecodeError as error:
                _log.warning("ignored %d bytes from a front: %s", len(data), error)

    def send(self, message: EngineMessage) -> None:
        """Send to all fronts; waits while one is `HIGH_WATER` messages behind."""
        data = self._answers.encode(message)
        for out in self._outs:
            self._send(out, data)

    def _send(self, out: zmq.Socket[bytes], data: bytes) -> None:
        waited_since: float | None = None
        while not self._stopping.is_set():
            try:
                out.send(data, zmq.NOBLOCK)
            except zmq.Again:
                if waited_since is None:
                    waited_since = time.monotonic()
                    _log.warning("the front is %d messages behind; the engine pauses until it reads", HIGH_WATER)
                out.poll(100, zmq.POLLOUT)
            else:
                break
        if waited_since is not None:
            _log.warning("the engine goes on after %.1f s", time.monotonic() - waited_since)

    def close(self) -> None:
        """Give what was sent two seconds to leave, then close."""
        self._in.close(linger=0)
        for out in self._outs:
            out.close(linger=_FLUSH_MS)
        self._context.term()


class Heartbeat:
    """A second line to the fronts for the thread that says that this process runs. Never waits, never queues."""

    def __init__(self, folder: str, num_fronts: int = 1) -> None:
        self._context = zmq.Context()
        self._outs = [_push(self._context, front_endpoint(folder, i), 1) for i in range(num_fronts)]

    def send(self, data: bytes) -> None:
        """Send encoded bytes, or drop them where a front does not read."""
        for out in self._outs:
            with contextlib.suppress(zmq.Again):
                out.send(data, zmq.NOBLOCK)

    def close(self) -> None:
        """Close at once."""
        self._context.destroy(linger=0)


class FrontChannel:
    """A front's end. `receive` belongs to one asyncio event loop; `send` to the same thread."""

    def __init__(self, folder: str, front: int = 0) -> None:
        self._context = zmq.Context()
        incoming = self._context.socket(zmq.PULL)
        incoming.set_hwm(HIGH_WATER)
        incoming.bind(front_endpoint(folder, front))
        self._in = incoming
        self._reader: zmq.asyncio.Socket | None = None
        self._out = _push(self._context, engine_endpoint(folder), 0)
        self._codec: Codec[FrontMessage] = Codec(FrontMessage)
        self._answers: Codec[EngineMessage] = Codec(EngineMessage)

    def send(self, message: FrontMessage) -> None:
        """Send to the engine; never waits."""
        self._out.send(self._codec.encode(message), zmq.NOBLOCK)

    async def receive(self) -> EngineMessage:
        """Return the engine's next message."""
        reader = self._reader
        if reader is None:
            reader = self._reader = zmq.asyncio.Socket.shadow(self._in.underlying)
        while True:
            data = await reader.recv()
            assert isinstance(data, bytes)
            try:
                return self._answers.decode(data)
            except DecodeError as error:
                _log.warning("ignored %d bytes from the engine: %s", len(data), error)

    def close(self) -> None:
        """Close at once; idempotent."""
        if self._reader is not None:
            self._reader.close(linger=0)
        self._in.close(linger=0)
        self._out.close(linger=0)
        self._context.term()


def _push(context: zmq.Context[zmq.Socket[bytes]], address: str, high_water: int) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PUSH)
    socket.set_hwm(high_water)
    socket.setsockopt(zmq.RECONNECT_IVL, _RETRY_MS)
    socket.connect(address)
    return socket
