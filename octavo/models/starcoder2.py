"""StarCoder2 (Lozhkov et al. 2024): rotary positions and grouped queries, with layer norms, biases and a plain MLP."""

from __future__ import annotations

from torch import nn

from octavo.base.facts import ModelFacts
from octavo.nn.attention.layer import Attention, window_of
from octavo.nn.causal import USUAL_NAMES, CausalDecoder, SelfAttention
from octavo.nn.decoder import DecoderLayer
from octavo.nn.heads import Heads
from octavo.nn.mlp import MLP
from octavo.nn.norm import LayerNorm
from octavo.nn.rope import Rope


class Starcoder2ForCausalLM(CausalDecoder):
    """Layers of attention with rotary positions and an MLP; every layer slides if there is a window."""

    # All but the first only say of files what they are: it has no others.
    config_keys = {
        "use_bias": True,
        "mlp_type": "default",
        "norm_type": "layer_norm",
        "scale_attn_weights": True,
        "attention_softmax_in_fp32": True,
        "scale_attention_softmax_in_fp32": True,
    }
    checkpoint_names = {
        **USUAL_NAMES,
        "decoder.layers.{}.mlp.up": "model.layers.{}.mlp.c_fc",
        "decoder.layers.{}.mlp.down": "model.layers.{}.mlp.c_proj",
    }

    def __init__(self, facts: ModelFacts) -> None:
        rope, heads, hidden, eps = Rope(facts.rope), Heads.of(facts), facts.hidden_size, facts.norm_eps
        bias = facts.extras["use_bias"]

        def layer(index: int) -> nn.Module:
            attend = Attention(index, heads, rope, window=window_of(facts, index, slides=True))
            return DecoderLayer(
                attention_norm=LayerNorm(hidden, eps),
                attention=SelfAttention(hidden, heads, attend, bias=bias),
                mlp_norm=LayerNorm(hidden, eps),
                mlp=MLP(hidden, facts.intermediate_size, facts.activation, bias=bias),
            )

        super().__init__(facts, layer, norm=LayerNorm(hidden, eps))
