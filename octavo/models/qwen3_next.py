"""Qwen3-Next (Qwen team 2025): three layers in four keep a state by the gated delta rule, the fourth sees everything; the
feed-forward is a mixture of experts.

Shapes: T tokens, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from torch import Tensor, nn

from octavo.base.facts import ModelFacts
from octavo.nn.assembly import Binding, Stored
from octavo.nn.attention.layer import Attention
from octavo.nn.causal import HEAD_NORM_NAMES, USUAL_NAMES, CausalDecoder
from octavo.nn.context import ForwardContext
from octavo.nn.decoder import DecoderLayer
from octavo.nn.heads import Heads
from octavo.nn.linear import GatedQKVLinear, RowLinear
from octavo.nn.mlp import GatedMLP
from octavo.nn.moe import Routing, SparseMLP
from octavo.nn.norm import OffsetRMSNorm, RMSNorm
from octavo.nn.recurrent import DeltaDims, DeltaProjection, GatedDeltaRule
from octavo.nn.rope import Rope


class Qwen3NextAttention(nn.Module):
    """Grouped-query attention with normalized heads, whose outputs pass a gate."""

    def __init__(self, facts: ModelFacts, layer: int, rope: Rope) -> None:
        super().__init__()
        heads = Heads(query=facts.num_heads, kv=facts.num_kv_heads, dim=facts.head_dim)
        self.qkv = GatedQKVLinear(facts.hidden_size, heads, bias=facts.attention_bias)
        norms = OffsetRMSNorm(heads.dim, facts.norm_eps), OffsetRMSNorm(heads.dim, facts.norm_eps)
        self.attend = Attention(layer, heads, rope, norms=norms)
        self.out = RowLinear(heads.query * heads.dim, facts.hidden_size, bias=facts.attention_bias)

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, hidden] from x [T, hidden]."""
        q_THD, gate, k_TKD, v_TKD = self.qkv(x)
        return self.out(self.attend(q_THD, k_TKD, v_TKD, ctx) * gate.sigmoid())


class Qwen3NextDelta(nn.Module):
    """The gated delta rule; its answers are normalized and pass a gate."""

    def __init__(self, facts: ModelFacts, layer: int) -> None:
        super().__init__()
        extras = facts.extras
        dims = DeltaDims(
            key_heads=extras["linear_num_key_heads"],
            value_heads=extras["linear_num_value_heads"],
            key_dim=extras["linear_key_head_dim"],
            value_dim=extras["linear_value_head_dim"],
            taps=extras["linear_conv_kernel_dim"],
        )
        self.project = DeltaProjection(facts.hidden_size, dims)
        self.rule = GatedDeltaRule(layer, dims)
        self.norm = RMSNorm(dims.value_dim, facts.norm_eps)
        self.answer = RowLinear(dims.value_heads * dims.value_dim, facts.hidden_size)

    def bind(self, binding: Binding) -> None:
        """Take the kernel."""
        self._gated = binding.kernels.gated_activation

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, hidden] from x [T, hidden]."""
        channels, gate, b, a = self.project(x)
        return self.answer(self._gated(gate, self.norm(self.rule(channels, b, a, ctx)), "silu").flatten(1))


class Qwen3NextForCausalLM(CausalDecoder):
    """Layers of attention or the gated delta rule, and of experts."""

    config_keys = {
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": (),
    }
    checkpoint_names = {
        **USUAL_NAMES,
        **HEAD_NORM_NAMES,
        "decoder.layers.{}.attention.answer": "model.layers.{}.linear_attn.out_proj",
        "decoder.layers.{}.attention.rule.conv.q": "model.layers.{}.linear_attn.conv1d",
        "decoder.layers.{}.attention.rule.conv.k": "model.layers.{}.linear_attn.conv1d",
        "decoder.layers.{}.attention.rule.conv.v": "model.layers.{}.linear_attn.conv1d",
        "decoder.layers.{}.attention.rule.rate": "model.layers.{}.linear_attn",
        "decoder.layers.{}.attention.rule.bias": "model.layers.{}.linear_attn",
        "decoder.layers.{}.attention.norm": "model.layers.{}.linear_attn.norm",
        "decoder.layers.{}.mlp.shared_gate": "model.layers.{}.mlp.shared_expert_gate",
        "decoder.layers.{}.mlp.shared.gate_up.gate": "model.layers.{}.mlp.shared_expert.gate_proj",
        "decoder.layers.{}.mlp.shared.gate_up.up": "model.layers.{}.mlp.shared_expert.up_proj",
        "decoder.layers.{}.mlp.shared.down": "model.layers.{}.mlp.shared_expert.down_proj",
    }

    def __init__(self, facts: ModelFacts) -> None:
        rope, hidden, eps = Rope(facts.rope), facts.hidden_size, facts.norm_eps
        every = facts.extras["full_attention_interval"]
        kinds = facts.layer_kinds or ["linear" if (index + 1) % every else "full" for index in range(facts.num_layers)]

        def layer(index: int) -> nn.Module:
            linear = kinds[index] == "linear"
            return DecoderLayer(
                attention_norm=OffsetRMSNorm(hidden, eps),
                attention=Qwen3NextDelta(facts, index) if linear else Qwen3NextAttention(facts, index, rope),
                mlp_norm=OffsetRMSNorm(hidden, eps),
                mlp=_feed_forward(facts, index),
            )

        super().__init__(facts, layer, norm=OffsetRMSNorm(hidden, eps))
        self.checkpoint_names = {**self.checkpoint_names, **_interleaved(facts)}


def _interleaved(facts: ModelFacts) -> dict[str, str | Stored]:
    """Return the names of projections that share a tensor, head by head."""
    layer, num_keys = "model.layers.{}", facts.extras["linear_num_key_heads"]
    query = Stored(name=f"{layer}.self_attn.q_proj", groups=facts.num_heads)
    delta = Stored(name=f"{layer}.linear_attn.in_proj_qkvz", groups=num_keys)
    scalars = Stored(name=f"{layer}.linear_attn.in_proj_ba", groups=num_keys)
    path = "decoder.layers.{}.attention"
    return {
        **{f"{path}.qkv.{part}": query for part in ("q", "gate")},
        **{f"{path}.project.{part}": delta for part in "qkvz"},
        **{f"{path}.project.{part}": scalars for part in "ba"},
    }


def _feed_forward(facts: ModelFacts, layer: int) -> nn.Module:
    extras, hidden = facts.extras, facts.hidden_size
    sparse = layer not in (extras["mlp_only_layers"] or ()) and (layer + 1) % extras["decoder_sparse_step"] == 0
    if not (sparse and extras["num_experts"]):
        return GatedMLP(hidden, facts.intermediate_size, facts.activation)
    routing = Routing(
        num_experts=extras["num_experts"],
        experts_per_token=extras["num_experts_per_tok"],
        normalize=extras["norm_topk_prob"],
    )
    shared = extras["shared_expert_intermediate_size"]
    size = extras["moe_intermediate_size"]
    return SparseMLP(hidden, size, facts.activation, routing, shared_size=shared, gated=True)
