"""Ranks in processes of their own, one each: plans go to all of them, results come from the one that samples."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import NoReturn

import msgspec
import numpy as np

from octavo.base.errors import EngineDeadError, known_error
from octavo.base.facts import DeviceFacts
from octavo.engine.child import Child
from octavo.engine.executor import WorkerReport
from octavo.engine.kvcache.geometry import Geometry
from octavo.engine.transport.endpoints import make_folder, remove_folder
from octavo.engine.transport.ranks import RankHub
from octavo.protocol.codec import Codec
from octavo.protocol.control import Ack
from octavo.protocol.step import Masks, StepPlan, StepResult
from octavo.worker.executors import orders
from octavo.worker.spec import WorkerSpec

# How often the processes themselves are looked at while an answer is awaited.
_LOOK_SECONDS = 0.1
# How long the rank to blame may take to show, once others have lost it.
_BLAME_SECONDS = 3.0
# A rank that gave no sign of life for this long is stopped.
_SILENT_SECONDS = 2.0
_STOP_SECONDS = 5.0


class MultiprocExecutor:
    """The ranks of a mesh on this machine (see `octavo.engine.executor.Executor`). They are on their way once this is made.

    device: its kind, of which each takes one. timeout: seconds without an answer after which a plan's ranks count as hanging.
    They end with this process, however that happens.
    """

    def __init__(self, device: str, num_ranks: int, timeout: float) -> None:
        self._timeout = timeout
        self._folder = make_folder()
        self._hub = RankHub(self._folder, num_ranks)
        self._beats = orders.Pulse(self._folder, num_ranks).beats
        self._orders, self._answers = Codec[orders.Order](orders.Order), Codec[orders.Answer](orders.Answer)
        self._in_flight: deque[StepPlan] = deque()
        self._results: dict[int, dict[int, StepResult]] = {}
        self._known: list[StepResult] = []
        self._heard = time.monotonic()
        self._serving = False
        self._failure: EngineDeadError | None = None
        self._closed = False
        self._ranks = [
            Child(
                "octavo.worker.executors.rank",
                msgspec.msgpack.encode(
                    orders.RankStart(device=device, rank=rank, num_ranks=num_ranks, folder=self._folder)
                ),
                f"the process of rank {rank}",
            )
            for rank in range(num_ranks)
        ]

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids, by rank."""
        return tuple(child.pid for child in self._ranks)

    def survey(self) -> DeviceFacts:
        """Wait until every rank has found its device; return what the first one's is. Raises what finding raises."""
        found = [self._receive(None) for _ in self._ranks]
        return next(answer.facts for answer in found if isinstance(answer, orders.Found) and answer.rank == 0)

    def start(self, spec: WorkerSpec) -> None:
        """Let every rank load its part; they have found their devices."""
        self._spec = spec
        self._send(orders.Load(spec=spec))

    def load(self) -> WorkerReport:
        """Wait until every rank has loaded its part; raises what loading raises."""
        self._check_open()
        reports: dict[int, WorkerReport] = {}
        while len(reports) < self._spec.num_ranks:
            answer = self._receive(None)
            assert isinstance(answer, orders.Loaded)
            reports[answer.rank] = answer.report
        return merge_reports([reports[rank] for rank in range(self._spec.num_ranks)])

    def allocate(self, geometry: Geometry, num_pages: int) -> None:
        """Make the page pool and the slots on every rank."""
        self._check_open()
        self._send(orders.Allocate(geometry=geometry, num_pages=num_pages))
        for _ in self._ranks:
            answer = self._receive(None)
            assert isinstance(answer, orders.Allocated)
        self._serving = True

    def submit(self, plan: StepPlan) -> None:
        """Send a plan to every rank and return at once."""
        self._check_open()
        if not self._in_flight:
            self._heard = time.monotonic()
        self._in_flight.append(plan)
        self._send(orders.Execute(plan=plan, known=tuple(self._known)))
        self._known.clear()

    def mask(self, masks: Masks) -> None:
        """Send to every rank what the oldest plan waits for."""
        self._check_open()
        self._send(masks)

    def collect(self, timeout: float | None = None) -> StepResult | None:
        """Return the oldest plan's result, or None when `timeout` seconds are over."""
        self._check_open()
        assert self._in_flight, "no plan is in flight"
        plan = self._in_flight[0]
        expected = self._spec.num_ranks if orders.asks_every_rank(plan) else 1
        until = None if timeout is None else time.monotonic() + timeout
        while len(self._results.get(plan.id, ())) < expected:
            answer = self._receive(until)
            if answer is None:
                return None
            assert isinstance(answer, orders.Done)
            self._results.setdefault(answer.result.plan, {})[answer.rank] = answer.result
        self._in_flight.popleft()
        result = merge_results(self._results.pop(plan.id), self._spec)
        if self._spec.pipeline > 1 and len(result.offsets) > 1:
            self._known.append(StepResult(plan=plan.id, offsets=result.offsets, ids=result.ids))
        return result

    def check(self) -> None:
        """Raise EngineDeadError if a rank is gone."""
        self._check_open()
        self._receive(time.monotonic())

    def shutdown(self) -> None:
        """End every rank, wherever it is; idempotent."""
        if self._closed:
            return
        self._closed = True
        for child in self._ranks:
            if self._failure is None:
                child.ask()
            else:
                child.kill()  # One that hangs does not listen.
        for child in self._ranks:
            child.stop(_STOP_SECONDS)
        self._hub.close()
        remove_folder(self._folder)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise EngineDeadError("the workers are shut down")

    def _send(self, order: orders.Order) -> None:
        self._hub.send(self._orders.encode(order))

    def _receive(self, until: float | None) -> orders.Answer | None:
        """Return the next answer, None at the time `until`. Raises what a rank says when it fails, or how it ended."""
        while True:
            now = time.monotonic()
            data = self._hub.receive(_LOOK_SECONDS if until is None else min(_LOOK_SECONDS, max(0.0, until - now)))
            endings = [] if data is not None else [how for child in self._ranks if (how := child.ending()) is not None]
            if endings:
                # Its last words may still be on their way.
                data = self._hub.receive(_LOOK_SECONDS)
                if data is None:
                    self._die(endings[0])
            if data is not None:
                answer = self._answers.decode(data)
                if isinstance(answer, orders.Failed):
                    self._blame(answer)
                self._heard = now
                return answer
            if self._in_flight and now - self._heard > self._timeout:
                self._die(self._hanging())
            if until is not None and now >= until:
                return None

    def _blame(self, failed: orders.Failed) -> NoReturn:
        """End with the error of the rank that failed first; one that only lost another waits for that one's words or end."""
        until = time.monotonic() + _BLAME_SECONDS
        while failed.lost and time.monotonic() < until:
            data = self._hub.receive(_LOOK_SECONDS)
            if data is not None:
                answer = self._answers.decode(data)
                failed = answer if isinstance(answer, orders.Failed) and not answer.lost else failed
                continue
            killed = [ending for child in self._ranks if "killed" in (ending := child.ending() or "")]
            if killed:
                self._die(killed[0])
        error = None if self._serving else known_error(failed.kind, failed.message)
        if error is not None:
            self.shutdown()
            raise error
        self._die(f"rank {failed.rank} failed: {failed.kind}: {failed.message}")

    def _hanging(self) -> str:
        """Say which ranks hold up the others: those that are stopped, or else those that do not wait for another."""
        silent = self._beats[:, 0] < time.monotonic() - _SILENT_SECONDS
        waiting = self._beats[:, 1] != 0
        guilty = np.flatnonzero(silent if silent.any() else ~waiting)
        named = ", ".join(str(rank) for rank in (guilty if len(guilty) else range(len(waiting))))
        how = "gives no sign of life" if silent.any() else "hangs"
        return f"rank {named} {how}: plan {self._in_flight[0].id} has no result after {self._timeout:g} s"

    def _die(self, why: str) -> NoReturn:
        self._failure = EngineDeadError(why)
        self.shutdown()
        raise self._failure


def merge_reports(reports: Sequence[WorkerReport]) -> WorkerReport:
    """Return the report of all ranks together: the layers of all stages, the smallest memory, every decision once."""
    layers = {layer.layer: layer for report in reports for layer in report.layers}
    return WorkerReport(
        layers=tuple(layers[number] for number in sorted(layers)),
        free_bytes=min(report.free_bytes for report in reports),
        decisions=tuple(dict.fromkeys(decision for report in reports for decision in report.decisions)),
        generates=all(report.generates for report in reports),
        ranks=tuple(reports),
    )


def merge_results(results: dict[int, StepResult], spec: WorkerSpec) -> StepResult:
    """Return the sampling rank's result, with what every rank says of controls and transfers if they were asked."""
    sampled = results[(spec.pipeline - 1) * spec.tensor]
    if len(results) == 1:
        return sampled
    ordered = [results[rank] for rank in sorted(results)]
    failed = sorted({ticket for result in ordered for ticket in result.failed})
    finished = tuple(ticket for ticket in sampled.finished if ticket not in failed)
    acks = tuple(merge_acks(same) for same in zip(*(result.acks for result in ordered), strict=True))
    return msgspec.structs.replace(sampled, acks=acks, failed=tuple(failed), finished=finished)


def merge_acks(acks: Sequence[Ack]) -> Ack:
    """Return what all ranks say of one control message: good if all are, with every complaint, and a list of values."""
    complaints = dict.fromkeys(ack.message for ack in acks if ack.message)
    values = msgspec.msgpack.encode([msgspec.Raw(ack.value) for ack in acks])
    return Ack(ticket=acks[0].ticket, ok=all(ack.ok for ack in acks), message="; ".join(complaints), value=values)
