"""Drives an engine of this process from requests to their answers, in the order of the requests and in bounded memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from octavo.base.errors import EngineDeadError, InvalidRequestError
from octavo.engine.process import Core
from octavo.engine.streams import Streams
from octavo.frontend.collect import Collector
from octavo.frontend.intake import Intake, Prompt
from octavo.frontend.vectors import PoolingRequestOutput, VectorCollector
from octavo.protocol.arrays import int64
from octavo.protocol.control import Ack, Command, Control
from octavo.protocol.output import RequestOutput
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.request import Abort, Request
from octavo.protocol.sampling import SamplingParams

Job = tuple[Request, str | None]
Output = RequestOutput | PoolingRequestOutput
Finished = Callable[[Any], None]

# A lazy source is read ahead of the oldest unanswered request by as many requests as are submitted at once, times this.
_AHEAD = 4


class OfflineEngine:
    """Runs batches; those of several threads share the steps. max_submitted: choices of a batch in the engine at once; the
    others wait here, where they cost nothing but their tokens. by_priority: submit in order of priority instead of the order
    given.
    """

    def __init__(self, core: Core, intake: Intake, *, max_submitted: int, by_priority: bool = False) -> None:
        self._core = core
        self._intake = intake
        self._max_submitted = max_submitted
        self._by_priority = by_priority
        self._streams = Streams()
        self._open: dict[int, tuple[_Batch, int, Collector | VectorCollector]] = {}
        self._lock = threading.RLock()

    def check(
        self, prompts: Sequence[Prompt], params: Sequence[SamplingParams | PoolingParams], priorities: Sequence[int]
    ) -> list[Job]:
        """Tokenize and check all prompts; the first bad one raises its InvalidRequestError, with its position."""
        named = len(prompts) > 1
        return [
            self._job(index, prompt, params[index], priorities[index], named=named)
            for index, prompt in enumerate(prompts)
        ]

    def run(self, jobs: Sequence[Job], finished: Finished) -> list[Any]:
        """Return the answers in the order of `jobs`; `finished` hears of each when it is there.

        Whatever interrupts it, nothing stays behind in the engine. Raises EngineDeadError.
        """
        order = list(range(len(jobs)))
        if self._by_priority:
            order.sort(key=lambda index: jobs[index][0].priority)
        results = dict(self._answers(((index, jobs[index]) for index in order), finished, len(jobs)))
        return [results[index] for index in range(len(jobs))]

    def stream(
        self, prompts: Iterable[tuple[Prompt, SamplingParams | PoolingParams]], priority: int, finished: Finished
    ) -> Iterator[Any]:
        """Yield the answers to a lazy source of prompts, in its order; it is read no further than needed.

        A bad prompt raises its InvalidRequestError, with its position, when it is reached. Leaving the iteration aborts what
        runs. Raises EngineDeadError.
        """
        jobs = (
            (index, self._job(index, prompt, params, priority, named=True))
            for index, (prompt, params) in enumerate(prompts)
        )
        for _, output in self._answers(jobs, finished, _AHEAD * self._max_submitted):
            yield output

    def control(self, command: Command) -> Ack:
        """Send a control message, wait for its acknowledgement and return it."""
        with self._lock:
            ticket = self._streams.new_key()
            self._core.handle(Control(ticket=ticket, command=command))
            while True:
                for ack in self._turn():
                    if ack.ticket == ticket:
                        return ack

    def _job(
        self, index: int, prompt: Prompt, params: SamplingParams | PoolingParams, priority: int, *, named: bool
    ) -> Job:
        with self._lock:
            key = self._streams.new_key()
        try:
            if isinstance(params, PoolingParams):
                return self._intake.pooling_request(prompt, params, key=key, priority=priority)
            return self._intake.request(prompt, params, key=key, priority=priority)
        except InvalidRequestError as error:
            if not named:
                raise
            raise type(error)(f"prompt {index}: {error.message}", field=error.field) from error

    def _answers(
        self, jobs: Iterator[tuple[int, Job]], finished: Finished, window: int
    ) -> Iterator[tuple[int, Output]]:
        """Yield the answers in the order of `jobs`, of which at most `window` are read and not answered."""
        batch = _Batch()
        order: list[int] = []
        try:
            while True:
                while len(order) < window and batch.has_room(self._max_submitted) and (job := next(jobs, None)):
                    order.append(job[0])
                    self._submit(batch, *job)
                if not order:
                    return
                with self._lock:
                    if batch.keys:
                        self._turn()
                    fresh, batch.fresh = batch.fresh, []
                for output in fresh:
                    finished(output)
                ready = 0
                while ready < len(order) and order[ready] in batch.results:
                    yield order[ready], batch.results.pop(order[ready])
                    ready += 1
                del order[:ready]
        finally:
            self._drop(batch)

    def _submit(self, batch: _Batch, index: int, job: Job) -> None:
        request, text = job
        # The number in the list is the id that users of such interfaces know.
        collector: Collector | VectorCollector
        if request.pooling is not None:
            collector = VectorCollector(request, request.pooling, request_id=str(index))
        else:
            tokenizer = self._intake.tokenizer
            collector = Collector(request, request_id=str(index), prompt=text, tokenizer=tokenizer, kind="final")
        with self._lock:
            self._open[request.key] = batch, index, collector
            batch.keys.add(request.key)
            batch.num_choices += request.sampling.n
            self._streams.open(request)
            self._core.handle(request)

    def _turn(self) -> tuple[Ack, ...]:
        """Do a step and hand out what it gave, whoever asked for it."""
        assert self._core.busy, "the engine forgot a request"
        delta = self._core.step()
        if delta is None:
            return ()
        for inbox in self._streams.deliver(delta):
            batch, index, collector = self._open[inbox.key]
            output = collector.take(inbox.take())
            for finish in collector.finishes:
                self._core.handle(finish)
            collector.finishes.clear()
            if output is not None:
                self._streams.close(inbox.key)
                del self._open[inbox.key]
                batch.end(inbox.key, index, output)
        return delta.acks

    def _drop(self, batch: _Batch) -> None:
        """Abort what is open of a batch and, if nobody else is there, take back what is in flight."""
        with self._lock, contextlib.suppress(EngineDeadError):
            keys = sorted(batch.keys)
            for key in keys:
                self._streams.close(key)
                del self._open[key]
            batch.keys.clear()
            if keys:
                self._core.handle(Abort(keys=int64(keys)))
            while self._core.busy and not self._open:
                self._turn()


class _Batch:
    """What one iteration keeps: keys of what runs, answers by position, and those that nobody has heard of yet."""

    def __init__(self) -> None:
        self.keys: set[int] = set()
        self.results: dict[int, Output] = {}
        self.fresh: list[Output] = []
        self.num_choices = 0

    def has_room(self, most: int) -> bool:
        """Whether another request may go to the engine: one may in any case."""
        return self.num_choices < most or not self.keys

    def end(self, key: int, index: int, output: Output) -> None:
        """Keep an answer."""
        self.keys.remove(key)
        self.results[index] = output
        self.fresh.append(output)
        self.num_choices -= len(output.outputs) if isinstance(output, RequestOutput) else 1
