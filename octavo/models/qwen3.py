"""Qwen3 (Yang et al. 2025): Llama's shape, with queries and keys normalized in each head; dense, or a mixture of experts.

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
from octavo.nn.mlp import GatedMLP
from octavo.nn.moe import Routing, SparseMLP
from octavo.nn.norm import RMSNorm
from octavo.nn.rope import Rope


class Qwen3Attention(nn.Module):
    """Grouped-query attention with rotary positions; q and k are normalized before they are rotated."""

    def __init__(self, facts: ModelFacts, layer: int, rope: Rope) -> None:
        super().__init__()
        heads = Heads(query=facts.num_heads, kv=facts.num_kv_heads, dim=facts.head_dim)
        self.qkv = QKVLinear(facts.hidden_size, heads, bias=facts.attention_bias)
        slides = layer >= facts.extras["max_window_layers"]
        window = window_of(facts, layer, slides) if facts.extras["use_sliding_window"] else None
        norms = RMSNorm(heads.dim, facts.norm_eps), RMSNorm(heads.dim, facts.norm_eps)
        self.attend = Attention(layer, heads, rope, window=window, norms=norms)
        self.out = RowLinear(heads.query * heads.dim, facts.hidden_size, bias=facts.attention_bias)

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, hidden] from x [T, hidden]."""
        q_THD, k_TKD, v_TKD = self.qkv(x)
        return self.out(self.attend(q_THD, k_TKD, v_TKD, ctx))


class Qwen3ForCausalLM(nn.Module):
    """Token embeddings, layers of attention and gated MLP, and a head over the vocabulary."""

    config_keys = {"use_sliding_window": False, "max_window_layers": 28}
    checkpoint_names = {
        "embed": "model.embed_tokens",
        "decoder.layers.{}.attention_norm": "model.layers.{}.input_layernorm",
        "decoder.layers.{}.attention.qkv.q": "model.layers.{}.self_attn.q_proj",
        "decoder.layers.{}.attention.qkv.k": "model.layers.{}.self_attn.k_proj",
        "decoder.layers.{}.attention.qkv.v": "model.layers.{}.self_attn.v_proj",
        "decoder.layers.{}.attention.attend.q_norm": "model.layers.{}.self_attn.q_norm",
        "decoder.layers.{}.attention.attend.k_norm": "model.layers.{}.self_attn.k_norm",
        "decoder.layers.{}.attention.out": "model.layers.{}.self_attn.o_proj",
        "decoder.layers.{}.mlp_norm": "model.layers.{}.post_attention_layernorm",
        "decoder.layers.{}.mlp.gate_up.gate": "model.layers.{}.mlp.gate_proj",
        "decoder.layers.{}.mlp.gate_up.up": "model.layers.{}.mlp.up_proj",
        "decoder.layers.{}.mlp.down": "model.layers.{}.mlp.down_proj",
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
                    attention_norm=RMSNorm(hidden, eps),
                    attention=Qwen3Attention(facts, layer, rope),
                    mlp_norm=RMSNorm(hidden, eps),
                    mlp=self.feed_forward(facts, layer),
                )
                for layer in range(facts.num_layers)
            ),
            norm=RMSNorm(hidden, eps),
        )
        self.head = LMHead(hidden, facts.vocab_size, tied=self.embed if facts.tie_embeddings else None)

    def feed_forward(self, facts: ModelFacts, layer: int) -> nn.Module:
        """Return the feed-forward of a layer."""
        return GatedMLP(facts.hidden_size, facts.intermediate_size, facts.activation)

    def forward(self, ids: Tensor, ctx: ForwardContext) -> Tensor:
        """Return hidden states [T, hidden] of ids, int64 [T]."""
        return self.decoder(self.embed(ids), ctx)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [S, vocabulary] from hidden [S, hidden]."""
        return self.head(hidden)


class Qwen3MoeForCausalLM(Qwen3ForCausalLM):
    """The same with experts in the layers that are not in `mlp_only_layers`, or in every `decoder_sparse_step`-th."""

    config_keys = {
        **Qwen3ForCausalLM.config_keys,
        "num_experts": None,
        "num_local_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": (),
    }
    checkpoint_names = {
        **Qwen3ForCausalLM.checkpoint_names,
        "decoder.layers.{}.mlp.router": "model.layers.{}.mlp.gate",
        "decoder.layers.{}.mlp.experts.{}.gate": "model.layers.{}.mlp.experts.{}.gate_proj",
        "decoder.layers.{}.mlp.experts.{}.up": "model.layers.{}.mlp.experts.{}.up_proj",
        "decoder.layers.{}.mlp.experts.{}.down": "model.layers.{}.mlp.experts.{}.down_proj",
    }

    def feed_forward(self, facts: ModelFacts, layer: int) -> nn.Module:
        """Return experts, or one dense block, as the configuration says for the layer."""
        extras = facts.extras
        num_experts = extras["num_experts"] or extras["num_local_experts"]
        sparse = layer not in (extras["mlp_only_layers"] or ()) and (layer + 1) % extras["decoder_sparse_step"] == 0
        if not (sparse and num_experts):
            return super().feed_forward(facts, layer)
        routing = Routing(
            num_experts=num_experts,
            experts_per_token=extras["num_experts_per_tok"],
            normalize=extras["norm_topk_prob"],
        )
        return SparseMLP(facts.hidden_size, extras["moe_intermediate_size"], facts.activation, routing)
