"""The engine process: builds the engine it is told to, then receives, steps and sends until its parent is gone.

Started by `octavo.engine.spawn` as `python -m octavo.engine.process`; `octavo.engine.child` says how the two are tied. The
front decides when running requests have been served.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from octavo.base.errors import OctavoError
from octavo.base.registry import import_path
from octavo.engine.child import Parent
from octavo.engine.transport.channel import EngineChannel, Heartbeat
from octavo.engine.transport.endpoints import remove_folder
from octavo.protocol.codec import Codec
from octavo.protocol.output import EngineMessage, EngineStats, Failure, Ready, TokenDelta
from octavo.protocol.request import FrontMessage

HEARTBEAT_SECONDS = 1.0
# A loop that has not turned for this long is not called alive any more. Longer than any honest step.
_STALLED_SECONDS = 120.0
# What a running step and the workers' end may take after the parent is gone.
_GRACE_SECONDS = 5.0


class EngineStart(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine process is told. factory: "module:function", called with `options`, returns a RunningEngine.

    folder: where its sockets lie, in `home`, which goes with its parent.
    """

    factory: str
    options: bytes
    folder: str
    home: str
    num_fronts: int = 1


class Core(Protocol):
    """What the loop turns: `octavo.engine.core.EngineCore`."""

    @property
    def busy(self) -> bool:
        """Whether there is something left to do."""
        ...

    def handle(self, message: FrontMessage) -> None:
        """Take a message of a front."""
        ...

    def stats(self) -> EngineStats:
        """Return gauges and totals as they are now."""
        ...

    def step(self) -> TokenDelta | None:
        """Plan, submit, collect and commit what can be; return what there is to tell."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEngine:
    """A loaded engine: its core, its first message, and how to free its workers."""

    core: Core
    ready: Ready
    shutdown: Callable[[], None]


class _Watch(threading.Thread):
    """Sees the parent's end even while the engine loads or computes, and tells the front that the process lives."""

    def __init__(self, parent: Parent, start: EngineStart) -> None:
        super().__init__(name="watch", daemon=True)
        self.stopping = threading.Event()
        self.ended = threading.Event()
        self.serving = False
        self.idle = False
        self.turned = time.monotonic()
        self._parent = parent
        self._told = start

    def run(self) -> None:
        """Wait for the parent's end, then stop the loop; a loop that does not stop is cut off."""
        beat = Codec[EngineMessage](EngineMessage).encode(TokenDelta())
        heart = Heartbeat(self._told.folder, self._told.num_fronts)
        while not self.ended.is_set() and not self._parent.gone_within(HEARTBEAT_SECONDS):
            if self.serving and (self.idle or time.monotonic() - self.turned < _STALLED_SECONDS):
                heart.send(beat)
        heart.close()
        self.stopping.set()
        if self.serving:
            self.ended.wait(_GRACE_SECONDS)
        if not self.ended.is_set():
            remove_folder(self._told.home)
            os._exit(0)


def _serve(engine: RunningEngine, channel: EngineChannel, watch: _Watch) -> None:
    """Turn the loop until the parent is gone."""
    core = engine.core
    while not watch.stopping.is_set():
        watch.turned = time.monotonic()
        if not core.busy:
            watch.idle = True
            # Not for ever: a worker that dies meanwhile has to be noticed.
            channel.wait(HEARTBEAT_SECONDS)
            watch.idle = False
        for message in channel.receive():
            core.handle(message)
        delta = core.step()
        if delta is not None:
            channel.send(delta)


def _build(start: EngineStart) -> RunningEngine:
    return import_path(start.factory)(start.options)


def main() -> int:
    """Run an engine for the parent process; returns the exit status."""
    parent = Parent()
    try:
        start = msgspec.msgpack.decode(parent.read_start(), type=EngineStart)
    except EOFError:
        return 0
    watch = _Watch(parent, start)
    wake_fd = parent.descriptor
    channel = EngineChannel(start.folder, stopping=watch.stopping, wake_fd=wake_fd, num_fronts=start.num_fronts)
    watch.start()
    engine: RunningEngine | None = None
    try:
        engine = _build(start)
        # First, so that gauges are never 0 in an engine that is ready.
        channel.send(TokenDelta(stats=engine.core.stats()))
        channel.send(engine.ready)
        watch.serving = True
        _serve(engine, channel, watch)
    except Exception as error:
        channel.send(Failure(kind=type(error).__name__, message=str(error)))
        if engine is not None or not isinstance(error, OctavoError):
            raise
        return 1  # What a user can mend needs no traceback: the front says it.
    finally:
        if engine is not None:
            engine.shutdown()
        channel.close()
        if watch.stopping.is_set():
            remove_folder(start.home)
        watch.ended.set()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
