"""BART (Lewis et al. 2019): an encoder over the request's input, and a decoder that attends to what it made.

Shapes: T tokens, E tokens of the encoder, S rows to sample, H heads, D head size.
"""

from __future__ import annotations

from torch import Tensor, nn

from octavo.base.facts import ModelFacts
from octavo.nn.assembly import Stored
from octavo.nn.attention.cross import CrossAttention
from octavo.nn.attention.encoder import EncoderAttention
from octavo.nn.attention.layer import Attention
from octavo.nn.causal import SelfAttention
from octavo.nn.context import ForwardContext
from octavo.nn.decoder import Decoder, PostNormDecoderLayer
from octavo.nn.embedding import Embedding, LMHead
from octavo.nn.heads import Heads
from octavo.nn.linear import ColumnLinear, RowLinear
from octavo.nn.mlp import MLP
from octavo.nn.norm import LayerNorm
from octavo.nn.vector import Vector

_EPS = 1e-5
# The tables of positions begin with two rows that nothing uses.
_UNUSED = 2


class BartCrossAttention(nn.Module):
    """Multi-head attention to the encoder's output."""

    def __init__(self, hidden: int, heads: Heads, layer: int) -> None:
        super().__init__()
        self.dim = heads.dim
        self.q, self.k, self.v = (ColumnLinear(hidden, hidden, bias=True, unit=heads.dim) for _ in range(3))
        self.attend = CrossAttention(layer, heads)
        self.out = RowLinear(hidden, hidden, bias=True)

    def write(self, encoded: Tensor, ctx: ForwardContext) -> None:
        """Keep keys and values of the encoder's output [E, hidden]."""
        k_EHD, v_EHD = (part(encoded).unflatten(-1, (-1, self.dim)) for part in (self.k, self.v))
        self.attend.write(k_EHD, v_EHD, ctx)

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, hidden] from x [T, hidden]."""
        return self.out(self.attend(self.q(x).unflatten(-1, (-1, self.dim)), ctx))


class BartDecoderLayer(PostNormDecoderLayer):
    """Attention to the text, to the encoder's output, then feed-forward; each is added, and the sum normalized."""

    def __init__(self, facts: ModelFacts, layer: int) -> None:
        hidden = facts.hidden_size
        heads = Heads(query=facts.num_heads, kv=facts.num_heads, dim=hidden // facts.num_heads)
        super().__init__(
            attention=SelfAttention(hidden, heads, Attention(layer, heads, None), bias=True),
            attention_norm=LayerNorm(hidden, _EPS),
            mlp=MLP(hidden, facts.intermediate_size, facts.activation, bias=True),
            mlp_norm=LayerNorm(hidden, _EPS),
        )
        # What it keeps is numbered behind what the attention to the text keeps.
        self.cross = BartCrossAttention(hidden, heads, facts.num_layers + layer)
        self.cross_norm = LayerNorm(hidden, _EPS)

    def forward(self, delta: Tensor | None, residual: Tensor, ctx: ForwardContext) -> None:
        """Overwrite residual [T, hidden]; there is nothing left to be added to it."""
        residual.copy_(self.attention_norm.add(self.attention(residual, ctx), residual))
        residual.copy_(self.cross_norm.add(self.cross(residual, ctx), residual))
        residual.copy_(self.mlp_norm.add(self.mlp(residual), residual))


class BartForConditionalGeneration(nn.Module):
    """One table of tokens, an encoder, a decoder, and a head with a bias."""

    config_keys = {
        "encoder_layers": 12,
        "encoder_attention_heads": 16,
        "encoder_ffn_dim": 4096,
        "scale_embedding": False,
        "is_encoder_decoder": True,
    }
    checkpoint_names = {
        "embed": "model.shared",
        **{
            f"{side}_{what}": f"model.{side}.{name}"
            for side in ("encoder", "decoder")
            for what, name in (("positions", "embed_positions"), ("norm", "layernorm_embedding"))
        },
        **{
            f"{side}.layers.{{}}.{path}": f"model.{side}.layers.{{}}.{name}"
            for side in ("encoder", "decoder")
            for path, name in (
                ("attention.qkv.q", "self_attn.q_proj"),
                ("attention.qkv.k", "self_attn.k_proj"),
                ("attention.qkv.v", "self_attn.v_proj"),
                ("attention.out", "self_attn.out_proj"),
                ("attention_norm", "self_attn_layer_norm"),
                ("cross.q", "encoder_attn.q_proj"),
                ("cross.k", "encoder_attn.k_proj"),
                ("cross.v", "encoder_attn.v_proj"),
                ("cross.out", "encoder_attn.out_proj"),
                ("cross_norm", "encoder_attn_layer_norm"),
                ("mlp.up", "fc1"),
                ("mlp.down", "fc2"),
                ("mlp_norm", "final_layer_norm"),
            )
        },
        # Copies of the one table.
        "encoder_embed": Stored(name="model.encoder.embed_tokens", ignored=True),
        "decoder_embed": Stored(name="model.decoder.embed_tokens", ignored=True),
        "head": "lm_head",
        "bias": "",
    }

    def __init__(self, facts: ModelFacts) -> None:
        super().__init__()
        extras, hidden = facts.extras, facts.hidden_size
        heads = extras["encoder_attention_heads"]
        encoder_heads = Heads(query=heads, kv=heads, dim=hidden // heads)
        self.scale = hidden**0.5 if extras["scale_embedding"] else 1.0
        self.embed = Embedding(facts.vocab_size, hidden)
        self.encoder_positions = Embedding(facts.max_position + _UNUSED, hidden)
        self.decoder_positions = Embedding(facts.max_position + _UNUSED, hidden)
        self.encoder_norm, self.decoder_norm = LayerNorm(hidden, _EPS), LayerNorm(hidden, _EPS)
        self.encoder = Decoder(
            layers=(
                PostNormDecoderLayer(
                    attention=SelfAttention(hidden, encoder_heads, EncoderAttention(encoder_heads), bias=True),
                    attention_norm=LayerNorm(hidden, _EPS),
                    mlp=MLP(hidden, extras["encoder_ffn_dim"], facts.activation, bias=True),
                    mlp_norm=LayerNorm(hidden, _EPS),
                )
                for _ in range(extras["encoder_layers"])
            ),
            norm=None,
        )
        self.decoder = Decoder((BartDecoderLayer(facts, layer) for layer in range(facts.num_layers)), norm=None)
        self.head = LMHead(hidden, facts.vocab_size, tied=self.embed)
        self.bias = Vector(facts.vocab_size, "final_logits_bias", leading=(1,))

    def encode(self, ids: Tensor, ctx: ForwardContext) -> None:
        """Encode ids, int64 [E], whose rows are whole, and keep what the decoder attends to."""
        positions = self.encoder_positions(ctx.positions + _UNUSED)
        encoded = self.encoder(self.encoder_norm(self.embed(ids) * self.scale + positions), ctx)
        for layer in self.decoder.layers:
            assert isinstance(layer, BartDecoderLayer)
            layer.cross.write(encoded, ctx)

    def forward(self, ids: Tensor, ctx: ForwardContext) -> Tensor:
        """Return hidden states [T, hidden] of ids, int64 [T]."""
        positions = self.decoder_positions(ctx.positions + _UNUSED)
        return self.decoder(self.decoder_norm(self.embed(ids) * self.scale + positions), ctx)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [S, vocabulary] from hidden [S, hidden]."""
        return self.head(hidden) + self.bias().float()
