"""Time transformers on the loads that Octavo's peers are timed on: the baseline that everybody has. One JSON line per run.

    python bench_transformers.py MODEL --workloads DIR --loads single,small --threads 2

MODEL is a folder of safetensors. All requests of a load are one padded batch that runs to the longest answer: the library's plain
`generate`. Not a part of Octavo's processes: it runs in an interpreter of its own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from typing import Any


def main() -> None:
    """Load the model, run the loads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--workloads", required=True)
    parser.add_argument("--loads", required=True)
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--reps", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dummy", action="store_true")
    given = parser.parse_args()
    sys.path.insert(0, given.workloads)
    workload = importlib.import_module("workloads").workload

    began = time.perf_counter()
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.set_num_threads(given.threads)
    if given.dummy:
        config = transformers.AutoConfig.from_pretrained(given.model)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.bfloat16)
    model.eval()
    model.generation_config.eos_token_id = None

    def run(requests: list[tuple[list[int], int]]) -> float:
        longest = max(len(ids) for ids, _ in requests)
        ids = torch.tensor([[0] * (longest - len(ids)) + ids for ids, _ in requests])
        mask = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids, _ in requests])
        count = max(count for _, count in requests)
        began = time.perf_counter()
        with torch.inference_mode():
            done = model.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=False, pad_token_id=0)
        assert done.shape == (len(requests), longest + count)
        return time.perf_counter() - began

    run([([7, 8, 9], 1)])
    print("RESULT", json.dumps({"what": "startup", "s": round(time.perf_counter() - began, 2)}), flush=True)
    for name in given.loads.split(","):
        for repetition in range(given.reps):
            seconds = run(workload(name, given.scale))
            print("RESULT", json.dumps({"what": name, "rep": repetition, "s": round(seconds, 3)}), flush=True)


if __name__ == "__main__":
    main()
