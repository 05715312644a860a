"""BERT (Devlin et al. 2018): an encoder. Its hidden states are what it gives; it has no head.

Shapes: T tokens.
"""

from __future__ import annotations

from torch import Tensor, nn

from octavo.base.errors import CheckpointError
from octavo.base.facts import ModelFacts
from octavo.nn.assembly import Stored
from octavo.nn.attention.encoder import EncoderAttention
from octavo.nn.causal import SelfAttention
from octavo.nn.context import ForwardContext
from octavo.nn.decoder import Decoder, PostNormDecoderLayer
from octavo.nn.embedding import Embedding
from octavo.nn.heads import Heads
from octavo.nn.mlp import MLP
from octavo.nn.norm import LayerNorm


class BertModel(nn.Module):
    """Embeddings of tokens, positions and the first segment, and the layers."""

    config_keys = {"type_vocab_size": 2, "position_embedding_type": "absolute"}
    checkpoint_names = {
        "embed": "embeddings.word_embeddings",
        "positions": "embeddings.position_embeddings",
        "segments": "embeddings.token_type_embeddings",
        "embed_norm": "embeddings.LayerNorm",
        "encoder.layers.{}.attention.qkv.q": "encoder.layer.{}.attention.self.query",
        "encoder.layers.{}.attention.qkv.k": "encoder.layer.{}.attention.self.key",
        "encoder.layers.{}.attention.qkv.v": "encoder.layer.{}.attention.self.value",
        "encoder.layers.{}.attention.out": "encoder.layer.{}.attention.output.dense",
        "encoder.layers.{}.attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
        "encoder.layers.{}.mlp.up": "encoder.layer.{}.intermediate.dense",
        "encoder.layers.{}.mlp.down": "encoder.layer.{}.output.dense",
        "encoder.layers.{}.mlp_norm": "encoder.layer.{}.output.LayerNorm",
        # Of the pre-training task.
        "pooler": Stored(name="pooler.dense", ignored=True),
    }

    def __init__(self, facts: ModelFacts) -> None:
        super().__init__()
        hidden, eps = facts.hidden_size, facts.norm_eps
        heads = Heads(query=facts.num_heads, kv=facts.num_heads, dim=facts.head_dim)
        if facts.extras["position_embedding_type"] != "absolute":
            raise CheckpointError("BERT with relative positions is not supported", field="position_embedding_type")
        self.embed = Embedding(facts.vocab_size, hidden)
        self.positions = Embedding(facts.max_position, hidden)
        self.segments = Embedding(facts.extras["type_vocab_size"], hidden)
        self.embed_norm = LayerNorm(hidden, eps)
        self.encoder = Decoder(
            layers=(
                PostNormDecoderLayer(
                    attention=SelfAttention(hidden, heads, EncoderAttention(heads), bias=True),
                    attention_norm=LayerNorm(hidden, eps),
                    mlp=MLP(hidden, facts.intermediate_size, facts.activation, bias=True),
                    mlp_norm=LayerNorm(hidden, eps),
                )
                for _ in range(facts.num_layers)
            ),
            norm=None,
        )

    def forward(self, ids: Tensor, ctx: ForwardContext) -> Tensor:
        """Return hidden states [T, hidden] of ids, int64 [T]; rows are whole."""
        segment = self.segments(ids.new_zeros(len(ids)))
        return self.encoder(self.embed_norm(self.embed(ids) + self.positions(ctx.positions) + segment), ctx)
