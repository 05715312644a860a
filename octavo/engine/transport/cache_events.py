"""What the prefix cache keeps and forgets, told over zmq to routers that send requests where their prefix lies.

Messages are vLLM's: three frames, topic, number (8 bytes, big-endian) and a msgpack batch `[seconds, events, 0]`, where an
event is its name and its fields in order. Who missed some asks the replay socket for all from a number on; -1 ends its answer.
"""

from __future__ import annotations

import time
from collections import deque

import msgspec
import zmq

from octavo.base.errors import ConfigError
from octavo.base.logging import get_logger
from octavo.config.cache import CacheEvents
from octavo.engine.kvcache.blocks import CacheEvent

_END = (-1).to_bytes(8, "big", signed=True)
_log = get_logger(__name__)


class CacheEventPublisher:
    """Publishes batches and keeps the latest for replay. Used by one thread only. Raises ConfigError for an address in use."""

    def __init__(self, config: CacheEvents) -> None:
        self._topic = config.topic.encode()
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)
        self._number = 0
        self._context = zmq.Context()
        self._out = self._bound(zmq.PUB, config.endpoint, config.hwm)
        # Room for two whole answers: what somebody asks for beyond them, and does not read, is dropped.
        room = 2 * (config.buffer_steps + 1)
        self._replay = self._bound(zmq.ROUTER, config.replay_endpoint, room) if config.replay_endpoint else None
        _log.info("cache events are published on %s", config.endpoint)

    def publish(self, events: list[CacheEvent]) -> None:
        """Send what happened, if anything did, and answer who asks for earlier batches; never waits."""
        if events:
            number = self._number.to_bytes(8, "big")
            data = msgspec.msgpack.encode([time.time(), events, 0])
            self._number += 1
            self._kept.append((number, data))
            self._out.send_multipart((self._topic, number, data))
        while self._replay is not None and self._replay.poll(0):
            client, *_, first = self._replay.recv_multipart()
            for number, data in self._kept:
                if number >= first:
                    self._replay.send_multipart((client, b"", number, data))
            self._replay.send_multipart((client, b"", _END, b""))

    def close(self) -> None:
        """Close the sockets; what is under way goes out."""
        self._context.destroy(linger=200)

    def _bound(self, kind: int, endpoint: str, high_water: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(high_water)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ConfigError(
                f"cannot publish cache events on {endpoint}: {error}", field="kv_events_config"
            ) from error
        return socket
