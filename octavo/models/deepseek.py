"""DeepSeek-V2 (DeepSeek-AI 2024): latent attention, and experts of which some take every token.

Shapes: T tokens, H query heads.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor, nn

from octavo.base.facts import ModelFacts, RopeFacts
from octavo.nn.attention.latent import LatentAttention, LatentDims
from octavo.nn.causal import USUAL_NAMES, CausalDecoder
from octavo.nn.context import ForwardContext
from octavo.nn.decoder import DecoderLayer
from octavo.nn.linear import ColumnLinear, ReplicatedLinear, RowLinear
from octavo.nn.mlp import GatedMLP
from octavo.nn.moe import Routing, SparseMLP
from octavo.nn.norm import RMSNorm
from octavo.nn.rope import Rope

# Of the norms inside attention, whatever the configuration says of the others.
_LATENT_EPS = 1e-6


class DeepseekAttention(nn.Module):
    """Latent attention; queries come through a low rank, or straight from the hidden state."""

    def __init__(self, facts: ModelFacts, layer: int, rope: Rope) -> None:
        super().__init__()
        extras, hidden, bias = facts.extras, facts.hidden_size, facts.attention_bias
        self.dims = dims = LatentDims(
            heads=facts.num_heads,
            latent=extras["kv_lora_rank"],
            plain=extras["qk_nope_head_dim"],
            rotated=extras["qk_rope_head_dim"],
            value=extras["v_head_dim"],
        )
        size, low = dims.plain + dims.rotated, extras["q_lora_rank"]
        self.q_down = ReplicatedLinear(hidden, low, bias=bias) if low else None
        self.q_norm = RMSNorm(low, _LATENT_EPS) if low else None
        self.q = ColumnLinear(low or hidden, dims.heads * size, unit=size)
        self.kv_down = ReplicatedLinear(hidden, dims.latent + dims.rotated, bias=bias)
        self.kv_norm = RMSNorm(dims.latent, _LATENT_EPS)
        self.attend = LatentAttention(layer, dims, rope, scale=size**-0.5 * _stretched(facts.rope) ** 2)
        self.out = RowLinear(dims.heads * dims.value, hidden, bias=bias)

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, hidden] from x [T, hidden]."""
        low = x if self.q_down is None or self.q_norm is None else self.q_norm(self.q_down(x))
        q_THD = self.q(low).unflatten(-1, (-1, self.dims.plain + self.dims.rotated))
        latent, key = self.kv_down(x).split([self.dims.latent, self.dims.rotated], -1)
        return self.out(self.attend(q_THD, self.kv_norm(latent), key, ctx))


class DeepseekV2ForCausalLM(CausalDecoder):
    """Layers of latent attention and feed-forward."""

    config_keys = {
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": None,
        "moe_intermediate_size": 1407,
        "first_k_dense_replace": 0,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
        "topk_method": "greedy",
        "n_group": None,
        "topk_group": None,
        "qk_head_dim": None,  # The sum of the two parts.
    }
    checkpoint_names = {
        **USUAL_NAMES,
        "decoder.layers.{}.attention.q_down": "model.layers.{}.self_attn.q_a_proj",
        "decoder.layers.{}.attention.q_norm": "model.layers.{}.self_attn.q_a_layernorm",
        "decoder.layers.{}.attention.q": "model.layers.{}.self_attn.q_b_proj",
        "decoder.layers.{}.attention.kv_down": "model.layers.{}.self_attn.kv_a_proj_with_mqa",
        "decoder.layers.{}.attention.kv_norm": "model.layers.{}.self_attn.kv_a_layernorm",
        "decoder.layers.{}.attention.attend.expand": "model.layers.{}.self_attn.kv_b_proj",
        "decoder.layers.{}.mlp.shared.gate_up.gate": "model.layers.{}.mlp.shared_experts.gate_proj",
        "decoder.layers.{}.mlp.shared.gate_up.up": "model.layers.{}.mlp.shared_experts.up_proj",
        "decoder.layers.{}.mlp.shared.down": "model.layers.{}.mlp.shared_experts.down_proj",
    }

    def __init__(self, facts: ModelFacts) -> None:
        rope = Rope(replace(facts.rope, dim=facts.extras["qk_rope_head_dim"]), interleaved=True)
        hidden, eps = facts.hidden_size, facts.norm_eps

        def layer(index: int) -> nn.Module:
            return DecoderLayer(
                attention_norm=RMSNorm(hidden, eps),
                attention=DeepseekAttention(facts, index, rope),
                mlp_norm=RMSNorm(hidden, eps),
                mlp=_feed_forward(facts, index),
            )

        super().__init__(facts, layer, norm=RMSNorm(hidden, eps))
        if not facts.extras["q_lora_rank"]:
            direct = {"decoder.layers.{}.attention.q": "model.layers.{}.self_attn.q_proj"}
            self.checkpoint_names = {**self.checkpoint_names, **direct}


def _stretched(rope: RopeFacts) -> float:
    """Return what scores grow by where the context was stretched (YaRN, Peng et al. 2023)."""
    return 1 + 0.1 * rope.mscale_all_dim * math.log(max(rope.factor, 1.0)) if rope.kind == "yarn" else 1.0


def _feed_forward(facts: ModelFacts, layer: int) -> nn.Module:
    extras, hidden = facts.extras, facts.hidden_size
    if layer < extras["first_k_dense_replace"]:
        return GatedMLP(hidden, facts.intermediate_size, facts.activation, bias=facts.mlp_bias)
    limited = extras["topk_method"] == "group_limited_greedy"
    routing = Routing(
        num_experts=extras["n_routed_experts"],
        experts_per_token=extras["num_experts_per_tok"],
        normalize=False,  # The reference reads norm_topk_prob and does not use it.
        scale=extras["routed_scaling_factor"],
        groups=extras["n_group"] if limited else 1,
        group_limit=extras["topk_group"] if limited else 1,
    )
    size = extras["moe_intermediate_size"]
    shared = size * extras["n_shared_experts"]
    return SparseMLP(hidden, size, facts.activation, routing, shared_size=shared, bias=facts.mlp_bias)
