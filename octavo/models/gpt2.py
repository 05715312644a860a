"""GPT-2 (Radford et al. 2019): learned positions, norms before each block, a plain MLP.

Shapes: T tokens.
"""

from __future__ import annotations

from torch import Tensor, nn

from octavo.base.facts import ModelFacts
from octavo.nn.assembly import Stored
from octavo.nn.attention.layer import Attention
from octavo.nn.causal import CausalDecoder, SelfAttention
from octavo.nn.context import ForwardContext
from octavo.nn.decoder import DecoderLayer
from octavo.nn.embedding import Embedding
from octavo.nn.heads import Heads
from octavo.nn.mlp import MLP
from octavo.nn.norm import LayerNorm

_ATTENTION = "transformer.h.{}.attn"
# Its matrices are [in, out].
_QKV = Stored(name=f"{_ATTENTION}.c_attn", transposed=True)


class GPT2LMHeadModel(CausalDecoder):
    """Embeddings of tokens and positions, and layers of attention and MLP."""

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
        hidden, eps, extras = facts.hidden_size, facts.norm_eps, facts.extras
        heads = Heads(query=facts.num_heads, kv=facts.num_heads, dim=facts.head_dim)

        def layer(index: int) -> nn.Module:
            scale = heads.dim**-0.5 if extras["scale_attn_weights"] else 1.0
            # Mistral's GPT-2s.
            if extras["scale_attn_by_inverse_layer_idx"]:
                scale /= index + 1
            return DecoderLayer(
                attention_norm=LayerNorm(hidden, eps),
                attention=SelfAttention(hidden, heads, Attention(index, heads, None, scale=scale), bias=True),
                mlp_norm=LayerNorm(hidden, eps),
                mlp=MLP(hidden, facts.intermediate_size, facts.activation, bias=True),
            )

        super().__init__(facts, layer, norm=LayerNorm(hidden, eps))
        self.positions = Embedding(facts.max_position, hidden)

    def forward(self, ids: Tensor, ctx: ForwardContext) -> Tensor:
        """Return hidden states [T, hidden] of ids, int64 [T]."""
        return self.decoder(self.embed(ids) + self.positions(ctx.positions), ctx)
