"""Gemma 3 (Gemma Team 2025), text: five layers that slide, with rotary positions of their own, for one that sees everything.

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


class Gemma3ForCausalLM(CausalDecoder):
    """Scaled token embeddings, and layers of attention and a gated MLP; q and k are normalized before they are rotated."""

    config_keys = {"query_pre_attn_scalar": 256, "sliding_window_pattern": 6, "final_logit_softcapping": None}
    checkpoint_names = {
        **USUAL_NAMES,
        **HEAD_NORM_NAMES,
        "decoder.layers.{}.after_attention_norm": "model.layers.{}.post_attention_layernorm",
        "decoder.layers.{}.mlp_norm": "model.layers.{}.pre_feedforward_layernorm",
        "decoder.layers.{}.after_mlp_norm": "model.layers.{}.post_feedforward_layernorm",
    }

    def __init__(self, facts: ModelFacts) -> None:
        rope, sliding_rope = Rope(facts.rope), Rope(facts.sliding_rope or facts.rope)
        heads, hidden, eps, extras = Heads.of(facts), facts.hidden_size, facts.norm_eps, facts.extras

        def layer(index: int) -> nn.Module:
            window = window_of(facts, index, slides=(index + 1) % extras["sliding_window_pattern"] != 0)
            attend = Attention(
                index,
                heads,
                rope if window is None else sliding_rope,
                window=window,
                scale=extras["query_pre_attn_scalar"] ** -0.5,
                norms=(OffsetRMSNorm(heads.dim, eps), OffsetRMSNorm(heads.dim, eps)),
            )
            return SandwichDecoderLayer(
                attention_norm=OffsetRMSNorm(hidden, eps),
                attention=SelfAttention(hidden, heads, attend, bias=facts.attention_bias),
                after_attention_norm=OffsetRMSNorm(hidden, eps),
                mlp_norm=OffsetRMSNorm(hidden, eps),
                mlp=GatedMLP(hidden, facts.intermediate_size, facts.activation),
                after_mlp_norm=OffsetRMSNorm(hidden, eps),
            )

        super().__init__(facts, layer, norm=OffsetRMSNorm(hidden, eps), cap=extras["final_logit_softcapping"])
        self.scale = hidden**0.5

    def forward(self, ids: Tensor, ctx: ForwardContext) -> Tensor:
        """Return hidden states [T, hidden] of ids, int64 [T]."""
        embedded = self.embed(ids)
        # The factor is rounded as the original rounds it.
        return self.decoder(embedded.mul_(torch.tensor(self.scale, dtype=embedded.dtype)), ctx)
