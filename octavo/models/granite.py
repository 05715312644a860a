"""Granite 3 (IBM 2024): Llama's shape, with factors on embeddings, scores, residuals and logits (Yang et al. 2022, "muP").

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
from octavo.nn.norm import RMSNorm
from octavo.nn.rope import Rope


class GraniteAttention(nn.Module):
    """Grouped-query attention with rotary positions and a scale of its own."""

    def __init__(self, facts: ModelFacts, layer: int, rope: Rope) -> None:
        super().__init__()
        heads = Heads(query=facts.num_heads, kv=facts.num_kv_heads, dim=facts.head_dim)
        self.qkv = QKVLinear(facts.hidden_size, heads, bias=facts.attention_bias)
        self.attend = Attention(layer, heads, rope, scale=facts.extras["attention_multiplier"])
        self.out = RowLinear(heads.query * heads.dim, facts.hidden_size, bias=facts.attention_bias)

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, hidden] from x [T, hidden]."""
        q_THD, k_TKD, v_TKD = self.qkv(x)
        return self.out(self.attend(q_THD, k_TKD, v_TKD, ctx))


class GraniteLayer(DecoderLayer):
    """Attention, then feed-forward, each normalized before; `factor` times what they return is added to the residual."""

    def __init__(self, *, factor: float, **parts: Any) -> None:
        super().__init__(**parts)
        self.factor = factor

    def forward(self, delta: Tensor | None, residual: Tensor, ctx: ForwardContext) -> Tensor:
        """Return what is to be added to the residual [T, hidden]; delta is what the layer before left to be added."""
        delta = self.attention(self.attention_norm.add(delta, residual), ctx).mul_(self.factor)
        return self.mlp(self.mlp_norm.add(delta, residual)).mul_(self.factor)


class GraniteForCausalLM(nn.Module):
    """Token embeddings, layers of attention and gated MLP, and a head over the vocabulary."""

    config_keys = {
        "embedding_multiplier": 1.0,
        "attention_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    }
    checkpoint_names = {
        "embed": "model.embed_tokens",
        "decoder.layers.{}.attention_norm": "model.layers.{}.input_layernorm",
        "decoder.layers.{}.mlp_norm": "model.layers.{}.post_attention_layernorm",
        "decoder.layers.{}.attention.qkv.q": "model.layers.{}.self_attn.q_proj",
        "decoder.layers.{}.attention.qkv.k": "model.layers.{}.self_attn.k_proj",
        "decoder.layers.{}.attention.qkv.v": "model.layers.{}.self_attn.v_proj",
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
        self.factors = facts.extras
        self.embed = Embedding(facts.vocab_size, hidden)
        self.decoder = Decoder(
            layers=(
                GraniteLayer(
                    factor=facts.extras["residual_multiplier"],
                    attention_norm=RMSNorm(hidden, eps),
                    attention=GraniteAttention(facts, layer, rope),
                    mlp_norm=RMSNorm(hidden, eps),
                    mlp=GatedMLP(hidden, facts.intermediate_size, facts.activation, bias=facts.mlp_bias),
                )
                for layer in range(facts.num_layers)
            ),
            norm=RMSNorm(hidden, eps),
        )
        self.head = LMHead(hidden, facts.vocab_size, tied=self.embed if facts.tie_embeddings else None)

    def forward(self, ids: Tensor, ctx: ForwardContext) -> Tensor:
        """Return hidden states [T, hidden] of ids, int64 [T]."""
        return self.decoder(self.embed(ids).mul_(self.factors["embedding_multiplier"]), ctx)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [S, vocabulary] from hidden [S, hidden]."""
        return self.head(hidden).div_(self.factors["logits_scaling"])
