"""Grouped experts in plain torch: tokens sorted by expert, then one product for each expert that has any."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.base.facts import Activation
from octavo.ops.gated_activation import GatedActivation
from octavo.ops.grouped_experts import ExpertStack


def grouped_experts(
    x: Tensor,
    experts: Tensor,
    weights: Tensor,
    gate_up: ExpertStack,
    down: ExpertStack,
    activation: Activation,
    gated: GatedActivation,
) -> Tensor:
    """See `GroupedExperts`."""
    order = experts.flatten().argsort(stable=True)
    rows = order // experts.shape[1]
    chosen, counts = experts.flatten()[order].unique_consecutive(return_counts=True)
    num_experts = next(iter(down.tensors.values())).shape[0]
    out = torch.zeros_like(x, dtype=torch.float32)
    parts = zip(chosen.tolist(), rows.split(counts.tolist()), order.split(counts.tolist()), strict=True)
    for expert, tokens, places in parts:
        if 0 <= expert < num_experts:
            gate, up = gate_up.product(x[tokens], expert)
            (y,) = down.product(gated(gate, up, activation), expert)
            out.index_add_(0, tokens, y.float() * weights.flatten()[places, None])
    return out.to(x.dtype)
