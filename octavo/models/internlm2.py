"""InternLM2 (Cai et al. 2024): Llama's shape; the checkpoint holds q, k and v together, by key-value head."""

from __future__ import annotations

from torch import nn

from octavo.base.facts import ModelFacts
from octavo.nn.assembly import Stored
from octavo.nn.attention.layer import Attention
from octavo.nn.causal import CausalDecoder, SelfAttention
from octavo.nn.decoder import DecoderLayer
from octavo.nn.heads import Heads
from octavo.nn.mlp import GatedMLP
from octavo.nn.norm import RMSNorm
from octavo.nn.rope import Rope


class InternLM2ForCausalLM(CausalDecoder):
    """Layers of attention with rotary positions and a gated MLP."""

    config_keys = {"bias": True}

    def __init__(self, facts: ModelFacts) -> None:
        rope, heads, hidden, eps = Rope(facts.rope), Heads.of(facts), facts.hidden_size, facts.norm_eps

        def layer(index: int) -> nn.Module:
            return DecoderLayer(
                attention_norm=RMSNorm(hidden, eps),
                attention=SelfAttention(hidden, heads, Attention(index, heads, rope), bias=facts.extras["bias"]),
                mlp_norm=RMSNorm(hidden, eps),
                mlp=GatedMLP(hidden, facts.intermediate_size, facts.activation),
            )

        super().__init__(facts, layer, norm=RMSNorm(hidden, eps))
        self.checkpoint_names = _names(facts.num_kv_heads)


def _names(num_groups: int) -> dict[str, str | Stored]:
    qkv = Stored(name="model.layers.{}.attention.wqkv", groups=num_groups)
    return {
        "embed": "model.tok_embeddings",
        "decoder.layers.{}.attention_norm": "model.layers.{}.attention_norm",
        "decoder.layers.{}.mlp_norm": "model.layers.{}.ffn_norm",
        "decoder.layers.{}.attention.qkv.q": qkv,
        "decoder.layers.{}.attention.qkv.k": qkv,
        "decoder.layers.{}.attention.qkv.v": qkv,
        "decoder.layers.{}.attention.out": "model.layers.{}.attention.wo",
        "decoder.layers.{}.mlp.gate_up.gate": "model.layers.{}.feed_forward.w1",
        "decoder.layers.{}.mlp.gate_up.up": "model.layers.{}.feed_forward.w3",
        "decoder.layers.{}.mlp.down": "model.layers.{}.feed_forward.w2",
        "decoder.norm": "model.norm",
        "head": "output",
    }
