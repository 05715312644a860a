"""GLM-4-0414 (GLM Team 2024): norms before and after, and interleaved rotary positions of half of each head."""

from __future__ import annotations

from torch import nn

from octavo.base.facts import ModelFacts
from octavo.nn.attention.layer import Attention
from octavo.nn.causal import USUAL_NAMES, CausalDecoder, SelfAttention
from octavo.nn.decoder import SandwichDecoderLayer
from octavo.nn.heads import Heads
from octavo.nn.mlp import GatedMLP
from octavo.nn.norm import RMSNorm
from octavo.nn.rope import Rope


class Glm4ForCausalLM(CausalDecoder):
    """Layers of attention with biased queries, keys and values, and a gated MLP."""

    checkpoint_names = {
        **USUAL_NAMES,
        "decoder.layers.{}.after_attention_norm": "model.layers.{}.post_self_attn_layernorm",
        "decoder.layers.{}.after_mlp_norm": "model.layers.{}.post_mlp_layernorm",
        "decoder.layers.{}.mlp.gate_up.gate": "model.layers.{}.mlp.gate_up_proj",
        "decoder.layers.{}.mlp.gate_up.up": "model.layers.{}.mlp.gate_up_proj",
    }

    def __init__(self, facts: ModelFacts) -> None:
        rope, heads = Rope(facts.rope, interleaved=True), Heads.of(facts)
        hidden, eps, bias = facts.hidden_size, facts.norm_eps, facts.attention_bias

        def layer(index: int) -> nn.Module:
            return SandwichDecoderLayer(
                attention_norm=RMSNorm(hidden, eps),
                attention=SelfAttention(hidden, heads, Attention(index, heads, rope), bias=bias, out_bias=False),
                after_attention_norm=RMSNorm(hidden, eps),
                mlp_norm=RMSNorm(hidden, eps),
                mlp=GatedMLP(hidden, facts.intermediate_size, facts.activation),
                after_mlp_norm=RMSNorm(hidden, eps),
            )

        super().__init__(facts, layer, norm=RMSNorm(hidden, eps))
