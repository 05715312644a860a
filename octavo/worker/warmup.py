"""What a device must have left beside weights and pages: found by doing the largest steps before there is a pool."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import torch

from octavo.base.facts import DeviceFacts
from octavo.device.base import Device
from octavo.device.host import host_cores
from octavo.engine.kvcache.geometry import solve
from octavo.nn.parallel.mesh import Mesh
from octavo.ops.compile_ahead import compile_ahead
from octavo.worker.batch import make_batch, shape_of, void_rows
from octavo.worker.graphs import MOST_TOKENS, first_sizes, row_sizes
from octavo.worker.loader.assemble import AssembledModel
from octavo.worker.pages import PagePool
from octavo.worker.sampling.rows import SamplingBatch
from octavo.worker.sampling.sampler import sample
from octavo.worker.slots import Slots
from octavo.worker.spec import WorkerSpec
from octavo.worker.staging import Staging

# What the driver keeps for a graph's kernels, beside the memory that they work in.
_GRAPH_BYTES = 8 * 2**20
# Rows and tokens of steps that between them launch, beside decodes, all kernels that common steps do.
_KINDS = ((8, 16), (8, 64), (8, 512), (256, MOST_TOKENS), (1, 600))


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


@torch.inference_mode()
def kept_back(spec: WorkerSpec, device: Device, loaded: AssembledModel, mesh: Mesh, *, graphs: bool) -> dict[str, int]:
    """Return the bytes that others than the page pool will take, by owner; nothing on a host, where nobody can say."""
    if device.facts.kind == "cpu":
        return {}
    geometry, vocab_size = solve(loaded.layers, spec.block_size), spec.checkpoint.facts.vocab_size
    pool = PagePool(geometry, 1, device, loaded.kernels.page_copy)
    slots = Slots(0, spec.max_model_len, vocab_size, pool)
    most = spec.max_num_seqs
    staging = Staging(device, 4 * (most + 1))
    # Nobody's row asks for what takes most.
    slots.sampling.greedy[:] = False
    slots.sampling.reals[:] = torch.tensor([1.0, 0.9, 0.0])

    def work(num_rows: int, num_tokens: int, widest: bool = False) -> None:
        rows = void_rows(num_rows, num_tokens, spec.max_model_len)
        shape = shape_of(rows, slots, pool)
        if widest:
            shape = replace(shape, widths=tuple(table.shape[1] for table in slots.tables))
        staging.send(rows.numbers(shape, slots.void))
        batch = make_batch(staging.fixed[: shape.num_numbers], shape, slots, pool)
        hidden = loaded.model.forward(batch.ids, batch.context)
        if loaded.generates and mesh.ends:
            logits = loaded.model.compute_logits(hidden[batch.last])
            none = np.zeros(len(logits), np.int64)
            drawn = SamplingBatch(sampling=none, slots=none, targets=batch.targets, positions=batch.lengths)
            sample(logits, slots.sampling, drawn, loaded.kernels.draw)

    def all_kinds() -> None:
        for size in first_sizes(most):
            work(size, size, widest=True)
        for num_rows, num_tokens in _KINDS:
            work(min(num_rows, most), num_tokens, widest=True)

    budget = spec.max_num_batched_tokens
    largest = [(min(most, budget), budget)]
    if graphs:
        largest += [(most, most), (min(most, MOST_TOKENS // 2), MOST_TOKENS)]
    if device.facts.kind == "cuda":
        compile_ahead(all_kinds, host_cores())
    peaks = [device.peak(functools.partial(work, *size)) for size in largest]
    found = {"slots": slots.num_bytes * (most + 1), "workspace": peaks[0]}
    if graphs:
        found["graphs"] = max(peaks) + len(row_sizes(most)) * _GRAPH_BYTES
    return found
