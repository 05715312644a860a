"""OPT (Zhang et al. 2022): learned positions, norms before or after each block, embeddings that may be narrower.

Shapes: T tokens, S rows to sample.
"""

from __future__ import annotations

from torch import Tensor, nn

from octavo.base.facts import ModelFacts
from octavo.nn.attention.layer import Attention
from octavo.nn.causal import CausalDecoder, SelfAttention
from octavo.nn.context import ForwardContext
from octavo.nn.decoder import DecoderLayer, PostNormDecoderLayer
from octavo.nn.embedding import Embedding
from octavo.nn.heads import Heads
from octavo.nn.linear import ReplicatedLinear
from octavo.nn.mlp import MLP
from octavo.nn.norm import LayerNorm

# The table of positions begins with those of padding.
_OFFSET = 2
_EPS = 1e-5


class OPTForCausalLM(CausalDecoder):
    """Embeddings of tokens and positions, and layers of attention and MLP."""

    config_keys = {
        "do_layer_norm_before": True,
        "_remove_final_layer_norm": False,
        "word_embed_proj_dim": None,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
    }
    checkpoint_names = {
        "embed": "model.decoder.embed_tokens",
        "positions": "model.decoder.embed_positions",
        "widen": "model.decoder.project_in",
        "decoder.layers.{}.attention.qkv.q": "model.decoder.layers.{}.self_attn.q_proj",
        "decoder.layers.{}.attention.qkv.k": "model.decoder.layers.{}.self_attn.k_proj",
        "decoder.layers.{}.attention.qkv.v": "model.decoder.layers.{}.self_attn.v_proj",
        "decoder.layers.{}.attention.out": "model.decoder.layers.{}.self_attn.out_proj",
        "decoder.layers.{}.attention_norm": "model.decoder.layers.{}.self_attn_layer_norm",
        "decoder.layers.{}.mlp.up": "model.decoder.layers.{}.fc1",
        "decoder.layers.{}.mlp.down": "model.decoder.layers.{}.fc2",
        "decoder.layers.{}.mlp_norm": "model.decoder.layers.{}.final_layer_norm",
        "decoder.norm": "model.decoder.final_layer_norm",
        "narrow": "model.decoder.project_out",
        "head": "lm_head",
    }

    def __init__(self, facts: ModelFacts) -> None:
        keys, hidden = facts.extras, facts.hidden_size
        before, width = keys["do_layer_norm_before"], keys["word_embed_proj_dim"] or hidden
        heads = Heads(query=facts.num_heads, kv=facts.num_heads, dim=facts.head_dim)
        layer_kind = DecoderLayer if before else PostNormDecoderLayer

        def layer(index: int) -> nn.Module:
            return layer_kind(
                attention_norm=_norm(facts),
                attention=SelfAttention(hidden, heads, Attention(index, heads, None), bias=keys["enable_bias"]),
                mlp_norm=_norm(facts),
                mlp=MLP(hidden, facts.intermediate_size, facts.activation, bias=keys["enable_bias"]),
            )

        last = _norm(facts) if before and not keys["_remove_final_layer_norm"] else None
        super().__init__(facts, layer, norm=last, width=width)
        self.positions = Embedding(facts.max_position + _OFFSET, hidden)
        self.widen = ReplicatedLinear(width, hidden) if width != hidden else None
        self.narrow = ReplicatedLinear(hidden, width) if width != hidden else None

    def forward(self, ids: Tensor, ctx: ForwardContext) -> Tensor:
        """Return hidden states [T, hidden] of ids, int64 [T]."""
        x = self.embed(ids)
        x = x if self.widen is None else self.widen(x)
        return self.decoder(x + self.positions(ctx.positions + _OFFSET), ctx)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [S, vocabulary] from hidden [S, hidden]."""
        return self.head(hidden if self.narrow is None else self.narrow(hidden))


def _norm(facts: ModelFacts) -> LayerNorm:
    affine = facts.extras["layer_norm_elementwise_affine"]
    return LayerNorm(facts.hidden_size, _EPS, weight=affine, bias=affine)
