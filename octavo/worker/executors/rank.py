"""A rank: a process that loads its part of the model and runs every plan, until its executor is gone.

Started by `octavo.worker.executors.multiproc` as `python -m octavo.worker.executors.rank`.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import deque

import msgspec

from octavo.base.errors import OctavoError
from octavo.device.registry import detect
from octavo.engine.child import Parent
from octavo.engine.transport.endpoints import remove_folder
from octavo.engine.transport.ranks import RankLine
from octavo.nn.parallel.gloo import PeerLostError, connect
from octavo.nn.parallel.mesh import Mesh
from octavo.protocol.codec import Codec
from octavo.protocol.step import Masks, StepPlan
from octavo.worker.executors import orders
from octavo.worker.results import Pending
from octavo.worker.runner import ModelRunner
from octavo.worker.threads import take_threads

PULSE_SECONDS = 0.5


class _Watch(threading.Thread):
    """Gives signs of life, and ends the process at once when the parent is gone: nothing in it is worth finishing."""

    def __init__(self, parent: Parent, start: orders.RankStart) -> None:
        super().__init__(name="watch", daemon=True)
        self.mesh, self.in_flight = Mesh(), deque[tuple[StepPlan, Pending]]()
        self._parent = parent
        self._start = start

    def run(self) -> None:
        """Beat until the parent is gone."""
        start = self._start
        beats = orders.Pulse(start.folder, start.num_ranks).beats
        beats[start.rank] = time.monotonic(), False
        while not self._parent.gone_within(PULSE_SECONDS):
            beats[start.rank] = time.monotonic(), self.mesh.waits or len(self.in_flight) > 0
        remove_folder(start.folder)
        os._exit(0)


def _serve(start: orders.RankStart, line: RankLine, watch: _Watch) -> None:
    """Load, then follow orders; ends only by an error."""
    rank, in_flight = start.rank, watch.in_flight
    asked, told = Codec[orders.Order](orders.Order), Codec[orders.Answer](orders.Answer)
    device = detect(start.device, rank)
    line.send(told.encode(orders.Found(rank=rank, facts=device.facts)))
    load = asked.decode(line.receive())
    assert isinstance(load, orders.Load)
    spec = load.spec
    take_threads(spec)
    meet = functools.partial(
        connect,
        rank,
        tensor=spec.tensor,
        pipeline=spec.pipeline,
        spread_experts=spec.spread_experts,
        folder=start.folder,
        on_gpus=device.facts.kind == "cuda",
    )
    runner = ModelRunner(spec, device=device, meet=meet)
    watch.mesh = runner.mesh
    report = runner.load()
    line.send(told.encode(orders.Loaded(rank=rank, report=report)))
    later = deque[orders.Order]()
    while True:
        # What waits for its masks has no result, and nothing is launched before they have come.
        # Results go out though a plan came that has to wait too: the masks may follow from them.
        while len(in_flight) > runner.waits and (runner.waits or not later) and not line.waiting():
            plan, pending = in_flight[0]
            if pending.ready_within(0):
                result = pending.result()
                if runner.mesh.samples or orders.asks_every_rank(plan):
                    line.send(told.encode(orders.Done(rank=rank, result=result)))
                in_flight.popleft()
        order = later.popleft() if later and not runner.waits else asked.decode(line.receive())
        match order:
            case orders.Allocate():
                runner.allocate(report.part(order.geometry), order.num_pages)
                line.send(told.encode(orders.Allocated(rank=rank)))
            case orders.Execute():
                for result in order.known:
                    runner.learn(result)
                if runner.waits:
                    later.append(order)
                else:
                    in_flight.append((order.plan, runner.launch(order.plan)))
            case Masks() if runner.waits:
                runner.mask(order)
            case Masks() | orders.Load():
                assert isinstance(order, Masks), "a rank loads once"  # Another rank samples.


def main() -> int:
    """Run a rank for the parent process; returns the exit status."""
    parent = Parent()
    try:
        start = msgspec.msgpack.decode(parent.read_start(), type=orders.RankStart)
    except EOFError:
        return 0
    watch, line = _Watch(parent, start), RankLine(start.folder, start.rank)
    watch.start()
    try:
        _serve(start, line, watch)
    except Exception as error:
        lost = isinstance(error, PeerLostError)
        failed = orders.Failed(rank=start.rank, kind=type(error).__name__, message=str(error), lost=lost)
        line.send(Codec[orders.Answer](orders.Answer).encode(failed))
        line.close()
        if lost or isinstance(error, OctavoError):
            return 1
        raise
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
