"""What a device must have left beside weights and pages: found by doing the largest steps before there is a pool."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from octavo.base.facts import DeviceFacts
from octavo.device.base import Device
from octavo.device.host import host_cores
from octavo.engine.kvcache.geometry import solve
from octavo.nn.parallel.collectives import broadcast
from octavo.nn.parallel.mesh import Mesh
from octavo.ops.compile_ahead import compile_ahead, without_launches
from octavo.worker.batch import make_batch, shape_of, void_rows
from octavo.worker.graphs import FIRST_MIXED, MOST_TOKENS, first_sizes, row_sizes
from octavo.worker.loader.assemble import AssembledModel
from octavo.worker.pages import PagePool
from octavo.worker.sampling.rows import SamplingBatch
from octavo.worker.sampling.sampler import sample
from octavo.worker.slots import Slots
from octavo.worker.spec import WorkerSpec
from octavo.worker.staging import Staging
from octavo.worker.step import StepProgram

# What the driver keeps for a graph's kernels, beside the memory that they work in.
_GRAPH_BYTES = 8 * 2**20
# Rows and tokens of steps that launch, between them and beside decodes, all kernels that common steps do; the likeliest first.
_MIXED = ((8, 512), (1, 600), (32, 512), (128, 512), (64, 256))
_SHARED = tuple((*size, True) for size in (*((2**n, 2**n) for n in range(7)), (8, 512), (32, 512), (128, 512)))


def why_no_graphs(spec: WorkerSpec, facts: DeviceFacts, loaded: AssembledModel) -> str | None:
    """Return why steps are not recorded, in words, or None if they are."""
    if spec.enforce_eager:
        return "no graphs: enforce_eager"
    if "graphs" not in facts.features:
        return f"no graphs: {facts.name} records none"
    if not loaded.generates:
        return "no graphs: the model gives vectors"
    if spec.num_ranks > 1 and "queue" not in facts.features:
        return "no graphs: several ranks meet on the host inside a step"
    if loaded.unrecordable:
        return f"no graphs: the host takes part in {', '.join(loaded.unrecordable)}"
    return None


class Warmup:
    """Steps of nobody's rows, done before there is a pool. Kernels are compiled beside them, and none is launched."""

    def __init__(self, spec: WorkerSpec, device: Device, loaded: AssembledModel, mesh: Mesh, *, graphs: bool) -> None:
        self._spec, self._device, self._loaded, self._samples = spec, device, loaded, loaded.generates and mesh.ends
        pool = self._pool = PagePool(solve(loaded.layers, spec.block_size), 1, device, loaded.kernels.page_copy)
        slots = self._slots = Slots(0, spec.max_model_len, spec.checkpoint.facts.vocab_size, pool)
        self._staging = Staging(device, 4 * (spec.max_num_seqs + 1))
        self._graphs = graphs
        self.program = StepProgram(
            model=loaded.model,
            kernels=loaded.kernels,
            mesh=mesh,
            share=broadcast(mesh.tensor),
            slots=slots,
            pool=pool,
            staging=self._staging,
        )
        # Nobody's row asks for what takes most.
        slots.sampling.greedy[:] = False
        slots.sampling.reals[:] = torch.tensor([1.0, 0.9, 0.0])

    def kept_back(self) -> dict[str, int]:
        """Return the bytes that others than the page pool will take, by owner; nothing on a host, where nobody can say."""
        if self._device.facts.kind == "cpu":
            return {}
        most, budget, graphs = self._spec.max_num_seqs, self._spec.max_num_batched_tokens, self._graphs
        self._compile((*FIRST_MIXED, *((size, size) for size in first_sizes(most))))
        sizes = [(budget, budget), (most, most), (MOST_TOKENS // 2, MOST_TOKENS)][: 3 if graphs else 1]
        with without_launches() if self._device.facts.kind == "cuda" else nullcontext():
            peaks = [self._device.peak(functools.partial(self._do, *size)) for size in sizes]
        found = {"slots": self._slots.num_bytes * (most + 1), "workspace": peaks[0]}
        return {**found, "graphs": max(peaks) + len(row_sizes(most)) * _GRAPH_BYTES} if graphs else found

    def compile_rest(self) -> None:
        """Find the kernels of all other common steps, which are compiled behind the return."""
        largest = (self._spec.max_num_batched_tokens, self._spec.max_num_batched_tokens)
        self._compile((largest, *_MIXED, *(_SHARED if self._spec.max_num_seqs > 1 else ())), behind=True)

    def _compile(self, sizes: Sequence[Any], *, behind: bool = False) -> None:
        """Compile what recorded steps of these sizes launch, and what one of the first that is not recorded does."""

        def work() -> None:
            self._do(*sizes[0])
            for size in sizes:
                self._do(*size, recorded=True)

        if self._device.facts.kind == "cuda":
            compile_ahead(work, host_cores(), behind=behind)

    @torch.inference_mode()
    def _do(self, num_rows: int, num_tokens: int, shared: bool = False, *, recorded: bool = False) -> None:
        """Do a step of as many rows as there can be. recorded: with page tables as wide as in steps that are recorded."""
        rows = void_rows(min(num_rows, self._spec.max_num_seqs), num_tokens, self._spec.max_model_len)
        shape = replace(shape_of(rows, self._slots, self._pool), shared=shared)
        if recorded:
            shape = replace(shape, widths=tuple(table.shape[1] for table in self._slots.tables))
        if recorded and self._graphs:
            self.program.run_void(shape, "greedy")
            return
        self._staging.send(rows.numbers(shape, self._slots.void))
        batch = make_batch(self._staging.fixed[: shape.num_numbers], shape, self._slots, self._pool)
        hidden = self._loaded.model.forward(batch.ids, batch.context)
        if self._samples:
            logits = self._loaded.model.compute_logits(hidden[batch.last])
            none = np.zeros(len(logits), np.int64)
            drawn = SamplingBatch(sampling=none, slots=none, targets=batch.targets, positions=batch.lengths)
            sample(logits, self._slots.sampling, drawn, self._loaded.kernels.draw)
