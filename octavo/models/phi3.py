"""Phi-3 and Phi-4 (Abdin et al. 2024): Llama's shape; the checkpoint holds q, k and v, and gate and up, one after another.

Shapes: T tokens, S rows to sample, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from octavo.base.facts import ModelFacts
from octavo.nn.attention.layer import Attention, window_of
from octavo.nn.context import ForwardContext
from octavo.nn.decoder import Decoder, DecoderLayer
from octavo.nn.embedding import Embedding, LMHead
from octavo.nn.heads import Heads
from octavo.nn.linear import QKVLinear, RowLinear
from octavo.nn.mlp import GatedMLP
from octavo.nn.norm import RMSNorm
from octavo.nn.rope import Rope


class Phi3Attention(nn.Module):
    """Grouped-query attention with rotary positions, perhaps of a part of each head; all layers slide, or none."""

    def __init__(self, facts: ModelFacts, layer: int, rope: Rope) -> None:
        super().__init__()
        heads = Heads(query=facts.num_heads, kv=facts.num_kv_heads, dim=facts.head_dim)
        self.qkv = QKVLinear(facts.hidden_size, heads)
        self.attend = Attention(layer, heads, rope, window=window_of(facts, layer, slides=True))
        self.out = RowLinear(heads.query * heads.dim, facts.hidden_size)

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, hidden] from x [T, hidden]."""
        q_THD, k_TKD, v_TKD = self.qkv(x)
        return self.out(self.attend(q_THD, k_TKD, v_TKD, ctx))


class Phi3ForCausalLM(nn.Module):
    """Token embeddings, layers of attention and gated MLP, and a head over the vocabulary."""

    config_keys: dict[str, Any] = {}
    checkpoint_names = {
        "embed": "model.embed_tokens",
        "decoder.layers.{}.attention_norm": "model.layers.{}.input_layernorm",
        "decoder.layers.{}.mlp_norm": "model.layers.{}.post_attention_layernorm",
        "decoder.layers.{}.attention.qkv.q": "model.layers.{}.self_attn.qkv_proj",
        "decoder.layers.{}.attention.qkv.k": "model.layers.{}.self_attn.qkv_proj",
        "decoder.layers.{}.attention.qkv.v": "model.layers.{}.self_attn.qkv_proj",
        "decoder.layers.{}.attention.out": "model.layers.{}.self_attn.o_proj",
        "decoder.layers.{}.mlp.gate_up.gate": "model.layers.{}.mlp.gate_up_proj",
        "decoder.layers.{}.mlp.gate_up.up": "model.layers.{}.mlp.gate_up_proj",
        "decoder.layers.{}.mlp.down": "model.layers.{}.mlp.down_proj",
        "decoder.norm": "model.norm",
        "head": "lm_head",
    }

    def __init__(self, facts: ModelFacts) -> None:
        super().__init__()
        rope, hidden, eps = Rope(facts.rope), facts.hidden_size, facts.norm_eps
        self.embed = Embedding(facts.vocab_size, hidden)
        self.decoder = Decoder(
            layers=(
                DecoderLayer(
                    attention_norm=RMSNorm(hidden, eps),
                    attention=Phi3Attention(facts, layer, rope),
                    mlp_norm=RMSNorm(hidden, eps),
                    mlp=GatedMLP(hidden, facts.intermediate_size, facts.activation),
                )
                for layer in range(facts.num_layers)
            ),
            norm=RMSNorm(hidden, eps),
        )
        self.head = LMHead(hidden, facts.vocab_size, tied=self.embed if facts.tie_embeddings else None)

    def forward(self, ids: Tensor, ctx: ForwardContext) -> Tensor:
        """Return hidden states [T, hidden] of ids, int64 [T]."""
        return self.decoder(self.embed(ids), ctx)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [S, vocabulary] from hidden [S, hidden]."""
        return self.head(hidden)
