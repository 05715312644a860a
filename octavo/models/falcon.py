"""Falcon (Almazrouei et al. 2023): few key heads, attention and MLP side by side, rotary positions or linear biases."""

from __future__ import annotations

from torch import nn

from octavo.base.facts import ModelFacts
from octavo.nn.assembly import Stored
from octavo.nn.attention.alibi import alibi
from octavo.nn.attention.layer import Attention
from octavo.nn.causal import CausalDecoder, SelfAttention
from octavo.nn.decoder import DecoderLayer, ParallelDecoderLayer
from octavo.nn.heads import Heads
from octavo.nn.mlp import MLP
from octavo.nn.norm import LayerNorm
from octavo.nn.rope import Rope


class FalconForCausalLM(CausalDecoder):
    """Layers of attention and MLP; query heads share a key head: one for all, or one for each group."""

    config_keys = {
        "new_decoder_architecture": False,
        "multi_query": True,
        "parallel_attn": True,
        "num_ln_in_parallel_attn": None,
        "alibi": False,
        "bias": False,
    }

    def __init__(self, facts: ModelFacts) -> None:
        keys, hidden, eps = facts.extras, facts.hidden_size, facts.norm_eps
        new, parallel = keys["new_decoder_architecture"], keys["new_decoder_architecture"] or keys["parallel_attn"]
        norms = 2 if not parallel else (keys["num_ln_in_parallel_attn"] or 2) if new else 1
        num_kv_heads = facts.num_kv_heads if new else 1 if keys["multi_query"] else facts.num_heads
        heads = Heads(query=facts.num_heads, kv=num_kv_heads, dim=facts.head_dim)
        # Biases are scaled as scores are. They are exact; transformers rounds slope * position to bfloat16.
        positions = alibi(heads.query, scale=heads.dim**-0.5) if keys["alibi"] else Rope(facts.rope)
        layer_kind = ParallelDecoderLayer if parallel else DecoderLayer

        def layer(index: int) -> nn.Module:
            return layer_kind(
                attention_norm=LayerNorm(hidden, eps),
                attention=SelfAttention(hidden, heads, Attention(index, heads, positions), bias=keys["bias"]),
                mlp=MLP(hidden, facts.intermediate_size, facts.activation, bias=keys["bias"]),
                **({"mlp_norm": LayerNorm(hidden, eps)} if norms == 2 else {}),
            )

        super().__init__(facts, layer, norm=LayerNorm(hidden, eps))
        # The query heads that share a key head lie beside it and its value.
        qkv = Stored(name="transformer.h.{}.self_attention.query_key_value", groups=heads.kv)
        two = parallel and norms == 2
        self.checkpoint_names = {
            "embed": "transformer.word_embeddings",
            "decoder.layers.{}.attention_norm": "transformer.h.{}." + ("ln_attn" if two else "input_layernorm"),
            "decoder.layers.{}.attention.qkv.q": qkv,
            "decoder.layers.{}.attention.qkv.k": qkv,
            "decoder.layers.{}.attention.qkv.v": qkv,
            "decoder.layers.{}.attention.out": "transformer.h.{}.self_attention.dense",
            "decoder.layers.{}.mlp_norm": "transformer.h.{}." + ("ln_mlp" if two else "post_attention_layernorm"),
            "decoder.layers.{}.mlp.up": "transformer.h.{}.mlp.dense_h_to_4h",
            "decoder.layers.{}.mlp.down": "transformer.h.{}.mlp.dense_4h_to_h",
            "decoder.norm": "transformer.ln_f",
            "head": "lm_head",
        }
