"""Time Octavo offline on the loads that its peers are timed on, and say where the time of a decode step goes.

    python -m benchmarks.offline.loads MODEL_DIR --peers DIR --loads single,mix,burst --profile 1,64,1024

DIR holds `workloads.py`, which makes the same token ids for everybody. Prints a JSON line for the start-up, each load and
repetition, and each profile: `busy_ms` of device work a step, `gap_ms` between two steps, both by the device's own clock.
Minimal on purpose: `octavo bench offline` is the tool for users.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

ALL = "single,small,mix,burst,prefill,prefix"
# Steps of a profile, and those of its beginning that do not count.
NUM_STEPS, NUM_WARM = 160, 32


def say(**row: Any) -> None:
    """Print a result."""
    print("RESULT", json.dumps(row), flush=True)


def timed_graphs() -> list[tuple[Any, Any]]:
    """Let every replay of a graph leave events before and behind it; returns the list that they go to."""
    from torch import cuda  # noqa: TID251

    from octavo.device.cuda import CudaDevice

    replays, capture = list[tuple[Any, Any]](), CudaDevice.capture

    class Timed:
        def __init__(self, graph: Any) -> None:
            self._graph = graph

        def replay(self) -> None:
            pair = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            pair[0].record()
            self._graph.replay()
            pair[1].record()
            replays.append(pair)

    CudaDevice.capture = lambda self, work: Timed(capture(self, work))  # pyright: ignore[reportAttributeAccessIssue]
    return replays


def run(llm: Any, requests: Sequence[tuple[list[int], int]]) -> float:
    """Return the seconds that requests, (prompt, number of output tokens) each, take."""
    from octavo import SamplingParams

    params = [
        SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=count, detokenize=False) for _, count in requests
    ]
    llm.reset_prefix_cache()
    began = time.perf_counter()
    llm.generate([{"prompt_token_ids": ids} for ids, _ in requests], params, use_tqdm=False)
    return time.perf_counter() - began


def profile(llm: Any, replays: list[tuple[Any, Any]], num_rows: int) -> dict[str, float]:
    """Return what a steady decode step of so many rows takes, in milliseconds."""
    replays.clear()
    seconds = run(llm, [([1000 + row % 999, *range(2000, 2063)], NUM_STEPS) for row in range(num_rows)])
    steady = replays[NUM_WARM:-2]
    if len(steady) < 2:
        return {"graphs": len(replays), "s": round(seconds, 3)}
    steady[-1][1].synchronize()
    busy = [before.elapsed_time(after) for before, after in steady]
    gaps = [one[1].elapsed_time(other[0]) for one, other in pairwise(steady)]
    share = sum(gaps) / (sum(gaps) + sum(busy))
    return {
        "graphs": len(replays),
        "busy_ms": round(statistics.median(busy), 4),
        "gap_ms": round(statistics.median(gaps), 4),
        "largest_gap_ms": round(max(gaps), 4),
        "gap_share": round(share, 4),
    }


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--peers", required=True)
    parser.add_argument("--loads", default=ALL)
    parser.add_argument("--scale", default="gpu")
    parser.add_argument("--reps", type=int, default=2)
    parser.add_argument("--profile", default="")
    parser.add_argument("--tp", type=int, default=1, help="ranks that share every matrix")
    parser.add_argument("--options", default="{}", help="more arguments of LLM, as JSON")
    given = parser.parse_args()
    sys.path.insert(0, given.peers)
    workload = importlib.import_module("workloads").workload

    began = time.perf_counter()
    if given.tp == 1:
        # With several ranks this process needs none of it, and each of them imports its own.
        importlib.import_module("torch")
    imported = time.perf_counter()
    from octavo import LLM

    replays = timed_graphs() if given.profile else []
    known: dict[str, Any] = {"load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 34000}
    known["tensor_parallel_size"] = given.tp
    llm = LLM(given.model, **{**known, **json.loads(given.options)})
    ready = time.perf_counter()
    first = run(llm, [([7, 8, 9], 1)])
    say(
        what="startup",
        torch_s=round(imported - began, 2),
        ready_s=round(ready - imported, 2),
        first_token_s=round(first, 3),
    )
    for name in filter(None, given.loads.split(",")):
        requests = workload(name, given.scale)
        num_out = sum(count for _, count in requests)
        for repetition in range(given.reps):
            seconds = run(llm, requests)
            say(what=name, rep=repetition, s=round(seconds, 3), out_tok_s=round(num_out / seconds, 1))
    for num_rows in map(int, filter(None, given.profile.split(","))):
        say(what="decode step", rows=num_rows, **profile(llm, replays, num_rows))
    for rank, memory in enumerate(llm.collective_rpc("memory")):
        say(what="memory", rank=rank, **{owner: f"{size / 2**20:.0f} MiB" for owner, size in memory.items()})
    llm.shutdown()


if __name__ == "__main__":
    main()
