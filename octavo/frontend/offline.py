"""Drives an engine of this process from a list of requests to the list of their answers."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence

from octavo.base.errors import EngineDeadError, InvalidRequestError
from octavo.engine.process import Core
from octavo.engine.streams import Streams
from octavo.frontend.collect import Collector
from octavo.frontend.intake import Intake, Prompt
from octavo.protocol.arrays import int64
from octavo.protocol.control import Command, Control
from octavo.protocol.output import RequestOutput
from octavo.protocol.request import Abort, Request
from octavo.protocol.sampling import SamplingParams

Job = tuple[Request, str | None]


class OfflineEngine:
    """Runs batches, one at a time. max_submitted: choices in the engine at once; the others wait here, where they cost
    nothing but their tokens. by_priority: submit in order of priority instead of the order given.
    """

    def __init__(self, core: Core, intake: Intake, *, max_submitted: int, by_priority: bool = False) -> None:
        self._core = core
        self._intake = intake
        self._max_submitted = max_submitted
        self._by_priority = by_priority
        self._streams = Streams()
        self._lock = threading.Lock()

    def check(
        self, prompts: Sequence[Prompt], params: Sequence[SamplingParams], priorities: Sequence[int]
    ) -> list[Job]:
        """Tokenize and check all prompts; the first bad one raises its InvalidRequestError, with its position."""
        jobs: list[Job] = []
        for index, prompt in enumerate(prompts):
            key = self._streams.new_key()
            try:
                jobs.append(self._intake.request(prompt, params[index], key=key, priority=priorities[index]))
            except InvalidRequestError as error:
                if len(prompts) == 1:
                    raise
                raise type(error)(f"prompt {index}: {error.message}", field=error.field) from error
        return jobs

    def run(self, jobs: Sequence[Job], finished: Callable[[RequestOutput], None]) -> list[RequestOutput]:
        """Return the answers in the order of `jobs`; `finished` hears of each when it is there.

        Whatever interrupts it, nothing stays behind in the engine. Raises EngineDeadError.
        """
        order = list(range(len(jobs)))
        if self._by_priority:
            order.sort(key=lambda index: jobs[index][0].priority)
        with self._lock:
            batch = _Batch(jobs, deque(order), finished)
            try:
                while batch.left or len(self._streams):
                    self._submit(batch)
                    self._step(batch)
            finally:
                self._drop_all()
        return [batch.results[index] for index in range(len(jobs))]

    def control(self, command: Command) -> bool:
        """Send a control message and wait for its acknowledgement; returns whether the engine obeyed."""
        with self._lock:
            ticket = self._streams.new_key()
            self._core.handle(Control(ticket=ticket, command=command))
            while True:
                delta = self._core.step()
                for ack in delta.acks if delta is not None else ():
                    if ack.ticket == ticket:
                        return ack.ok

    def _submit(self, batch: _Batch) -> None:
        while batch.left and (not batch.num_choices or batch.num_choices < self._max_submitted):
            index = batch.left.popleft()
            request, text = batch.jobs[index]
            # The number in the list is the id that users of such interfaces know.
            collector = Collector(
                request, request_id=str(index), prompt=text, tokenizer=self._intake.tokenizer, kind="final"
            )
            batch.running[request.key] = index, collector
            batch.num_choices += request.sampling.n
            self._streams.open(request)
            self._core.handle(request)

    def _step(self, batch: _Batch) -> None:
        assert self._core.busy, "the engine forgot a request"
        delta = self._core.step()
        if delta is None:
            return
        for inbox in self._streams.deliver(delta):
            index, collector = batch.running[inbox.key]
            output = collector.take(inbox.take())
            for finish in collector.finishes:
                self._core.handle(finish)
            collector.finishes.clear()
            if output is not None:
                self._streams.close(inbox.key)
                batch.end(inbox.key, index, output)

    def _drop_all(self) -> None:
        """Abort what is open and take back what is in flight."""
        keys = self._streams.keys()
        for key in keys:
            self._streams.close(key)
        with contextlib.suppress(EngineDeadError):
            if keys:
                self._core.handle(Abort(keys=int64(keys)))
            while self._core.busy:
                self._core.step()


class _Batch:
    """What one call of `run` keeps: positions left to submit, requests that run, answers."""

    def __init__(self, jobs: Sequence[Job], left: deque[int], finished: Callable[[RequestOutput], None]) -> None:
        self.jobs = jobs
        self.left = left
        self.running: dict[int, tuple[int, Collector]] = {}
        self.results: dict[int, RequestOutput] = {}
        self.num_choices = 0
        self._finished = finished

    def end(self, key: int, index: int, output: RequestOutput) -> None:
        """Keep an answer."""
        del self.running[key]
        self.results[index] = output
        self.num_choices -= len(output.outputs)
        self._finished(output)
