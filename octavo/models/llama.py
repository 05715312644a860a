"""Llama (Touvron et al. 2023) and Mistral (Jiang et al. 2023), which sees a sliding window; SmolLM2 is a Llama."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from octavo.base.facts import ModelFacts
from octavo.nn.attention.layer import Attention, window_of
from octavo.nn.causal import CausalDecoder, SelfAttention
from octavo.nn.decoder import DecoderLayer
from octavo.nn.heads import Heads
from octavo.nn.mlp import GatedMLP
from octavo.nn.norm import RMSNorm
from octavo.nn.rope import Rope


class LlamaForCausalLM(CausalDecoder):
    """Layers of attention with rotary positions and a gated MLP."""

    def __init__(self, facts: ModelFacts) -> None:
        rope, heads, hidden, eps = Rope(facts.rope), Heads.of(facts), facts.hidden_size, facts.norm_eps

        def layer(index: int) -> nn.Module:
            attend = Attention(index, heads, rope, window=window_of(facts, index, slides=False))
            return DecoderLayer(
                attention_norm=RMSNorm(hidden, eps),
                attention=SelfAttention(hidden, heads, attend, bias=facts.attention_bias),
                mlp_norm=RMSNorm(hidden, eps),
                mlp=GatedMLP(hidden, facts.intermediate_size, facts.activation, bias=facts.mlp_bias),
            )

        super().__init__(facts, layer, norm=RMSNorm(hidden, eps))


class MistralForCausalLM(LlamaForCausalLM):
    """A Llama whose projections have no biases, and whose layers all slide if there is a window."""

    def __init__(self, facts: ModelFacts) -> None:
        kinds = ("sliding",) * facts.num_layers
        super().__init__(replace(facts, attention_bias=False, mlp_bias=False, layer_kinds=kinds))
