"""Qwen2 (Yang et al. 2024): Llama's shape, with biases on queries, keys and values; some layers may slide."""

from __future__ import annotations

from torch import nn

from octavo.base.facts import ModelFacts
from octavo.nn.attention.layer import Attention, window_of
from octavo.nn.causal import CausalDecoder, SelfAttention
from octavo.nn.decoder import DecoderLayer
from octavo.nn.heads import Heads
from octavo.nn.mlp import GatedMLP
from octavo.nn.norm import RMSNorm
from octavo.nn.rope import Rope


class Qwen2ForCausalLM(CausalDecoder):
    """Layers of attention with rotary positions and a gated MLP."""

    config_keys = {"use_sliding_window": False, "max_window_layers": 28}

    def __init__(self, facts: ModelFacts) -> None:
        rope, heads, hidden, eps = Rope(facts.rope), Heads.of(facts), facts.hidden_size, facts.norm_eps

        def layer(index: int) -> nn.Module:
            slides = index >= facts.extras["max_window_layers"]
            window = window_of(facts, index, slides) if facts.extras["use_sliding_window"] else None
            attend = Attention(index, heads, rope, window=window)
            return DecoderLayer(
                attention_norm=RMSNorm(hidden, eps),
                attention=SelfAttention(hidden, heads, attend, bias=True, out_bias=False),
                mlp_norm=RMSNorm(hidden, eps),
                mlp=GatedMLP(hidden, facts.intermediate_size, facts.activation),
            )

        super().__init__(facts, layer, norm=RMSNorm(hidden, eps))
