"""Print the kernels that common steps launch and a start does not compile: `python -m tests.kernels.start_kinds MODEL SLOTS`.

Nothing is compiled: Triton says by key which kernel a launch would take, of a GPU that is not here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from triton.runtime import driver
from triton.runtime._async_compile import active_mode

from octavo.checkpoint.open import open_checkpoint
from octavo.config.model import ModelConfig
from octavo.engine.kvcache.geometry import solve
from octavo.nn.parallel.mesh import Mesh
from octavo.ops.compile_ahead import without_launches
from octavo.worker.batch import StepRows, StepShape, shape_of, void_rows
from octavo.worker.graphs import StepGraphs
from octavo.worker.pages import PagePool
from octavo.worker.slots import Slots
from octavo.worker.spec import WorkerSpec
from octavo.worker.staging import Staging
from octavo.worker.warmup import Warmup
from tools.kernel_cache import Absent, absent_driver, assemble

BUDGET = 4096


class Keys:
    """Stands where Triton expects what compiles. met: kernel -> what was done when it was met first."""

    def __init__(self) -> None:
        self.now, self.met = "start", dict[str, str]()

    def submit(self, key: str, compile_one: object, keep: Callable[[object], None], *_cleanup: object) -> object:
        self.met.setdefault(key, self.now)
        keep(self)
        return self


def steps(spec: WorkerSpec, slots: Slots) -> Iterator[StepRows]:
    """Yield decodes and mixed steps, small and large."""
    counts = [count for count in (1, 2, 3, 5, 9, 17, 20, 24, 40, 70, 130, 300) if count <= spec.max_num_seqs]
    for num_rows in counts:
        for num_tokens in {num_rows, 13, 50, 100, 250, 400, 900, 1500, 3000, BUDGET}:
            for longest in (100, 1000, spec.max_model_len):
                if num_rows <= num_tokens <= num_rows * longest:
                    rows = void_rows(num_rows, num_tokens, longest)
                    yield replace(rows, slots=np.arange(num_rows), longest=longest)


def main(model: str, num_slots: int) -> None:
    """Print a line for each."""
    driver.set_active(absent_driver(90, launchers=False))
    device, checkpoint = (
        Absent(90),
        open_checkpoint(ModelConfig(model=model, skip_tokenizer_init=True, load_format="dummy")),
    )
    longest = checkpoint.facts.max_position
    loaded = assemble(checkpoint, "bfloat16", device, longest)
    spec = WorkerSpec(
        checkpoint=checkpoint,
        dtype="bfloat16",
        max_model_len=longest,
        max_num_seqs=num_slots,
        max_num_batched_tokens=BUDGET,
    )
    keys: Any = Keys()
    done = set[StepShape]()
    active_mode.set(keys)
    with torch.inference_mode(), without_launches():
        warmup = Warmup(spec, device, loaded, Mesh(), graphs=True)
        warmup.kept_back()
        warmup.compile_rest()
        pool = PagePool(solve(loaded.layers), 1000, device, loaded.kernels.page_copy)
        slots = Slots(num_slots, longest, checkpoint.facts.vocab_size, pool)
        staging = Staging(device, 4 * (num_slots + 1))
        program = replace(warmup.program, slots=slots, pool=pool, staging=staging)
        for plain in steps(spec, slots):
            for shared in (False, True) if num_slots > 1 else (False,):
                rows = replace(plain, shared=shared)
                found = StepGraphs(device, program, budget=BUDGET).find(rows, "greedy")
                shape = shape_of(rows, slots, pool) if found is None else found[0]
                if shape not in done:
                    done.add(shape)
                    keys.now = str(shape)
                    program.run_void(shape, "greedy")
    started = [now for now in keys.met.values() if now == "start"]
    print(f"{len(started)} kernels at start")
    print("".join(f"missed: {now}\n" for now in keys.met.values() if now != "start"), end="")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
