"""Time Octavo and its peers on a CPU in alternation, every run a whole process, and print medians, spreads and ratios.

    python -m benchmarks.peers_cpu MODEL --peers DIR --llamacpp-python V/bin/python --loads single,small --rounds 5
    python -m benchmarks.peers_cpu FOLDER --peers DIR --vllm-python V/bin/python --transformers-python V/bin/python

MODEL is a .gguf file for llama.cpp, a folder of safetensors for the others (--dummy: only its config is read). DIR holds
`workloads.py` and a `bench_NAME.py` for every peer but transformers. A peer takes part if its interpreter is named, so that none
is a dependency of ours. A process does one load, or all that + joins (single+small: for who starts slowly), each --inner times,
of which the last counts. What every engine took in a round is appended to the history at once: rounds of one --label are one
measurement, however many commands they came from (--rounds 0 only prints it).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.offline.beside import Figures, measure, table

HERE = Path(__file__).parent
PEERS = ("llamacpp", "vllm", "transformers")
LOADS = "single,small,prefill,prefix"
# What vLLM's CPU build wants.
VLLM = "VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_CPU_KVCACHE_SPACE=2 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1"
# (engine -> load -> seconds) of one alternation.
Round = dict[str, Figures]


def arguments_of(engine: str, load: str, given: argparse.Namespace) -> argparse.Namespace:
    """Return what `beside.measure` is asked for one engine and one load."""
    weights = "dummy" if given.dummy else "auto"
    options = {"max_model_len": given.max_model_len, "load_format": weights, **json.loads(given.octavo_options)}
    python = getattr(given, f"{engine}_python", None)
    if engine == "vllm":
        python = f"env OMP_NUM_THREADS={given.threads} {VLLM} {python}"
    served = f"--load-format {weights} --max-model-len {given.max_model_len}"
    return argparse.Namespace(
        model=given.model,
        peers=str(HERE / "offline") if engine == "transformers" else given.peers,
        loads=load.replace("+", ","),
        reps=given.inner,
        scale=given.scale,
        tp=1,
        peer_python=python,
        octavo_flags=f"--options '{json.dumps(options)}'",
        llamacpp_flags=f"--threads {given.threads}",
        vllm_flags=served,
        transformers_flags=f"--workloads {given.peers} --threads {given.threads}" + " --dummy" * given.dummy,
    )


def seconds_of_others() -> float:
    """Return the processors' seconds that went, since the machine started, to others than this process and its children."""
    user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text(encoding="utf-8").split()[1:9])
    own = os.times()
    busy = (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
    return busy - own.user - own.system - own.children_user - own.children_system


def rounds(engines: list[str], given: argparse.Namespace) -> Iterator[tuple[str, float, Round]]:
    """Run every load --rounds times, the engines taking turns.

    Yields (load, the processors that others kept busy beside the engine that had the most of it, what each engine took).
    """
    for _ in range(given.rounds):
        for load in given.loads.split(","):
            figures, busiest = Round(), 0.0
            for engine in engines:
                began, others = time.perf_counter(), seconds_of_others()
                figures[engine] = measure(engine, arguments_of(engine, load, given))
                busiest = max(busiest, (seconds_of_others() - others) / (time.perf_counter() - began))
            yield load, round(busiest, 3), figures


def lines_of(history: Path, label: str, model: str, most: float) -> Iterator[Round]:
    """Yield the rounds of one measurement of one model. most: processors that others may have kept busy beside them."""
    for text in history.read_text(encoding="utf-8").splitlines():
        line: dict[str, Any] = json.loads(text)
        if (line["label"], line["model"]) == (label, model) and line.get("others", 0.0) <= most:
            yield line["figures"]


def gathered(found: Iterable[Round]) -> tuple[dict[str, Figures], dict[str, list[float]]]:
    """Return, over all rounds, each engine's counted seconds of every load, and "load: peer" -> the ratios of the pairs."""
    figures, ratios = dict[str, Figures](), defaultdict[str, list[float]](list)
    for each in found:
        last = {engine: {load: taken[-1] for load, taken in loads.items()} for engine, loads in each.items()}
        for engine, loads in last.items():
            for load, seconds in loads.items():
                figures.setdefault(engine, {}).setdefault(load, []).append(seconds)
                if engine != "octavo" and load in last["octavo"]:
                    ratios[f"{load}: {engine}"].append(seconds / last["octavo"][load])
    return figures, dict(ratios)


def report(found: Iterable[Round]) -> list[str]:
    """Return the lines that say what was measured."""
    figures, ratios = gathered(found)
    if "octavo" not in figures:
        return ["nothing measured under this label"]
    lines = table({"octavo": figures["octavo"], **figures}, warm=False)
    for name, pairs in ratios.items():
        spread = f"{min(pairs):.2f}–{max(pairs):.2f}"
        load, peer = name.split(": ")
        lowest = min(figures[peer][load]) / min(figures["octavo"][load])
        median = f"{statistics.median(pairs):.2f} ({spread})"
        lines.append(f"{name} / octavo, {len(pairs)} pairs: {median}; of the lowest of each: {lowest:.2f}")
    return lines


def main() -> None:
    """Measure, keep and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--peers", required=True)
    parser.add_argument("--loads", default=LOADS)
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--inner", type=int, default=2, help="repetitions within a process, of which the last counts")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--max-model-len", type=int, default=4352)
    parser.add_argument("--dummy", action="store_true", help="random weights from the config alone")
    parser.add_argument("--octavo-options", default="{}", help="more arguments of its LLM, as JSON")
    for peer in PEERS:
        parser.add_argument(f"--{peer}-python", help="its interpreter; left out, it takes no part")
    parser.add_argument(
        "--most-others", type=float, default=8.0, help="leave out rounds beside which others kept more cores busy"
    )
    parser.add_argument("--label", help="name of the measurement (default: the commit)")
    parser.add_argument("--history", type=Path, default=HERE / "results" / "history-cpu.jsonl")
    given = parser.parse_args()
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    model, label = Path(given.model).name, given.label or commit
    engines = ["octavo", *(peer for peer in PEERS if getattr(given, f"{peer}_python"))]
    for load, others, figures in rounds(engines, given):
        line = {
            "at": int(time.time()),
            "commit": commit,
            "label": label,
            "model": model,
            "load": load,
            "others": others,
        }
        with given.history.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "figures": figures}) + "\n")
    print("\n".join(report(lines_of(given.history, label, model, given.most_others))), flush=True)


if __name__ == "__main__":
    sys.exit(main())
