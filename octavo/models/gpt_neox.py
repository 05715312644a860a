"""GPT-NeoX (Black et al. 2022) and Pythia: attention and MLP side by side, and only a part of each head rotated.

Shapes: T tokens, S rows to sample, H heads, D head size.
"""

from __future__ import annotations

from torch import Tensor, nn

from octavo.base.facts import ModelFacts
from octavo.nn.assembly import Stored
from octavo.nn.attention.layer import Attention
from octavo.nn.context import ForwardContext
from octavo.nn.decoder import Decoder, DecoderLayer, ParallelDecoderLayer
from octavo.nn.embedding import Embedding, LMHead
from octavo.nn.heads import Heads
from octavo.nn.linear import QKVLinear, RowLinear
from octavo.nn.mlp import MLP
from octavo.nn.norm import LayerNorm
from octavo.nn.rope import Rope


class GPTNeoXAttention(nn.Module):
    """Multi-head attention with rotary positions."""

    def __init__(self, facts: ModelFacts, layer: int, rope: Rope) -> None:
        super().__init__()
        heads = Heads(query=facts.num_heads, kv=facts.num_heads, dim=facts.head_dim)
        self.qkv = QKVLinear(facts.hidden_size, heads, bias=facts.attention_bias)
        self.attend = Attention(layer, heads, rope)
        self.out = RowLinear(facts.hidden_size, facts.hidden_size, bias=facts.attention_bias)

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, hidden] from x [T, hidden]."""
        q_THD, k_THD, v_THD = self.qkv(x)
        return self.out(self.attend(q_THD, k_THD, v_THD, ctx))


class GPTNeoXForCausalLM(nn.Module):
    """Token embeddings, layers of attention beside an MLP, and a head over the vocabulary."""

    config_keys = {"use_parallel_residual": True}

    def __init__(self, facts: ModelFacts) -> None:
        super().__init__()
        rope, hidden, eps = Rope(facts.rope), facts.hidden_size, facts.norm_eps
        layer_kind = ParallelDecoderLayer if facts.extras["use_parallel_residual"] else DecoderLayer
        self.embed = Embedding(facts.vocab_size, hidden)
        self.decoder = Decoder(
            layers=(
                layer_kind(
                    attention_norm=LayerNorm(hidden, eps),
                    attention=GPTNeoXAttention(facts, layer, rope),
                    mlp_norm=LayerNorm(hidden, eps),
                    mlp=MLP(hidden, facts.intermediate_size, facts.activation, bias=True),
                )
                for layer in range(facts.num_layers)
            ),
            norm=LayerNorm(hidden, eps),
        )
        self.head = LMHead(hidden, facts.vocab_size, tied=self.embed if facts.tie_embeddings else None)
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

    def forward(self, ids: Tensor, ctx: ForwardContext) -> Tensor:
        """Return hidden states [T, hidden] of ids, int64 [T]."""
        return self.decoder(self.embed(ids), ctx)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [S, vocabulary] from hidden [S, hidden]."""
        return self.head(hidden)
