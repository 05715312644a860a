"""Qwen3 (Yang et al. 2025): Llama's shape, with queries and keys normalized in each head; dense, or a mixture of experts."""

from __future__ import annotations

from torch import nn

from octavo.base.facts import ModelFacts
from octavo.nn.attention.layer import Attention, window_of
from octavo.nn.causal import HEAD_NORM_NAMES, USUAL_NAMES, CausalDecoder, SelfAttention
from octavo.nn.decoder import DecoderLayer
from octavo.nn.heads import Heads
from octavo.nn.mlp import GatedMLP
from octavo.nn.moe import Routing, SparseMLP
from octavo.nn.norm import RMSNorm
from octavo.nn.rope import Rope


class Qwen3ForCausalLM(CausalDecoder):
    """Layers of attention with rotary positions and a gated MLP; q and k are normalized before they are rotated."""

    config_keys = {"use_sliding_window": False, "max_window_layers": 28}
    checkpoint_names = {**USUAL_NAMES, **HEAD_NORM_NAMES}

    def __init__(self, facts: ModelFacts) -> None:
        rope, heads, hidden, eps = Rope(facts.rope), Heads.of(facts), facts.hidden_size, facts.norm_eps

        def layer(index: int) -> nn.Module:
            slides = index >= facts.extras["max_window_layers"]
            window = window_of(facts, index, slides) if facts.extras["use_sliding_window"] else None
            norms = RMSNorm(heads.dim, eps), RMSNorm(heads.dim, eps)
            attend = Attention(index, heads, rope, window=window, norms=norms)
            return DecoderLayer(
                attention_norm=RMSNorm(hidden, eps),
                attention=SelfAttention(hidden, heads, attend, bias=facts.attention_bias),
                mlp_norm=RMSNorm(hidden, eps),
                mlp=self.feed_forward(facts, index),
            )

        super().__init__(facts, layer, norm=RMSNorm(hidden, eps))

    def feed_forward(self, facts: ModelFacts, layer: int) -> nn.Module:
        """Return the feed-forward of a layer."""
        return GatedMLP(facts.hidden_size, facts.intermediate_size, facts.activation)


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
