"""Gemma 3 (Gemma Team 2025), text: five layers that slide, with rotary positions of their own, for one that sees everything.

Shapes: T tokens, S rows to sample, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo.base.facts import ModelFacts
from octavo.nn.attention.layer import Attention, window_of
from octavo.nn.context import ForwardContext
from octavo.nn.decoder import Decoder, SandwichDecoderLayer
from octavo.nn.embedding import Embedding, LMHead
from octavo.nn.heads import Heads
from octavo.nn.linear import QKVLinear, RowLinear
from octavo.nn.mlp import GatedMLP
from octavo.nn.norm import OffsetRMSNorm
from octavo.nn.rope import Rope


class Gemma3Attention(nn.Module):
    """Grouped-query attention with rotary positions; q and k are normalized before they are rotated."""

    def __init__(self, facts: ModelFacts, layer: int, rope: Rope, sliding_rope: Rope) -> None:
        super().__init__()
        heads, extras = Heads(query=facts.num_heads, kv=facts.num_kv_heads, dim=facts.head_dim), facts.extras
        window = window_of(facts, layer, slides=(layer + 1) % extras["sliding_window_pattern"] != 0)
        self.qkv = QKVLinear(facts.hidden_size, heads, bias=facts.attention_bias)
        self.attend = Attention(
            layer,
            heads,
            rope if window is None else sliding_rope,
            window=window,
            scale=extras["query_pre_attn_scalar"] ** -0.5,
            norms=(OffsetRMSNorm(heads.dim, facts.norm_eps), OffsetRMSNorm(heads.dim, facts.norm_eps)),
        )
        self.out = RowLinear(heads.query * heads.dim, facts.hidden_size, bias=facts.attention_bias)

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, hidden] from x [T, hidden]."""
        q_THD, k_TKD, v_TKD = self.qkv(x)
        return self.out(self.attend(q_THD, k_TKD, v_TKD, ctx))


class Gemma3ForCausalLM(nn.Module):
    """Scaled token embeddings, layers of attention and gated MLP, and a head over the vocabulary that is tied to them."""

    config_keys = {"query_pre_attn_scalar": 256, "sliding_window_pattern": 6, "final_logit_softcapping": None}
    checkpoint_names = {
        "embed": "model.embed_tokens",
        "decoder.layers.{}.attention_norm": "model.layers.{}.input_layernorm",
        "decoder.layers.{}.after_attention_norm": "model.layers.{}.post_attention_layernorm",
        "decoder.layers.{}.mlp_norm": "model.layers.{}.pre_feedforward_layernorm",
        "decoder.layers.{}.after_mlp_norm": "model.layers.{}.post_feedforward_layernorm",
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
        ropes = Rope(facts.rope), Rope(facts.sliding_rope or facts.rope)
        hidden, eps = facts.hidden_size, facts.norm_eps
        self.embed = Embedding(facts.vocab_size, hidden)
        self.scale, self.softcap = hidden**0.5, facts.extras["final_logit_softcapping"]
        self.decoder = Decoder(
            layers=(
                SandwichDecoderLayer(
                    attention_norm=OffsetRMSNorm(hidden, eps),
                    attention=Gemma3Attention(facts, layer, *ropes),
                    after_attention_norm=OffsetRMSNorm(hidden, eps),
                    mlp_norm=OffsetRMSNorm(hidden, eps),
                    mlp=GatedMLP(hidden, facts.intermediate_size, facts.activation),
                    after_mlp_norm=OffsetRMSNorm(hidden, eps),
                )
                for layer in range(facts.num_layers)
            ),
            norm=OffsetRMSNorm(hidden, eps),
        )
        self.head = LMHead(hidden, facts.vocab_size, tied=self.embed if facts.tie_embeddings else None)

    def forward(self, ids: Tensor, ctx: ForwardContext) -> Tensor:
        """Return hidden states [T, hidden] of ids, int64 [T]."""
        embedded = self.embed(ids)
        # The factor is rounded as the original rounds it.
        return self.decoder(embedded.mul_(torch.tensor(self.scale, dtype=embedded.dtype)), ctx)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [S, vocabulary] from hidden [S, hidden]."""
        logits = self.head(hidden)
        return logits if self.softcap is None else logits.div_(self.softcap).tanh_().mul_(self.softcap)
