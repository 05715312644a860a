"""GPT-2 (Radford et al. 2019): learned positions, norms before each block, a plain MLP.

Shapes: T tokens, S rows to sample, H heads, D head size.
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
from octavo.nn.mlp import MLP
from octavo.nn.norm import LayerNorm

_ATTENTION = "transformer.h.{}.attn"
# Its matrices are [in, out].
_QKV = Stored(name=f"{_ATTENTION}.c_attn", transposed=True)


class GPT2Attention(nn.Module):
    """Multi-head attention; scores may be divided by the layer's number too (Mistral's GPT-2s)."""

    def __init__(self, facts: ModelFacts, layer: int) -> None:
        super().__init__()
        heads = Heads(query=facts.num_heads, kv=facts.num_heads, dim=facts.head_dim)
        scale = heads.dim**-0.5 if facts.extras["scale_attn_weights"] else 1.0
        if facts.extras["scale_attn_by_inverse_layer_idx"]:
            scale /= layer + 1
        self.qkv = QKVLinear(facts.hidden_size, heads, bias=True)
        self.attend = Attention(layer, heads, None, scale=scale)
        self.out = RowLinear(facts.hidden_size, facts.hidden_size, bias=True)

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, hidden] from x [T, hidden]."""
        q_THD, k_THD, v_THD = self.qkv(x)
        return self.out(self.attend(q_THD, k_THD, v_THD, ctx))


class GPT2LMHeadModel(nn.Module):
    """Embeddings of tokens and positions, layers of attention and MLP, and a head over the vocabulary."""

    # The third is about how half precision computes, not about what.
    config_keys = {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
    }
    checkpoint_names = {
        "embed": "transformer.wte",
        "positions": "transformer.wpe",
        "decoder.layers.{}.attention_norm": "transformer.h.{}.ln_1",
        "decoder.layers.{}.attention.qkv.q": _QKV,
        "decoder.layers.{}.attention.qkv.k": _QKV,
        "decoder.layers.{}.attention.qkv.v": _QKV,
        "decoder.layers.{}.attention.out": Stored(name=f"{_ATTENTION}.c_proj", transposed=True),
        # The causal mask, as `bias`.
        "decoder.layers.{}.attention.mask": Stored(name=_ATTENTION, ignored=True),
        "decoder.layers.{}.mlp_norm": "transformer.h.{}.ln_2",
        "decoder.layers.{}.mlp.up": Stored(name="transformer.h.{}.mlp.c_fc", transposed=True),
        "decoder.layers.{}.mlp.down": Stored(name="transformer.h.{}.mlp.c_proj", transposed=True),
        "decoder.norm": "transformer.ln_f",
        "head": "lm_head",
    }

    def __init__(self, facts: ModelFacts) -> None:
        super().__init__()
        hidden, eps = facts.hidden_size, facts.norm_eps
        self.embed = Embedding(facts.vocab_size, hidden)
        self.positions = Embedding(facts.max_position, hidden)
        self.decoder = Decoder(
            layers=(
                DecoderLayer(
                    attention_norm=LayerNorm(hidden, eps),
                    attention=GPT2Attention(facts, layer),
                    mlp_norm=LayerNorm(hidden, eps),
                    mlp=MLP(hidden, facts.intermediate_size, facts.activation, bias=True),
                )
                for layer in range(facts.num_layers)
            ),
            norm=LayerNorm(hidden, eps),
        )
        self.head = LMHead(hidden, facts.vocab_size, tied=self.embed if facts.tie_embeddings else None)

    def forward(self, ids: Tensor, ctx: ForwardContext) -> Tensor:
        """Return hidden states [T, hidden] of ids, int64 [T]."""
        return self.decoder(self.embed(ids) + self.positions(ctx.positions), ctx)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [S, vocabulary] from hidden [S, hidden]."""
        return self.head(hidden)
