"""GPT-NeoX (Black et al. 2022) and Pythia: attention and MLP side by side, and only a part of each head rotated."""

from __future__ import annotations

from torch import nn

from octavo.base.facts import ModelFacts
from octavo.nn.assembly import Stored
from octavo.nn.attention.layer import Attention
from octavo.nn.causal import CausalDecoder, SelfAttention
from octavo.nn.decoder import DecoderLayer, ParallelDecoderLayer
from octavo.nn.heads import Heads
from octavo.nn.mlp import MLP
from octavo.nn.norm import LayerNorm
from octavo.nn.rope import Rope


class GPTNeoXForCausalLM(CausalDecoder):
    """Layers of attention with rotary positions beside an MLP, or before it."""

    config_keys = {"use_parallel_residual": True}

    def __init__(self, facts: ModelFacts) -> None:
        rope, hidden, eps = Rope(facts.rope), facts.hidden_size, facts.norm_eps
        heads = Heads(query=facts.num_heads, kv=facts.num_heads, dim=facts.head_dim)
        layer_kind = ParallelDecoderLayer if facts.extras["use_parallel_residual"] else DecoderLayer

        def layer(index: int) -> nn.Module:
            attend = Attention(index, heads, rope)
            return layer_kind(
                attention_norm=LayerNorm(hidden, eps),
                attention=SelfAttention(hidden, heads, attend, bias=facts.attention_bias),
                mlp_norm=LayerNorm(hidden, eps),
                mlp=MLP(hidden, facts.intermediate_size, facts.activation, bias=True),
            )

        super().__init__(facts, layer, norm=LayerNorm(hidden, eps))
        # Query, key and value of a head lie together.
        qkv = Stored(name="gpt_neox.layers.{}.attention.query_key_value", groups=facts.num_heads)
        self.checkpoint_names = {
            "embed": "gpt_neox.embed_in",
            "decoder.layers.{}.attention_norm": "gpt_neox.layers.{}.input_layernorm",
            "decoder.layers.{}.attention.qkv.q": qkv,
            "decoder.layers.{}.attention.qkv.k": qkv,
            "decoder.layers.{}.attention.qkv.v": qkv,
            "decoder.layers.{}.attention.out": "gpt_neox.layers.{}.attention.dense",
            # The causal mask, as `bias`.
            "decoder.layers.{}.attention.mask": Stored(name="gpt_neox.layers.{}.attention", ignored=True),
            "decoder.layers.{}.mlp_norm": "gpt_neox.layers.{}.post_attention_layernorm",
            "decoder.layers.{}.mlp.up": "gpt_neox.layers.{}.mlp.dense_h_to_4h",
            "decoder.layers.{}.mlp.down": "gpt_neox.layers.{}.mlp.dense_4h_to_h",
            "decoder.norm": "gpt_neox.final_layer_norm",
            "head": "embed_out",
        }
