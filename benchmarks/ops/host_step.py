"""What the host spends on a step: plan + commit + stop checks + handing the tokens to the clients' queue.

Sequences decode without end on an executor that answers at once, 15 % of them fill a block each step and the prefix cache is
on. Run: `python -m benchmarks.ops.host_step`. Prints JSON; ceilings are 1.0 ms at 1,024 sequences and 0.2 ms at 64.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import deque

import numpy as np

from octavo.engine.core import EngineCore
from octavo.engine.executor import WorkerReport
from octavo.engine.kvcache.geometry import Geometry, solve
from octavo.engine.schedule.limits import ScheduleLimits
from octavo.engine.schedule.scheduler import Scheduler
from octavo.protocol.arrays import int32
from octavo.protocol.codec import Codec
from octavo.protocol.kept import KeptLayer, KeptTokens, Plane
from octavo.protocol.output import EngineMessage
from octavo.protocol.request import Request
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.step import Masks, StepPlan, StepResult

CEILINGS_MS = {64: 0.2, 1024: 1.0}
NUM_PROMPT, NUM_STEPS, MAX_LEN = 100, 400, 4096


class InstantExecutor:
    """Answers every plan at once with one token a row."""

    def __init__(self) -> None:
        self.results: deque[StepResult] = deque()

    def load(self) -> WorkerReport:
        """Return an empty report."""
        return WorkerReport(layers=(), free_bytes=0)

    def allocate(self, geometry: Geometry, num_pages: int) -> None:
        """Do nothing."""

    def submit(self, plan: StepPlan) -> None:
        """Answer."""
        num_rows = int(plan.samples.sum())
        ids = np.full(num_rows, 7, np.int32)
        self.results.append(StepResult(plan=plan.id, offsets=np.arange(num_rows + 1, dtype=np.int32), ids=ids))

    def mask(self, masks: Masks) -> None:
        """Do nothing."""

    def collect(self, timeout: float | None = None) -> StepResult | None:
        """Return the oldest answer."""
        return self.results.popleft()

    def check(self) -> None:
        """Do nothing."""

    def shutdown(self) -> None:
        """Do nothing."""


def measure(num_sequences: int) -> list[float]:
    """Return the seconds of each of NUM_STEPS steady steps."""
    planes = tuple(Plane(name=name, heads=3, dim=64, dtype="float32", itemsize=4) for name in ("keys", "values"))
    layers = [KeptLayer(layer=i, kept=KeptTokens(planes=planes), blocks=(16,)) for i in range(30)]
    geometry = solve(layers)
    limits = ScheduleLimits(max_num_seqs=num_sequences, max_num_batched_tokens=8192, max_model_len=MAX_LEN)
    scheduler = Scheduler(geometry, num_sequences * (MAX_LEN // 16), limits)
    core = EngineCore(scheduler, InstantExecutor())
    codec: Codec[EngineMessage] = Codec(EngineMessage)
    queue: deque[bytes] = deque()
    random = np.random.default_rng(0)
    for key in range(num_sequences):
        # Lengths differ, so that blocks fill at different steps, as under real load.
        tokens = int32(random.integers(0, 1000, NUM_PROMPT + key % 16).tolist())
        params = SamplingParams(max_tokens=MAX_LEN - 200)
        core.handle(Request(key=key, tokens=tokens, sampling=params, stop_ids=(2, 3), max_tokens=MAX_LEN - 200, seed=1))
    while core.stats().num_waiting or core.stats().generated_tokens < 4 * num_sequences:
        core.step()
    seconds = []
    for _ in range(NUM_STEPS):
        start = time.perf_counter()
        delta = core.step()
        assert delta is not None
        queue.append(codec.encode(delta))
        seconds.append(time.perf_counter() - start)
        queue.clear()
        assert len(delta.ids) == num_sequences
    return seconds


def main() -> None:
    """Measure and print."""
    report = {}
    for num_sequences, ceiling in CEILINGS_MS.items():
        milliseconds = sorted(1e3 * second for second in measure(num_sequences))
        report[num_sequences] = {
            "median_ms": round(statistics.median(milliseconds), 3),
            "mean_ms": round(statistics.mean(milliseconds), 3),
            "p90_ms": round(milliseconds[int(0.9 * len(milliseconds))], 3),
            "ceiling_ms": ceiling,
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
