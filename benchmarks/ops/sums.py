"""Time sums over GPUs, NCCL's and those through peer memory, inside a graph: `python -m benchmarks.ops.sums [RANKS]`.

A graph sums 64 times; printed are microseconds a sum, the median of 15 replays on the first rank, and whether sums are right.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from typing import Any

CALLS, REPLAYS = 64, 15
SIZES = [2**n for n in range(12, 24)]


def timed(group: Any, x: Any) -> float:
    """Return the microseconds of a sum of x."""
    import torch
    from torch import cuda  # noqa: TID251

    def work() -> None:
        for _ in range(CALLS):
            group.all_reduce(x)

    work()
    graph, stream = cuda.CUDAGraph(), cuda.Stream()
    cuda.synchronize()
    with cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        work()
        graph.capture_end()
    times, ready = list[float](), torch.zeros(4, device="cuda")
    for _ in range(REPLAYS):
        group.all_reduce(ready)
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / CALLS)
    return statistics.median(times)


def run(rank: int, ranks: int, folder: str) -> None:
    """Be one rank."""
    import torch

    from octavo.device.registry import detect
    from octavo.nn.parallel import peers
    from octavo.nn.parallel.gloo import connect

    detect("cuda", rank)
    peers.MOST_BYTES = SIZES[-1]
    mesh = connect(rank, tensor=ranks, pipeline=1, spread_experts=False, folder=folder, on_gpus=True)
    group: Any = mesh.tensor.group
    if rank == 0:
        print(group.how, flush=True)
        print("| KiB | NCCL | peer memory | right |\n|---|---|---|---|", flush=True)
    for size in SIZES:
        generator = torch.Generator("cuda").manual_seed(size)
        parts = torch.randn((ranks, size // 2), device="cuda", generator=generator).bfloat16()
        expected, row = parts.float().sum(0).bfloat16(), list[str]()
        right = True
        for through in (None, group.peers):
            own, group.peers = group.peers, through
            if own is None and through is None and row:
                break
            x = parts[rank].clone()
            group.all_reduce(x)
            right = right and torch.allclose(x.float(), expected.float(), rtol=0.01, atol=0.01)
            right = right and (through is None or torch.equal(x, expected))
            x.zero_()
            row.append(f"{timed(group, x):.2f}")
            group.peers = own
        if rank == 0:
            print(f"| {size >> 10} | {' | '.join(row)} | {right} |", flush=True)


def main() -> None:
    """Start a process for each rank, or be one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", type=int, nargs="?", default=2)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--folder", default="")
    given = parser.parse_args()
    if given.rank is not None:
        return run(given.rank, given.ranks, given.folder)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.ops.sums", str(given.ranks), "--folder", folder, "--rank"]
        processes = [subprocess.Popen([*command, str(rank)]) for rank in range(given.ranks)]
        sys.exit(max(process.wait() for process in processes))


if __name__ == "__main__":
    main()
