"""OLMo 2 (OLMo Team 2024): norms after attention and feed-forward instead of before, and over all queries and all keys.

Shapes: T tokens.
"""

from __future__ import annotations

from torch import Tensor, nn

from octavo.base.facts import ModelFacts
from octavo.nn.attention.layer import Attention
from octavo.nn.causal import HEAD_NORM_NAMES, USUAL_NAMES, CausalDecoder, SelfAttention
from octavo.nn.context import ForwardContext
from octavo.nn.decoder import DecoderLayer
from octavo.nn.heads import Heads
from octavo.nn.mlp import GatedMLP
from octavo.nn.norm import ProjectionRMSNorm, RMSNorm
from octavo.nn.rope import Rope


class Olmo2Layer(DecoderLayer):
    """Attention, then feed-forward, each normalized after and added to the residual stream."""

    def forward(self, delta: Tensor | None, residual: Tensor, ctx: ForwardContext) -> Tensor:
        """Return what is to be added to the residual [T, hidden]; delta is what the layer before left to be added."""
        if delta is not None:
            residual += delta
        residual += self.attention_norm(self.attention(residual, ctx))
        return self.mlp_norm(self.mlp(residual))


class Olmo2ForCausalLM(CausalDecoder):
    """Layers of attention with rotary positions and a gated MLP; all heads of q, and of k, are normalized together."""

    checkpoint_names = {
        **USUAL_NAMES,
        **HEAD_NORM_NAMES,
        "decoder.layers.{}.attention_norm": "model.layers.{}.post_attention_layernorm",
        "decoder.layers.{}.mlp_norm": "model.layers.{}.post_feedforward_layernorm",
    }

    def __init__(self, facts: ModelFacts) -> None:
        rope, heads, hidden, eps = Rope(facts.rope), Heads.of(facts), facts.hidden_size, facts.norm_eps

        def layer(index: int) -> nn.Module:
            norms = ProjectionRMSNorm(heads.query, heads.dim, eps), ProjectionRMSNorm(heads.kv, heads.dim, eps)
            attend = Attention(index, heads, rope, norms=norms)
            return Olmo2Layer(
                attention_norm=RMSNorm(hidden, eps),
                attention=SelfAttention(hidden, heads, attend, bias=facts.attention_bias),
                mlp_norm=RMSNorm(hidden, eps),
                mlp=GatedMLP(hidden, facts.intermediate_size, facts.activation),
            )

        super().__init__(facts, layer, norm=RMSNorm(hidden, eps))
