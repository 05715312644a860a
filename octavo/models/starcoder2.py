"""StarCoder2 (Lozhkov et al. 2024): rotary positions and grouped queries, with layer norms, biases and a plain MLP.

Shapes: T tokens, S rows to sample, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from torch import Tensor, nn

from octavo.base.facts import ModelFacts
from octavo.nn.attention.layer import Attention, window_of
from octavo.nn.context import ForwardContext
from octavo.nn.decoder import Decoder, DecoderLayer
from octavo.nn.embedding import Embedding, LMHead
from octavo.nn.heads import Heads
from octavo.nn.linear import QKVLinear, RowLinear
from octavo.nn.mlp import MLP
from octavo.nn.norm import LayerNorm
from octavo.nn.rope import Rope


class Starcoder2Attention(nn.Module):
    """Grouped-query attention with rotary positions; every layer slides if there is a window."""

    def __init__(self, facts: ModelFacts, layer: int, rope: Rope) -> None:
        super().__init__()
        heads, bias = Heads(query=facts.num_heads, kv=facts.num_kv_heads, dim=facts.head_dim), facts.extras["use_bias"]
        self.qkv = QKVLinear(facts.hidden_size, heads, bias)
        self.attend = Attention(layer, heads, rope, window=window_of(facts, layer, slides=True))
        self.out = RowLinear(heads.query * heads.dim, facts.hidden_size, bias)

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, hidden] from x [T, hidden]."""
        q_THD, k_TKD, v_TKD = self.qkv(x)
        return self.out(self.attend(q_THD, k_TKD, v_TKD, ctx))


class Starcoder2ForCausalLM(nn.Module):
    """Token embeddings, layers of attention and MLP, and a head over the vocabulary."""

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
        "embed": "model.embed_tokens",
        "decoder.layers.{}.attention_norm": "model.layers.{}.input_layernorm",
        "decoder.layers.{}.attention.qkv.q": "model.layers.{}.self_attn.q_proj",
        "decoder.layers.{}.attention.qkv.k": "model.layers.{}.self_attn.k_proj",
        "decoder.layers.{}.attention.qkv.v": "model.layers.{}.self_attn.v_proj",
        "decoder.layers.{}.attention.out": "model.layers.{}.self_attn.o_proj",
        "decoder.layers.{}.mlp_norm": "model.layers.{}.post_attention_layernorm",
        "decoder.layers.{}.mlp.up": "model.layers.{}.mlp.c_fc",
        "decoder.layers.{}.mlp.down": "model.layers.{}.mlp.c_proj",
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
                    attention_norm=LayerNorm(hidden, eps),
                    attention=Starcoder2Attention(facts, layer, rope),
                    mlp_norm=LayerNorm(hidden, eps),
                    mlp=MLP(hidden, facts.intermediate_size, facts.activation, bias=facts.extras["use_bias"]),
                )
                for layer in range(facts.num_layers)
            ),
            norm=LayerNorm(hidden, eps),
        )
        self.head = LMHead(hidden, facts.vocab_size, tied=self.embed if facts.tie_embeddings else None)

    def forward(self, ids: Tensor, ctx: ForwardContext) -> Tensor:
        """Return hidden states [T, hidden] of ids, int64 [T]."""
        return self.decoder(self.embed(ids), ctx)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [S, vocabulary] from hidden [S, hidden]."""
        return self.head(hidden)
