"""What most decoders are made of: embeddings, layers that project, attend and project back, and a head.

Shapes: T tokens, S rows to sample, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from torch import Tensor, nn

from octavo.base.facts import ModelFacts
from octavo.nn.assembly import Stored
from octavo.nn.attention.encoder import EncoderAttention
from octavo.nn.attention.layer import Attention
from octavo.nn.context import ForwardContext
from octavo.nn.decoder import Decoder
from octavo.nn.embedding import Embedding, LMHead
from octavo.nn.heads import Heads
from octavo.nn.linear import QKVLinear, RowLinear
from octavo.nn.norm import Norm

# What most checkpoints call the parts that most models have. A name whose part a model does not have stands for nothing.
USUAL_NAMES: Final[Mapping[str, str | Stored]] = {
    "embed": "model.embed_tokens",
    "decoder.layers.{}.attention_norm": "model.layers.{}.input_layernorm",
    "decoder.layers.{}.attention.qkv.q": "model.layers.{}.self_attn.q_proj",
    "decoder.layers.{}.attention.qkv.k": "model.layers.{}.self_attn.k_proj",
    "decoder.layers.{}.attention.qkv.v": "model.layers.{}.self_attn.v_proj",
    "decoder.layers.{}.attention.out": "model.layers.{}.self_attn.o_proj",
    "decoder.layers.{}.mlp_norm": "model.layers.{}.post_attention_layernorm",
    "decoder.layers.{}.mlp.gate_up.gate": "model.layers.{}.mlp.gate_proj",
    "decoder.layers.{}.mlp.gate_up.up": "model.layers.{}.mlp.up_proj",
    "decoder.layers.{}.mlp.down": "model.layers.{}.mlp.down_proj",
    "decoder.layers.{}.mlp.router": "model.layers.{}.mlp.gate",
    "decoder.layers.{}.mlp.experts.{}.gate": "model.layers.{}.mlp.experts.{}.gate_proj",
    "decoder.layers.{}.mlp.experts.{}.up": "model.layers.{}.mlp.experts.{}.up_proj",
    "decoder.layers.{}.mlp.experts.{}.down": "model.layers.{}.mlp.experts.{}.down_proj",
    "decoder.norm": "model.norm",
    "head": "lm_head",
}
# And what those call the norms of queries and keys that have some.
HEAD_NORM_NAMES: Final = {
    "decoder.layers.{}.attention.attend.q_norm": "model.layers.{}.self_attn.q_norm",
    "decoder.layers.{}.attention.attend.k_norm": "model.layers.{}.self_attn.k_norm",
}


class SelfAttention(nn.Module):
    """Queries, keys and values from one product, attention of their heads (Ainslie et al. 2023), and a product back.

    bias: of the products. out_bias: of the second, if it is not as the first.
    """

    def __init__(
        self,
        hidden_size: int,
        heads: Heads,
        attend: Attention | EncoderAttention,
        *,
        bias: bool = False,
        out_bias: bool | None = None,
    ) -> None:
        super().__init__()
        self.qkv = QKVLinear(hidden_size, heads, bias)
        self.attend = attend
        self.out = RowLinear(heads.query * heads.dim, hidden_size, bias if out_bias is None else out_bias)

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, hidden] from x [T, hidden]."""
        q_THD, k_TKD, v_TKD = self.qkv(x)
        return self.out(self.attend(q_THD, k_TKD, v_TKD, ctx))


class CausalDecoder(nn.Module):
    """Token embeddings, layers, a norm after the last, and a head over the vocabulary, which may be tied to the embeddings.

    layer: makes the layer of an index. width: of the embeddings, if it is not the hidden size. cap: of logits, which a tanh
    keeps below it. See `CausalLM` for the two tables.
    """

    config_keys: Mapping[str, Any] = {}
    checkpoint_names: Mapping[str, str | Stored] = USUAL_NAMES

    def __init__(
        self,
        facts: ModelFacts,
        layer: Callable[[int], nn.Module],
        norm: Norm | None,
        *,
        width: int | None = None,
        cap: float | None = None,
    ) -> None:
        super().__init__()
        width = width or facts.hidden_size
        self.embed = Embedding(facts.vocab_size, width)
        self.decoder = Decoder((layer(index) for index in range(facts.num_layers)), norm)
        self.head = LMHead(width, facts.vocab_size, tied=self.embed if facts.tie_embeddings else None)
        self.cap = cap

    def forward(self, ids: Tensor, ctx: ForwardContext) -> Tensor:
        """Return hidden states [T, hidden] of ids, int64 [T]."""
        return self.decoder(self.embed(ids), ctx)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [S, vocabulary] from hidden [S, hidden]."""
        logits: Tensor = self.head(hidden)
        return logits if self.cap is None else logits.div_(self.cap).tanh_().mul_(self.cap)
