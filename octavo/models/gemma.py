"""Gemma 2 (Gemma Team 2024): capped scores and logits, norms before and after, and every other layer slides. Gemma 3 (Gemma Team
2025), text: five layers that slide, with rotary positions of their own, for one that sees everything.

Shapes: T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo.base.facts import ModelFacts
from octavo.nn.attention.layer import Attention, window_of
from octavo.nn.causal import HEAD_NORM_NAMES, USUAL_NAMES, CausalDecoder, SelfAttention
from octavo.nn.context import ForwardContext
from octavo.nn.decoder import SandwichDecoderLayer
from octavo.nn.heads import Heads
from octavo.nn.mlp import GatedMLP
from octavo.nn.norm import OffsetRMSNorm
from octavo.nn.rope import Rope


class _GemmaForCausalLM(CausalDecoder):
    """Scaled token embeddings, and layers of attention with rotary positions and a gated MLP."""

    checkpoint_names = {
        **USUAL_NAMES,
        **HEAD_NORM_NAMES,
        "decoder.layers.{}.after_attention_norm": "model.layers.{}.post_attention_layernorm",
        "decoder.layers.{}.mlp_norm": "model.layers.{}.pre_feedforward_layernorm",
        "decoder.layers.{}.after_mlp_norm": "model.layers.{}.post_feedforward_layernorm",
    }

    def __init__(self, facts: ModelFacts) -> None:
        ropes = Rope(facts.rope), Rope(facts.sliding_rope or facts.rope)
        hidden, eps = facts.hidden_size, facts.norm_eps

        def layer(index: int) -> nn.Module:
            attend = self.attention(facts, index, *ropes)
            return SandwichDecoderLayer(
                attention_norm=OffsetRMSNorm(hidden, eps),
                attention=SelfAttention(hidden, attend.heads, attend, bias=facts.attention_bias),
                after_attention_norm=OffsetRMSNorm(hidden, eps),
                mlp_norm=OffsetRMSNorm(hidden, eps),
                mlp=GatedMLP(hidden, facts.intermediate_size, facts.activation),
                after_mlp_norm=OffsetRMSNorm(hidden, eps),
            )

        super().__init__(facts, layer, norm=OffsetRMSNorm(hidden, eps), cap=facts.extras["final_logit_softcapping"])
        self.scale = hidden**0.5

    def attention(self, facts: ModelFacts, layer: int, rope: Rope, sliding_rope: Rope) -> Attention:
        """Return the attention of a layer."""
        raise NotImplementedError

    def forward(self, ids: Tensor, ctx: ForwardContext) -> Tensor:
        """Return hidden states [T, hidden] of ids, int64 [T]."""
        embedded = self.embed(ids)
        # The factor is rounded as the original rounds it.
        return self.decoder(embedded.mul_(torch.tensor(self.scale, dtype=embedded.dtype)), ctx)


class Gemma2ForCausalLM(_GemmaForCausalLM):
    """Scores are capped; every other layer slides."""

    config_keys = {"query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}

    def attention(self, facts: ModelFacts, layer: int, rope: Rope, sliding_rope: Rope) -> Attention:
        """Return the attention of a layer."""
        return Attention(
            layer,
            Heads.of(facts),
            rope,
            window=window_of(facts, layer, slides=layer % 2 == 0),
            scale=facts.extras["query_pre_attn_scalar"] ** -0.5,
            softcap=facts.extras["attn_logit_softcapping"],
        )


class Gemma3ForCausalLM(_GemmaForCausalLM):
    """Queries and keys are normalized before they are rotated; layers that slide are rotated in a way of their own."""

    config_keys = {"query_pre_attn_scalar": 256, "sliding_window_pattern": 6, "final_logit_softcapping": None}

    def attention(self, facts: ModelFacts, layer: int, rope: Rope, sliding_rope: Rope) -> Attention:
        """Return the attention of a layer."""
        heads, eps, extras = Heads.of(facts), facts.norm_eps, facts.extras
        window = window_of(facts, layer, slides=(layer + 1) % extras["sliding_window_pattern"] != 0)
        return Attention(
            layer,
            heads,
            rope if window is None else sliding_rope,
            window=window,
            scale=extras["query_pre_attn_scalar"] ** -0.5,
            norms=(OffsetRMSNorm(heads.dim, eps), OffsetRMSNorm(heads.dim, eps)),
        )
