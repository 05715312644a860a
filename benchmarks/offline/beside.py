"""Run Octavo and its peers on the same loads, one after the other on this machine, and print their ratios.

    python -m benchmarks.offline.beside MODEL_DIR --peers DIR --loads single,mix --reps 3 --history FILE

DIR holds `workloads.py` and a `bench_NAME.py` for every peer named by --engines; each engine does all loads of the model in one
process of its own. A ratio is the better peer's seconds over Octavo's: above 1, Octavo is faster. `start` is the time from the
process's start to its first token or, of peers, to when it is ready. The history gets one JSON line a run, to be searched when
a figure has changed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.offline.loads import ALL

# Load -> seconds of every repetition.
Figures = dict[str, list[float]]


def command_of(engine: str, given: argparse.Namespace) -> list[str]:
    """Return the command that times an engine."""
    program = [*shlex.split(given.peer_python or ""), f"{given.peers}/bench_{engine}.py"]
    if engine == "octavo":
        program = [sys.executable, "-m", "benchmarks.offline.loads"]
    found = [
        *program,
        given.model,
        "--loads",
        given.loads,
        "--reps",
        str(given.reps),
        "--scale",
        given.scale,
    ]
    own = ["--peers", given.peers] if engine == "octavo" else []
    # Not every peer knows it.
    own += ["--tp", str(given.tp)] if given.tp > 1 else []
    return [*found, *own, *shlex.split(getattr(given, f"{engine}_flags", ""))]


def measure(engine: str, given: argparse.Namespace) -> Figures:
    """Run one engine; returns what it printed, and `start`. Raises CalledProcessError if it ends badly."""
    command, found = command_of(engine, given), defaultdict(list)
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"{engine}: {line}", end="", flush=True)
            if not line.startswith("RESULT "):
                continue
            row: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            if row["what"] == "startup":
                found["start"].append(time.perf_counter() - began)
            elif "s" in row and "rep" in row:
                found[row["what"]].append(row["s"])
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return dict(found)


def table(figures: dict[str, Figures], warm: bool) -> list[str]:
    """Return the lines of a table: medians, spreads and the ratio of each load. warm: the first repetition does not count."""
    peers = [engine for engine in figures if engine != "octavo"]
    lines = ["| load | " + " | ".join(figures) + " | ratio |", "|---" * (len(figures) + 2) + "|"]
    for load in figures["octavo"]:
        medians, cells = dict[str, float](), list[str]()
        for engine, found in figures.items():
            counted = found.get(load, [])[1 if warm and len(found.get(load, [])) > 1 else 0 :]
            if counted:
                medians[engine] = statistics.median(counted)
                cells.append(f"{medians[engine]:.3f} ({min(counted):.3f}–{max(counted):.3f})")
            else:
                cells.append("")
        best = min((medians[peer] for peer in peers if peer in medians), default=None)
        ratio = "" if best is None else f"{best / medians['octavo']:.2f}"
        lines.append(f"| {load} | {' | '.join(cells)} | {ratio} |")
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--peers", required=True)
    parser.add_argument("--engines", default="octavo,vllm")
    parser.add_argument("--loads", default=ALL)
    parser.add_argument("--scale", default="gpu")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--tp", type=int, default=1, help="GPUs that share every matrix, in every engine")
    parser.add_argument("--count-first", action="store_true", help="let the first repetition count, if there are more")
    parser.add_argument(
        "--peer-python", default=sys.executable, help="their interpreter, or a command that leads to one"
    )
    parser.add_argument("--octavo-flags", default="", help="more arguments of its benchmark")
    parser.add_argument("--vllm-flags", default="")
    parser.add_argument("--sglang-flags", default="")
    parser.add_argument("--history", type=Path)
    given = parser.parse_args()
    figures = {engine: measure(engine, given) for engine in given.engines.split(",")}
    print("\n".join(table(figures, warm=not given.count_first)), flush=True)
    if given.history is not None:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
        line = {"at": int(time.time()), "commit": commit, "model": Path(given.model).name, "figures": figures}
        with given.history.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
