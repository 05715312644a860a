"""The worker in a thread of the engine's own process: the device works while the host plans."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NoReturn

import torch

from octavo.base.errors import EngineDeadError
from octavo.engine.executor import WorkerReport
from octavo.engine.kvcache.geometry import Geometry
from octavo.protocol.step import StepPlan, StepResult
from octavo.worker.loader.assemble import assemble
from octavo.worker.runner import Assemble, ModelRunner
from octavo.worker.spec import WorkerSpec


class InprocExecutor:
    """One worker on one thread (see `octavo.engine.executor.Executor`). `assemble` replaces the loader, in tests.

    Everything that touches a tensor runs on that thread: thread counts and teams of the tensor library belong to a thread.
    """

    def __init__(self, spec: WorkerSpec, assemble: Assemble = assemble) -> None:
        self._spec = spec
        self._runner: ModelRunner | None = ModelRunner(spec, assemble)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="octavo-worker")
        self._in_flight: deque[Future[StepResult]] = deque()
        self._failure: Exception | None = None

    def load(self) -> WorkerReport:
        """Load the model; raises what loading raises."""
        self._live_runner()
        return self._thread.submit(self._load).result()

    def allocate(self, geometry: Geometry, num_pages: int) -> None:
        """Make the page pool and the slots."""
        self._thread.submit(self._live_runner().allocate, geometry, num_pages).result()

    def submit(self, plan: StepPlan) -> None:
        """Queue a plan and return at once."""
        self._live_runner()
        self._in_flight.append(self._thread.submit(self._execute, plan))

    def collect(self, timeout: float | None = None) -> StepResult | None:
        """Return the oldest plan's result, or None when `timeout` seconds are over."""
        self._live_runner()
        assert self._in_flight, "no plan is in flight"
        oldest = self._in_flight[0]
        try:
            failure = oldest.exception(timeout)
        except TimeoutError:
            return None
        self._in_flight.popleft()
        if failure is not None:
            self._raise_dead(failure)
        return oldest.result()

    def check(self) -> None:
        """Raise what stopped the worker, if something did."""
        self._live_runner()

    def shutdown(self) -> None:
        """Finish the running step, drop the others and everything on the device; idempotent."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._in_flight.clear()
        self._runner = None

    def _load(self) -> WorkerReport:
        if self._spec.threads is not None:
            torch.set_num_threads(self._spec.threads)
        return self._live_runner().load()

    def _execute(self, plan: StepPlan) -> StepResult:
        runner = self._live_runner()
        try:
            return runner.execute(plan)
        except Exception as error:
            # Device state is now unknown: later plans must not run, and every caller shall hear of it.
            self._failure = error
            raise

    def _live_runner(self) -> ModelRunner:
        if self._failure is not None:
            self._raise_dead(self._failure)
        if self._runner is None:
            raise EngineDeadError("the worker is shut down")
        return self._runner

    def _raise_dead(self, failure: BaseException) -> NoReturn:
        raise EngineDeadError(f"the worker failed: {type(failure).__name__}: {failure}") from failure
