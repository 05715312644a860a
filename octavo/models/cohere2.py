"""Command R7B and A (Cohere 2024): attention and MLP side by side; layers that see everything have no positions.

Shapes: T tokens, S rows to sample, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from torch import Tensor, nn

from octavo.base.facts import ModelFacts
from octavo.nn.attention.layer import Attention, window_of
from octavo.nn.context import ForwardContext
from octavo.nn.decoder import Decoder, ParallelDecoderLayer
from octavo.nn.embedding import Embedding, LMHead
from octavo.nn.heads import Heads
from octavo.nn.linear import QKVLinear, RowLinear
from octavo.nn.mlp import GatedMLP
from octavo.nn.norm import LayerNorm
from octavo.nn.rope import Rope


class Cohere2Attention(nn.Module):
    """Grouped-query attention; three layers in four slide, with interleaved rotary positions."""

    def __init__(self, facts: ModelFacts, layer: int, rope: Rope) -> None:
        super().__init__()
        heads = Heads(query=facts.num_heads, kv=facts.num_kv_heads, dim=facts.head_dim)
        window = window_of(facts, layer, slides=(layer + 1) % facts.extras["sliding_window_pattern"] != 0)
        self.qkv = QKVLinear(facts.hidden_size, heads, bias=facts.attention_bias)
        self.attend = Attention(layer, heads, None if window is None else rope, window=window)
        self.out = RowLinear(heads.query * heads.dim, facts.hidden_size, bias=facts.attention_bias)

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, hidden] from x [T, hidden]."""
        q_THD, k_TKD, v_TKD = self.qkv(x)
        return self.out(self.attend(q_THD, k_TKD, v_TKD, ctx))


class Cohere2ForCausalLM(nn.Module):
    """Token embeddings, layers of attention and gated MLP, and a head over the vocabulary."""

    config_keys = {
        "logit_scale": 0.0625,
        "sliding_window_pattern": 4,
        # What published files say beside; all of them say the same.
        "layer_switch": 4,
        "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj",
        "use_embedding_sharing": True,
        "use_gated_activation": True,
        "use_parallel_block": True,
    }
    checkpoint_names = {
        "embed": "model.embed_tokens",
        "decoder.layers.{}.attention_norm": "model.layers.{}.input_layernorm",
        "decoder.layers.{}.attention.qkv.q": "model.layers.{}.self_attn.q_proj",
        "decoder.layers.{}.attention.qkv.k": "model.layers.{}.self_attn.k_proj",
        "decoder.layers.{}.attention.qkv.v": "model.layers.{}.self_attn.v_proj",
        "decoder.layers.{}.attention.out": "model.layers.{}.self_attn.o_proj",
        "decoder.layers.{}.mlp.gate_up.gate": "model.layers.{}.mlp.gate_proj",
        "decoder.layers.{}.mlp.gate_up.up": "model.layers.{}.mlp.up_proj",
        "decoder.layers.{}.mlp.down": "model.layers.{}.mlp.down_proj",
        "decoder.norm": "model.norm",
        "head": "lm_head",
    }

    def __init__(self, facts: ModelFacts) -> None:
        super().__init__()
        rope, hidden, eps = Rope(facts.rope, interleaved=True), facts.hidden_size, facts.norm_eps
        self.logit_scale = facts.extras["logit_scale"]
        self.embed = Embedding(facts.vocab_size, hidden)
        self.decoder = Decoder(
            layers=(
                ParallelDecoderLayer(
                    attention_norm=LayerNorm(hidden, eps, bias=False),
                    attention=Cohere2Attention(facts, layer, rope),
                    mlp=GatedMLP(hidden, facts.intermediate_size, facts.activation),
                )
                for layer in range(facts.num_layers)
            ),
            norm=LayerNorm(hidden, eps, bias=False),
        )
        self.head = LMHead(hidden, facts.vocab_size, tied=self.embed if facts.tie_embeddings else None)

    def forward(self, ids: Tensor, ctx: ForwardContext) -> Tensor:
        """Return hidden states [T, hidden] of ids, int64 [T]."""
        return self.decoder(self.embed(ids), ctx)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [S, vocabulary] from hidden [S, hidden]."""
        return self.head(hidden).mul_(self.logit_scale)
