"""The stack of layers of a decoder. It owns the loop, so that stages, taps and layer-wise transfer are slices of it.

Shapes: T tokens, N hidden features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from octavo.nn.assembly import Binding, Elsewhere, Stored
from octavo.nn.context import ForwardContext
from octavo.nn.few_rows import MOST_ROWS, FewRowsLayer, few_rows_of
from octavo.nn.norm import Norm
from octavo.nn.parallel.collectives import receive_before, send_on
from octavo.nn.parallel.mesh import Mesh
from octavo.nn.parallel.placement import portion


@runtime_checkable
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


class EncoderDecoder(CausalLM, Protocol):
    """A model that reads an input with an encoder first."""

    def encode(self, ids: Tensor, ctx: ForwardContext) -> None:
        """Encode ids, int64 [T], whose rows are whole, and write into pages what the decoder attends to."""
        ...


class DecoderLayer(nn.Module):
    """Attention, then feed-forward, each normalized before and added to the residual stream after."""

    def __init__(self, *, attention_norm: Norm, attention: nn.Module, mlp_norm: Norm, mlp: nn.Module) -> None:
        super().__init__()
        self.attention_norm = attention_norm
        self.attention = attention
        self.mlp_norm = mlp_norm
        self.mlp = mlp
        self.few_rows: FewRowsLayer | None = None

    def bind(self, binding: Binding) -> None:
        """Choose whether steps of few rows go another way."""
        # What is derived from this class has another forward pass.
        if type(self) is DecoderLayer:
            self.few_rows = few_rows_of(self.attention_norm, self.attention, self.mlp_norm, self.mlp, binding)

    def forward(self, delta: Tensor | None, residual: Tensor, ctx: ForwardContext) -> Tensor | None:
        """Return what is to be added to the residual [T, N]; delta is what the layer before left to be added to it."""
        if self.few_rows is not None and ctx.decodes and len(residual) <= MOST_ROWS:
            return self.few_rows(residual if delta is None else residual.add_(delta), ctx)
        delta = self.attention(self.attention_norm.add(delta, residual), ctx)
        return self.mlp(self.mlp_norm.add(delta, residual))


class SandwichDecoderLayer(DecoderLayer):
    """Attention, then feed-forward, each normalized before and after (Ding et al. 2021, CogView)."""

    def __init__(
        self,
        *,
        attention_norm: Norm,
        attention: nn.Module,
        after_attention_norm: Norm,
        mlp_norm: Norm,
        mlp: nn.Module,
        after_mlp_norm: Norm,
    ) -> None:
        super().__init__(attention_norm=attention_norm, attention=attention, mlp_norm=mlp_norm, mlp=mlp)
        self.after_attention_norm = after_attention_norm
        self.after_mlp_norm = after_mlp_norm

    def forward(self, delta: Tensor | None, residual: Tensor, ctx: ForwardContext) -> Tensor:
        """Return what is to be added to the residual [T, N]; delta is what the layer before left to be added to it."""
        attended: Tensor = self.attention(self.attention_norm.add(delta, residual), ctx)
        return self.after_mlp_norm(self.mlp(self.mlp_norm.add(self.after_attention_norm(attended), residual)))


class ParallelDecoderLayer(nn.Module):
    """Attention and feed-forward of the same residual stream, side by side (Wang & Komatsuzaki 2021, GPT-J).

    mlp_norm: of its own for the feed-forward; without one it takes what attention takes.
    """

    def __init__(
        self, *, attention_norm: Norm, attention: nn.Module, mlp: nn.Module, mlp_norm: Norm | None = None
    ) -> None:
        super().__init__()
        self.attention_norm = attention_norm
        self.attention = attention
        self.mlp = mlp
        self.mlp_norm = mlp_norm

    def forward(self, delta: Tensor | None, residual: Tensor, ctx: ForwardContext) -> Tensor:
        """Return what is to be added to the residual [T, N]; delta is what the layer before left to be added to it."""
        x = self.attention_norm.add(delta, residual)
        y = x if self.mlp_norm is None else self.mlp_norm(residual)
        return self.attention(x, ctx) + self.mlp(y)


class PostNormDecoderLayer(DecoderLayer):
    """Attention, then feed-forward, each added to the residual stream, which is normalized after (Vaswani et al. 2017)."""

    def forward(self, delta: Tensor | None, residual: Tensor, ctx: ForwardContext) -> None:
        """Overwrite residual [T, N]; there is nothing left to be added to it."""
        residual.copy_(self.attention_norm.add(self.attention(residual, ctx), residual))
        residual.copy_(self.mlp_norm.add(self.mlp(residual), residual))


class Decoder(nn.Module):
    """Layers, and the norm after the last, if there is one. A stage runs its share of them."""

    def __init__(self, layers: Iterable[nn.Module], norm: Norm | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Keep the layers of this stage; the others keep their numbers."""
        self.stage = portion(len(self.layers), mesh.pipeline)
        for index in range(len(self.layers)):
            if index not in self.stage:
                self.layers[index] = Elsewhere()

    def bind(self, binding: Binding) -> None:
        """Take the ways to the neighbouring stages."""
        self._receive, self._send = receive_before(binding.mesh.pipeline), send_on(binding.mesh.pipeline)
        self._ends = binding.mesh.ends

    def forward(self, residual: Tensor, ctx: ForwardContext) -> Tensor:
        """Return the last hidden states [T, N], normalized if there is a norm; residual [T, N] is overwritten.

        Behind the first stage, what residual and the layers' inputs hold at first does not count; before the last, what is
        returned does not.
        """
        residual, delta = self._receive(residual), None
        if ctx.layer_inputs is not None:
            self._receive(ctx.layer_inputs)
        for index in self.stage:
            delta = self.layers[index](delta, residual, ctx)
        if not self._ends:
            self._send(residual if delta is None else residual.add_(delta))
            return residual if ctx.layer_inputs is None else self._send(ctx.layer_inputs)
        if self.norm is not None:
            return self.norm.add(delta, residual)
        return residual if delta is None else residual + delta
