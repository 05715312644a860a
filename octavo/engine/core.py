"""The loop: one step at a time, with plans in flight ahead of the device.

`handle` takes messages in, `step` plans, submits, collects the oldest result when no more plans may be in flight, and
commits it. The caller owns the thread and the way to clients.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import assert_never

from octavo.base.errors import OctavoError
from octavo.constrain.matcher import Grammars, Matcher
from octavo.engine.executor import Executor
from octavo.engine.kvcache.blocks import CacheEvent
from octavo.engine.schedule.scheduler import Scheduler
from octavo.protocol.control import Control
from octavo.protocol.output import EngineStats, TokenDelta
from octavo.protocol.request import Abort, FinishChoice, FrontMessage, Request

# What an idle engine waits for a grammar, before it looks for messages again.
_COMPILING_SECONDS = 0.005


class EngineCore:
    """One engine: a scheduler, an executor, and up to `limits.depth` plans between them. grammars: of requests that have one.

    tell: is given what the prefix cache published and forgot, after every step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        tell: Callable[[list[CacheEvent]], None] | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._tell = tell
        self._log: list[CacheEvent] = []
        if tell is not None:
            scheduler.state.allocator.pool.log = self._log
        self._grammars = grammars
        # Requests whose grammars are not compiled yet.
        self._compiling: dict[int, tuple[Request, Future[Matcher]]] = {}

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do or to say."""
        return self._scheduler.busy or bool(self._compiling)

    def stats(self) -> EngineStats:
        """Return gauges and totals as they are now."""
        return self._scheduler.stats()

    def handle(self, message: FrontMessage) -> None:
        """Take one message; it shows in the next step."""
        match message:
            case Request() if message.grammar and self._grammars is not None:
                self._compiling[message.key] = message, self._grammars.compile(message.grammar)
            case Request():
                self._scheduler.add(message)
            case Abort():
                for key in message.keys.tolist():
                    self._compiling.pop(key, None)
                    self._scheduler.abort(key)
            case FinishChoice():
                self._scheduler.finish_choice(message)
            case Control():
                self._scheduler.control(message)
            case _:
                assert_never(message)

    def step(self, lockstep: int | None = None) -> TokenDelta | None:
        """Do one step and return what is new for clients, if anything is.

        Raises EngineDeadError when the workers are gone. lockstep: see `Scheduler.plan`.
        """
        scheduler = self._scheduler
        if self._compiling:
            self._take_compiled()
        plan = scheduler.plan(lockstep)
        if plan is not None:
            self._executor.submit(plan)
            if self._grammars is not None:
                self._mask(self._grammars)
        in_flight = scheduler.num_in_flight
        if in_flight and (plan is None or in_flight >= scheduler.state.limits.depth):
            result = self._executor.collect()
            assert result is not None
            delta = scheduler.commit(result)
            if self._grammars is not None:
                self._mask(self._grammars)
        else:
            if plan is None:
                self._executor.check()
            delta = scheduler.news()
        if self._tell is not None:
            self._tell(self._log)
            self._log.clear()
        return delta

    def _mask(self, grammars: Grammars) -> None:
        """Send the masks that the oldest plan waits for, now that all before it are committed."""
        masks = self._scheduler.masks(grammars)
        if masks is not None:
            self._executor.mask(masks)

    def _take_compiled(self) -> None:
        """Let requests begin whose grammars are compiled."""
        seconds = 0 if self._scheduler.busy else _COMPILING_SECONDS
        wait([future for _, future in self._compiling.values()], seconds, "FIRST_COMPLETED")
        for key, (request, future) in list(self._compiling.items()):
            if future.done():
                del self._compiling[key]
                error = future.exception()  # Whatever it is, it is this request's alone.
                if error is None:
                    self._scheduler.add(request, future.result())
                else:
                    known = isinstance(error, OctavoError)
                    self._scheduler.refuse(request, error.message if known else f"its grammar failed: {error!r}")
