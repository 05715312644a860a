"""The stack of layers of a decoder. It owns the loop, so that stages, taps and layer-wise transfer are slices of it.

Shapes: T tokens, N hidden features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from octavo.nn.assembly import Stored
from octavo.nn.context import ForwardContext
from octavo.nn.norm import RMSNorm


class CausalLM(Protocol):
    """What the worker asks of a model file. checkpoint_names: path in the model -> name in a Hugging Face checkpoint.

    config_keys: the keys of config.json, beside the common ones, that it computes with, and their defaults: its facts'
    `extras` have them all.
    """

    config_keys: Mapping[str, Any]
    checkpoint_names: Mapping[str, str | Stored]

    def forward(self, ids: Tensor, ctx: ForwardContext) -> Tensor:
        """Return hidden states [T, N] of ids, int64 [T]; writes the step's keys and values into pages."""
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [S, vocabulary] of the hidden states [S, N] of rows that are sampled."""
        ...


class DecoderLayer(nn.Module):
    """Attention, then feed-forward, each normalized before and added to the residual stream after."""

    def __init__(self, *, attention_norm: RMSNorm, attention: nn.Module, mlp_norm: RMSNorm, mlp: nn.Module) -> None:
        super().__init__()
        self.attention_norm = attention_norm
        self.attention = attention
        self.mlp_norm = mlp_norm
        self.mlp = mlp

    def forward(self, delta: Tensor | None, residual: Tensor, ctx: ForwardContext) -> Tensor:
        """Return what is to be added to the residual [T, N]; delta is what the layer before left to be added to it."""
        delta = self.attention(self.attention_norm.add(delta, residual), ctx)
        return self.mlp(self.mlp_norm.add(delta, residual))


class Decoder(nn.Module):
    """Layers, and the norm after the last."""

    def __init__(self, layers: Iterable[nn.Module], norm: RMSNorm) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(self, residual: Tensor, ctx: ForwardContext) -> Tensor:
        """Return the last hidden states [T, N], normalized; residual [T, N] is overwritten."""
        delta: Tensor | None = None
        for layer in self.layers:
            delta = layer(delta, residual, ctx)
        return self.norm.add(delta, residual)
