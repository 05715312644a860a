"""Gemma 4 text (Google 2026): Gemma's norms on both sides, keys and values of late layers borrowed from earlier ones, wider
heads where a layer sees everything, and an embedding for every layer.

Shapes: T tokens, H query heads, K key/value heads, D head size, L layers, P features of a layer's input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from octavo.base.facts import Activation, ModelFacts
from octavo.nn.assembly import Binding
from octavo.nn.attention.layer import Attention, Reader, window_of
from octavo.nn.causal import HEAD_NORM_NAMES, USUAL_NAMES, CausalDecoder
from octavo.nn.context import ForwardContext
from octavo.nn.embedding import Embedding
from octavo.nn.heads import Heads
from octavo.nn.linear import ColumnLinear, QKVLinear, ReplicatedLinear, RowLinear
from octavo.nn.mlp import GatedMLP
from octavo.nn.norm import RMSNorm
from octavo.nn.rope import Rope
from octavo.nn.vector import Vector


class Gemma4Attention(nn.Module):
    """Grouped-query attention with normalized heads; a borrowing layer computes queries only."""

    def __init__(self, facts: ModelFacts, layer: int, ropes: Mapping[str, Rope], owner: int | None) -> None:
        super().__init__()
        kind = facts.layer_kinds[layer]
        heads = Heads(query=facts.num_heads, kv=facts.num_kv_heads, dim=_head_dim(facts, layer))
        hidden, bias, eps = facts.hidden_size, facts.attention_bias, facts.norm_eps
        self.head_dim = heads.dim
        features = heads.query * heads.dim
        self.q = None if owner is None else ColumnLinear(hidden, features, bias=bias, unit=heads.dim)
        self.qkv = QKVLinear(hidden, heads, bias=bias) if owner is None else None
        self.v_norm = RMSNorm(heads.dim, eps, weight=False)
        self.attend = Attention(
            layer if owner is None else Reader(layer=layer, owner=owner),
            heads,
            ropes[kind],
            window=window_of(facts, layer, slides=False),
            scale=1.0,
            norms=(RMSNorm(heads.dim, eps), RMSNorm(heads.dim, eps) if owner is None else None),
        )
        self.out = RowLinear(features, hidden, bias=bias)

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, hidden] from x [T, hidden]."""
        if self.qkv is None:
            assert self.q is not None
            q_THD = self.q(x).unflatten(-1, (-1, self.head_dim))
            return self.out(self.attend(q_THD, None, None, ctx))
        q_THD, k_TKD, v_TKD = self.qkv(x)
        return self.out(self.attend(q_THD, k_TKD, self.v_norm(v_TKD), ctx))


class Gemma4Layer(nn.Module):
    """Attention, feed-forward, and the layer's own input through a gate; each normalized before and after."""

    def __init__(self, facts: ModelFacts, layer: int, ropes: Mapping[str, Rope], owner: int | None) -> None:
        super().__init__()
        hidden, eps, features = facts.hidden_size, facts.norm_eps, facts.extras["hidden_size_per_layer_input"]
        width = facts.intermediate_size * (2 if owner is not None and facts.extras["use_double_wide_mlp"] else 1)
        self.layer = layer
        self.activation: Activation = facts.activation
        self.attention_norm, self.after_attention = RMSNorm(hidden, eps), RMSNorm(hidden, eps)
        self.attention = Gemma4Attention(facts, layer, ropes, owner)
        self.mlp_norm, self.after_mlp = RMSNorm(hidden, eps), RMSNorm(hidden, eps)
        self.mlp = GatedMLP(hidden, width, facts.activation)
        self.gate = ReplicatedLinear(hidden, features) if features else None
        self.project = ReplicatedLinear(features, hidden) if features else None
        self.after_project = RMSNorm(hidden, eps) if features else None
        self.scale = Vector(1, "layer_scalar")

    def bind(self, binding: Binding) -> None:
        """Take the kernel."""
        self._gated = binding.kernels.gated_activation

    def forward(self, delta: None, residual: Tensor, ctx: ForwardContext) -> None:
        """Overwrite residual [T, hidden]; there is nothing left to be added to it."""
        residual += self.after_attention(self.attention(self.attention_norm(residual), ctx))
        residual += self.after_mlp(self.mlp(self.mlp_norm(residual)))
        if self.gate is not None and self.project is not None and self.after_project is not None:
            assert ctx.layer_inputs is not None
            gated_TP = self._gated(self.gate(residual), ctx.layer_inputs[:, self.layer], self.activation)
            residual += self.after_project(self.project(gated_TP))
        residual *= self.scale()


class Gemma4ForCausalLM(CausalDecoder):
    """Token embeddings, the layers, and a head whose logits are capped."""

    config_keys = {
        "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False,
        "global_head_dim": 512,
        "per_layer_config": None,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
        "final_logit_softcapping": None,
    }
    checkpoint_names = {
        **USUAL_NAMES,
        **HEAD_NORM_NAMES,
        "layer_embed": "model.embed_tokens_per_layer",
        "layer_project": "model.per_layer_model_projection",
        "layer_norm": "model.per_layer_projection_norm",
        "decoder.layers.{}.scale": "model.layers.{}",
        "decoder.layers.{}.after_attention": "model.layers.{}.post_attention_layernorm",
        "decoder.layers.{}.attention.q": "model.layers.{}.self_attn.q_proj",
        "decoder.layers.{}.mlp_norm": "model.layers.{}.pre_feedforward_layernorm",
        "decoder.layers.{}.after_mlp": "model.layers.{}.post_feedforward_layernorm",
        "decoder.layers.{}.gate": "model.layers.{}.per_layer_input_gate",
        "decoder.layers.{}.project": "model.layers.{}.per_layer_projection",
        "decoder.layers.{}.after_project": "model.layers.{}.post_per_layer_input_norm",
    }

    def __init__(self, facts: ModelFacts) -> None:
        extras, hidden = facts.extras, facts.hidden_size
        if not facts.layer_kinds:
            kinds = tuple("sliding" if (layer + 1) % 6 else "full" for layer in range(facts.num_layers))
            facts = replace(facts, layer_kinds=kinds)
        wide = next(layer for layer, kind in enumerate(facts.layer_kinds) if kind == "full")
        ropes = {
            "full": Rope(replace(facts.rope, dim=_head_dim(facts, wide))),
            "sliding": Rope(facts.sliding_rope or facts.rope),
        }
        owners = _owners(facts)
        super().__init__(
            facts,
            lambda index: Gemma4Layer(facts, index, ropes, owners[index]),
            norm=RMSNorm(hidden, facts.norm_eps),
            cap=extras["final_logit_softcapping"],
        )
        self.sizes = facts.num_layers, extras["hidden_size_per_layer_input"]
        features = facts.num_layers * extras["hidden_size_per_layer_input"]
        self.layer_embed = Embedding(extras["vocab_size_per_layer_input"], features) if features else None
        self.layer_project = ReplicatedLinear(hidden, features) if features else None
        self.layer_norm = RMSNorm(self.sizes[1], facts.norm_eps) if features else None

    def forward(self, ids: Tensor, ctx: ForwardContext) -> Tensor:
        """Return hidden states [T, hidden] of ids, int64 [T]."""
        hidden = self.embed(ids)
        hidden *= hidden.shape[1] ** 0.5
        if self.layer_embed is not None and self.layer_project is not None and self.layer_norm is not None:
            own_TLP = self.layer_embed(ids).unflatten(-1, self.sizes) * self.sizes[1] ** 0.5
            seen_TLP = (self.layer_project(hidden) * hidden.shape[1] ** -0.5).unflatten(-1, self.sizes)
            ctx = replace(ctx, layer_inputs=(self.layer_norm(seen_TLP) + own_TLP) * 2**-0.5)
        return self.decoder(hidden, ctx)


def _head_dim(facts: ModelFacts, layer: int) -> int:
    if facts.extras["per_layer_config"] is not None:
        return facts.extras["per_layer_config"].get(str(layer), {}).get("head_dim", facts.head_dim)
    return facts.head_dim if facts.layer_kinds[layer] == "sliding" else facts.extras["global_head_dim"]


def _owners(facts: ModelFacts) -> list[int | None]:
    """Return the layer that each one borrows from: the last of its kind that has keys of its own; None for these."""
    first = facts.num_layers - facts.extras["num_kv_shared_layers"]
    last = {kind: layer for layer, kind in enumerate(facts.layer_kinds[:first])}
    return [None if layer < first else last[kind] for layer, kind in enumerate(facts.layer_kinds)]
