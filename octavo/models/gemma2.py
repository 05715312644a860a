"""Gemma 2 (Gemma Team 2024): capped scores and logits, norms before and after, and every other layer slides.

Shapes: T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo.base.facts import ModelFacts
from octavo.nn.attention.layer import Attention, window_of
from octavo.nn.causal import USUAL_NAMES, CausalDecoder, SelfAttention
from octavo.nn.context import ForwardContext
from octavo.nn.decoder import SandwichDecoderLayer
from octavo.nn.heads import Heads
from octavo.nn.mlp import GatedMLP
from octavo.nn.norm import OffsetRMSNorm
from octavo.nn.rope import Rope


class Gemma2ForCausalLM(CausalDecoder):
    """Scaled token embeddings, and layers of attention with rotary positions and a gated MLP."""

    config_keys = {"query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    checkpoint_names = {
        **USUAL_NAMES,
        "decoder.layers.{}.after_attention_norm": "model.layers.{}.post_attention_layernorm",
        "decoder.layers.{}.mlp_norm": "model.layers.{}.pre_feedforward_layernorm",
        "decoder.layers.{}.after_mlp_norm": "model.layers.{}.post_feedforward_layernorm",
    }

    def __init__(self, facts: ModelFacts) -> None:
        rope, heads, hidden, eps = Rope(facts.rope), Heads.of(facts), facts.hidden_size, facts.norm_eps

        def layer(index: int) -> nn.Module:
            attend = Attention(
                index,
                heads,
                rope,
                window=window_of(facts, index, slides=index % 2 == 0),
                scale=facts.extras["query_pre_attn_scalar"] ** -0.5,
                softcap=facts.extras["attn_logit_softcapping"],
            )
            return SandwichDecoderLayer(
                attention_norm=OffsetRMSNorm(hidden, eps),
                attention=SelfAttention(hidden, heads, attend, bias=facts.attention_bias),
                after_attention_norm=OffsetRMSNorm(hidden, eps),
                mlp_norm=OffsetRMSNorm(hidden, eps),
                mlp=GatedMLP(hidden, facts.intermediate_size, facts.activation),
                after_mlp_norm=OffsetRMSNorm(hidden, eps),
            )

        super().__init__(facts, layer, norm=OffsetRMSNorm(hidden, eps), cap=facts.extras["final_logit_softcapping"])
        self.scale = hidden**0.5

    def forward(self, ids: Tensor, ctx: ForwardContext) -> Tensor:
        """Return hidden states [T, hidden] of ids, int64 [T]."""
        embedded = self.embed(ids)
        # The factor is rounded as the original rounds it.
        return self.decoder(embedded.mul_(torch.tensor(self.scale, dtype=embedded.dtype)), ctx)
