"""The worker in the engine's own process: the device works while the host plans."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, NoReturn

from octavo.base.errors import EngineDeadError
from octavo.engine.executor import WorkerReport
from octavo.engine.kvcache.geometry import Geometry
from octavo.protocol.step import Masks, StepPlan, StepResult
from octavo.worker.loader.assemble import assemble
from octavo.worker.results import Pending
from octavo.worker.runner import Assemble, ModelRunner
from octavo.worker.spec import WorkerSpec
from octavo.worker.threads import take_threads


class _Here(Executor):
    """Does work at once, in the caller's thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return a future that is done."""
        future = Future[Any]()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - for whoever asks the future
            future.set_exception(error)
        return future


class InprocExecutor:
    """One worker (see `octavo.engine.executor.Executor`). `assemble` replaces the loader, in tests.

    A host computes on a thread of its own, and everything that touches a tensor runs there: thread counts and teams of the
    tensor library belong to a thread. Where work is only queued, the engine's thread does it: a change of threads takes
    longer.
    """

    def __init__(self, spec: WorkerSpec, assemble: Assemble = assemble) -> None:
        self._spec = spec
        self._runner: ModelRunner | None = ModelRunner(spec, assemble)
        queues = "queue" in self._runner.device.facts.features
        self._thread = _Here() if queues else ThreadPoolExecutor(max_workers=1, thread_name_prefix="octavo-worker")
        self._in_flight: deque[Future[Pending]] = deque()
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
        self._in_flight.append(self._thread.submit(self._queue, lambda runner: runner.launch(plan)))

    def mask(self, masks: Masks) -> None:
        """Queue what the newest plan left to do until its masks came."""
        self._in_flight[-1] = self._thread.submit(self._queue, lambda runner: runner.mask(masks))

    def collect(self, timeout: float | None = None) -> StepResult | None:
        """Return the oldest plan's result, or None when `timeout` seconds are over."""
        self._live_runner()
        assert self._in_flight, "no plan is in flight"
        oldest = self._in_flight[0]
        try:
            failure = oldest.exception(timeout)
        except TimeoutError:
            return None
        if failure is not None:
            self._in_flight.popleft()
            self._raise_dead(failure)
        try:
            if not oldest.result().ready_within(timeout):
                return None
            self._in_flight.popleft()
            return oldest.result().result()
        except RuntimeError as error:
            # What was queued failed: device state is unknown now.
            self._failure = error
            self._raise_dead(error)

    def check(self) -> None:
        """Raise what stopped the worker, if something did; otherwise let it do what it puts off."""
        self._thread.submit(self._live_runner().idle).result()

    def shutdown(self) -> None:
        """Finish the running step, drop the others and everything on the device; idempotent."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._in_flight.clear()
        if self._runner is not None:
            device, self._runner = self._runner.device, None
            device.release()

    def _load(self) -> WorkerReport:
        take_threads(self._spec)
        return self._live_runner().load()

    def _queue(self, work: Callable[[ModelRunner], Pending]) -> Pending:
        runner = self._live_runner()
        try:
            return work(runner)
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
