"""A front's side of an engine in another process: submit, abort, finish, control; news by request; death noticed at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from octavo.base.errors import EngineDeadError, OctavoError, known_error
from octavo.base.logging import get_logger
from octavo.engine.child import is_stopped
from octavo.engine.process import HEARTBEAT_SECONDS
from octavo.engine.spawn import EngineElsewhere, EngineProcess
from octavo.engine.streams import Inbox, Streams
from octavo.engine.transport.channel import FrontChannel
from octavo.protocol.arrays import int64
from octavo.protocol.control import Ack, Command, Control, When
from octavo.protocol.output import EngineStats, Failure, Ready, TokenDelta
from octavo.protocol.request import Abort, FinishChoice, Request

_WATCH_SECONDS = 0.2
# Missing this many heartbeats, the engine no longer counts as healthy.
_MISSED_BEATS = 10

_log = get_logger(__name__)


class EngineClient:
    """Talks to one engine. All methods belong to the event loop in which `start` was awaited.

    stats: the latest, None until the engine is loaded. dead: why nothing can be generated any more, None while it can; `ended`
    is set then.
    """

    def __init__(self, process: EngineProcess | EngineElsewhere) -> None:
        self.stats: EngineStats | None = None
        self.dead: OctavoError | None = None
        self._process = process
        self._channel = FrontChannel(process.folder, process.front)
        self._streams = Streams(process.front)
        self._acks: dict[int, asyncio.Future[Ack]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._ready: asyncio.Future[Ready] | None = None
        self._heard = time.monotonic()
        self._closed = False
        self._stopped = False
        self.ended = asyncio.Event()

    async def start(self) -> Ready:
        """Wait until the engine is loaded. Raises what stopped it: ConfigError, CheckpointError, EngineDeadError."""
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        for work in (self._read(), self._watch()):
            task = loop.create_task(work)
            task.add_done_callback(self._task_ended)
            self._tasks.append(task)
        return await self._ready

    @property
    def loading(self) -> bool:
        """Whether the engine is still to be ready."""
        return self.dead is None and (self._ready is None or not self._ready.done())

    @property
    def healthy(self) -> bool:
        """Whether the engine is loaded, alive, not stopped, and has given a sign of life in the last seconds."""
        running = not (self.loading or self.dead or self._stopped)
        return running and time.monotonic() - self._heard < HEARTBEAT_SECONDS * _MISSED_BEATS

    def new_key(self) -> int:
        """Return a key for a new Request."""
        return self._streams.new_key()

    def submit(self, request: Request, wake: Callable[[], None]) -> Inbox:
        """Send a request; `wake` is called when its inbox is no longer empty. Raises EngineDeadError."""
        self._check_alive()
        inbox = self._streams.open(request, wake)
        self._channel.send(request)
        return inbox

    def abort(self, keys: list[int]) -> None:
        """Drop requests, at once and without an answer; those that have ended are passed over."""
        still_open = [key for key in keys if self._streams.close(key)]
        if still_open and self.dead is None:
            self._channel.send(Abort(keys=int64(still_open)))

    def finish(self, key: int, choice: int, num_tokens: int) -> None:
        """End one choice: its output tokens from `num_tokens` on do not count."""
        if self.dead is None:
            self._channel.send(FinishChoice(key=key, choice=choice, num_tokens=num_tokens))

    def forget(self, key: int) -> None:
        """Close the inbox of a request that has ended."""
        self._streams.close(key)

    async def control(self, command: Command, when: When = "at_once") -> Ack:
        """Send a control message and wait for its acknowledgement. Raises EngineDeadError."""
        self._check_alive()
        ticket = self._streams.new_key()
        future = self._acks[ticket] = asyncio.get_running_loop().create_future()
        self._channel.send(Control(ticket=ticket, command=command, when=when))
        try:
            return await future
        finally:
            self._acks.pop(ticket, None)

    def disconnect(self) -> None:
        """Fail what is open and close the sockets; idempotent. The process is left to `close` or its handle."""
        if self._closed:
            return
        self._closed = True
        self._die(EngineDeadError("the engine was shut down"))
        for task in self._tasks:
            task.cancel()
        self._channel.close()

    async def close(self) -> None:
        """Fail what is open, end the engine process and remove its sockets; idempotent."""
        self.disconnect()
        await asyncio.to_thread(self._process.stop)

    def _check_alive(self) -> None:
        if self.dead is not None:
            raise self.dead

    async def _read(self) -> None:
        while True:
            message = await self._channel.receive()
            self._heard = time.monotonic()
            match message:
                case TokenDelta():
                    self._deliver(message)
                case Ready():
                    if self._ready is not None and not self._ready.done():
                        self._ready.set_result(message)
                case Failure():
                    self._die(self._failure(message))

    def _deliver(self, delta: TokenDelta) -> None:
        if delta.stats is not None:
            self.stats = delta.stats
        self._streams.deliver(delta)
        for ack in delta.acks:
            future = self._acks.get(ack.ticket)
            if future is not None and not future.done():
                future.set_result(ack)

    def _failure(self, failure: Failure) -> OctavoError:
        """Rebuild the error that kept the engine from loading; later ones all mean that the engine is dead."""
        if self._ready is not None and not self._ready.done():
            error = known_error(failure.kind, failure.message)
            if error is not None:
                return error
        return EngineDeadError(f"the engine failed: {failure.kind}: {failure.message}")

    async def _watch(self) -> None:
        while (ending := self._process.ending()) is None:
            self._stopped = is_stopped(self._process.pid)
            await asyncio.sleep(_WATCH_SECONDS)
        # Its last words may still be on their way.
        await asyncio.sleep(_WATCH_SECONDS)
        self._die(EngineDeadError(ending))

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the engine client failed", exc_info=error)
            self._die(EngineDeadError(f"the engine client failed: {error}"))

    def _die(self, error: OctavoError) -> None:
        if self.dead is not None:
            return
        self.dead = error
        self.ended.set()
        if self.stats is not None:  # Nobody holds anything any more; what was counted stays.
            self.stats = msgspec.structs.replace(
                self.stats, num_running=0, num_waiting=0, used_slots=0, used_pages=0, pending_pages=0
            )
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
        elif not self._closed:
            _log.error("%s", error)
        for future in self._acks.values():
            if not future.done():
                future.set_exception(error)
        self._streams.fail(error)
