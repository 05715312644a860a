"""InternLM2 (Cai et al. 2024): Llama's shape; the checkpoint holds q, k and v together, by key-value head.

Shapes: T tokens, S rows to sample, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from torch import Tensor, nn

from octavo.base.facts import ModelFacts
from octavo.nn.assembly import Stored
from octavo.nn.attention.layer import Attention
from octavo.nn.context import ForwardContext
from octavo.nn.decoder import Decoder, DecoderLayer
from octavo.nn.embedding import Embedding, LMHead
from octavo.nn.heads import Heads
from octavo.nn.linear import QKVLinear, RowLinear
from octavo.nn.mlp import GatedMLP
from octavo.nn.norm import RMSNorm
from octavo.nn.rope import Rope


class InternLM2Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, facts: ModelFacts, layer: int, rope: Rope) -> None:
        super().__init__()
        heads, bias = Heads(query=facts.num_heads, kv=facts.num_kv_heads, dim=facts.head_dim), facts.extras["bias"]
        self.qkv = QKVLinear(facts.hidden_size, heads, bias)
        self.attend = Attention(layer, heads, rope)
        self.out = RowLinear(heads.query * heads.dim, facts.hidden_size, bias)

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, hidden] from x [T, hidden]."""
        q_THD, k_TKD, v_TKD = self.qkv(x)
        return self.out(self.attend(q_THD, k_TKD, v_TKD, ctx))


class InternLM2ForCausalLM(nn.Module):
    """Token embeddings, layers of attention and gated MLP, and a head over the vocabulary."""

    config_keys = {"bias": True}

    def __init__(self, facts: ModelFacts) -> None:
        super().__init__()
        self.checkpoint_names = _names(facts.num_kv_heads)
        rope, hidden, eps = Rope(facts.rope), facts.hidden_size, facts.norm_eps
        self.embed = Embedding(facts.vocab_size, hidden)
        self.decoder = Decoder(
            layers=(
                DecoderLayer(
                    attention_norm=RMSNorm(hidden, eps),
                    attention=InternLM2Attention(facts, layer, rope),
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
