"""Phi-3 and Phi-4 (Abdin et al. 2024): Llama's shape; the checkpoint holds q, k and v, and gate and up, one after another."""

from __future__ import annotations

from torch import nn

from octavo.base.facts import ModelFacts
from octavo.nn.attention.layer import Attention, window_of
from octavo.nn.causal import USUAL_NAMES, CausalDecoder, SelfAttention
from octavo.nn.decoder import DecoderLayer
from octavo.nn.heads import Heads
from octavo.nn.mlp import GatedMLP
from octavo.nn.norm import RMSNorm
from octavo.nn.rope import Rope


class Phi3ForCausalLM(CausalDecoder):
    """Layers of attention with rotary positions, perhaps of a part of each head, and a gated MLP; all slide, or none."""

    checkpoint_names = {
        **USUAL_NAMES,
        "decoder.layers.{}.attention.qkv.q": "model.layers.{}.self_attn.qkv_proj",
        "decoder.layers.{}.attention.qkv.k": "model.layers.{}.self_attn.qkv_proj",
        "decoder.layers.{}.attention.qkv.v": "model.layers.{}.self_attn.qkv_proj",
        "decoder.layers.{}.mlp.gate_up.gate": "model.layers.{}.mlp.gate_up_proj",
        "decoder.layers.{}.mlp.gate_up.up": "model.layers.{}.mlp.gate_up_proj",
    }

    def __init__(self, facts: ModelFacts) -> None:
        rope, heads, hidden, eps = Rope(facts.rope), Heads.of(facts), facts.hidden_size, facts.norm_eps

        def layer(index: int) -> nn.Module:
            attend = Attention(index, heads, rope, window=window_of(facts, index, slides=True))
            return DecoderLayer(
                attention_norm=RMSNorm(hidden, eps),
                attention=SelfAttention(hidden, heads, attend),
                mlp_norm=RMSNorm(hidden, eps),
                mlp=GatedMLP(hidden, facts.intermediate_size, facts.activation),
            )

        super().__init__(facts, layer, norm=RMSNorm(hidden, eps))
