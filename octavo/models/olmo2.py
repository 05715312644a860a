"""OLMo 2 (OLMo Team 2024): norms after attention and feed-forward instead of before, and over all queries and all keys.

Shapes: T tokens, S rows to sample, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from octavo.base.facts import ModelFacts
from octavo.nn.attention.layer import Attention
from octavo.nn.context import ForwardContext
from octavo.nn.decoder import Decoder, DecoderLayer
from octavo.nn.embedding import Embedding, LMHead
from octavo.nn.heads import Heads
from octavo.nn.linear import QKVLinear, RowLinear
from octavo.nn.mlp import GatedMLP
from octavo.nn.norm import ProjectionRMSNorm, RMSNorm
from octavo.nn.rope import Rope


class Olmo2Attention(nn.Module):
    """Grouped-query attention with rotary positions; all heads of q, and of k, are normalized together before."""

    def __init__(self, facts: ModelFacts, layer: int, rope: Rope) -> None:
        super().__init__()
        heads, eps = Heads(query=facts.num_heads, kv=facts.num_kv_heads, dim=facts.head_dim), facts.norm_eps
        norms = ProjectionRMSNorm(heads.query, heads.dim, eps), ProjectionRMSNorm(heads.kv, heads.dim, eps)
        self.qkv = QKVLinear(facts.hidden_size, heads, bias=facts.attention_bias)
        self.attend = Attention(layer, heads, rope, norms=norms)
        self.out = RowLinear(heads.query * heads.dim, facts.hidden_size, bias=facts.attention_bias)

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, hidden] from x [T, hidden]."""
        q_THD, k_TKD, v_TKD = self.qkv(x)
        return self.out(self.attend(q_THD, k_TKD, v_TKD, ctx))


class Olmo2Layer(DecoderLayer):
    """Attention, then feed-forward, each normalized after and added to the residual stream."""

    def forward(self, delta: Tensor | None, residual: Tensor, ctx: ForwardContext) -> Tensor:
        """Return what is to be added to the residual [T, hidden]; delta is what the layer before left to be added."""
        if delta is not None:
            residual += delta
        residual += self.attention_norm(self.attention(residual, ctx))
        return self.mlp_norm(self.mlp(residual))


class Olmo2ForCausalLM(nn.Module):
    """Token embeddings, layers of attention and gated MLP, and a head over the vocabulary."""

    config_keys: dict[str, Any] = {}
    checkpoint_names = {
        "embed": "model.embed_tokens",
        "decoder.layers.{}.attention_norm": "model.layers.{}.post_attention_layernorm",
        "decoder.layers.{}.mlp_norm": "model.layers.{}.post_feedforward_layernorm",
        "decoder.layers.{}.attention.qkv.q": "model.layers.{}.self_attn.q_proj",
        "decoder.layers.{}.attention.qkv.k": "model.layers.{}.self_attn.k_proj",
        "decoder.layers.{}.attention.qkv.v": "model.layers.{}.self_attn.v_proj",
        "decoder.layers.{}.attention.attend.q_norm": "model.layers.{}.self_attn.q_norm",
        "decoder.layers.{}.attention.attend.k_norm": "model.layers.{}.self_attn.k_norm",
        "decoder.layers.{}.attention.out": "model.layers.{}.self_attn.o_proj",
        "decoder.layers.{}.mlp.gate_up.gate": "model.layers.{}.mlp.gate_proj",
        "decoder.layers.{}.mlp.gate_up.up": "model.layers.{}.mlp.up_proj",
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
                Olmo2Layer(
                    attention_norm=RMSNorm(hidden, eps),
                    attention=Olmo2Attention(facts, layer, rope),
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
