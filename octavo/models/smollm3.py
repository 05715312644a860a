"""SmolLM3 (Bakouch et al. 2025): Llama's shape; one layer in four has no positions (Yang et al. 2025, "RoPE to NoPE")."""

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


class SmolLM3ForCausalLM(CausalDecoder):
    """Layers of attention and a gated MLP; those without rotary positions may slide."""

    config_keys = {
        "no_rope_layers": None,
        "no_rope_layer_interval": 4,
        "use_sliding_window": False,
        "max_window_layers": 0,
    }

    def __init__(self, facts: ModelFacts) -> None:
        rope, heads, hidden, eps = Rope(facts.rope), Heads.of(facts), facts.hidden_size, facts.norm_eps
        listed, interval = facts.extras["no_rope_layers"], facts.extras["no_rope_layer_interval"]

        def layer(index: int) -> nn.Module:
            has_rope = listed[index] if listed else (index + 1) % interval != 0
            window = window_of(facts, index, slides=not has_rope) if facts.extras["use_sliding_window"] else None
            attend = Attention(index, heads, rope if has_rope else None, window=window)
            return DecoderLayer(
                attention_norm=RMSNorm(hidden, eps),
                attention=SelfAttention(hidden, heads, attend, bias=facts.attention_bias),
                mlp_norm=RMSNorm(hidden, eps),
                mlp=GatedMLP(hidden, facts.intermediate_size, facts.activation, bias=facts.mlp_bias),
            )

        super().__init__(facts, layer, norm=RMSNorm(hidden, eps))
