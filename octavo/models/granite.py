"""Granite 3 (IBM 2024): Llama's shape, with factors on embeddings, scores, residuals and logits (Yang et al. 2022, "muP").

Shapes: T tokens, S rows to sample.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from octavo.base.facts import ModelFacts
from octavo.nn.attention.layer import Attention
from octavo.nn.causal import CausalDecoder, SelfAttention
from octavo.nn.context import ForwardContext
from octavo.nn.decoder import DecoderLayer
from octavo.nn.heads import Heads
from octavo.nn.mlp import GatedMLP
from octavo.nn.norm import RMSNorm
from octavo.nn.rope import Rope


class GraniteLayer(DecoderLayer):
    """Attention, then feed-forward, each normalized before; `factor` times what they return is added to the residual."""

    def __init__(self, *, factor: float, **parts: Any) -> None:
        super().__init__(**parts)
        self.factor = factor

    def forward(self, delta: Tensor | None, residual: Tensor, ctx: ForwardContext) -> Tensor:
        """Return what is to be added to the residual [T, hidden]; delta is what the layer before left to be added."""
        delta = self.attention(self.attention_norm.add(delta, residual), ctx).mul_(self.factor)
        return self.mlp(self.mlp_norm.add(delta, residual)).mul_(self.factor)


class GraniteForCausalLM(CausalDecoder):
    """Layers of attention with rotary positions and a scale of its own, and a gated MLP."""

    config_keys = {
        "embedding_multiplier": 1.0,
        "attention_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    }

    def __init__(self, facts: ModelFacts) -> None:
        rope, heads, hidden, eps = Rope(facts.rope), Heads.of(facts), facts.hidden_size, facts.norm_eps
        factors = facts.extras

        def layer(index: int) -> nn.Module:
            attend = Attention(index, heads, rope, scale=factors["attention_multiplier"])
            return GraniteLayer(
                factor=factors["residual_multiplier"],
                attention_norm=RMSNorm(hidden, eps),
                attention=SelfAttention(hidden, heads, attend, bias=facts.attention_bias),
                mlp_norm=RMSNorm(hidden, eps),
                mlp=GatedMLP(hidden, facts.intermediate_size, facts.activation, bias=facts.mlp_bias),
            )

        super().__init__(facts, layer, norm=RMSNorm(hidden, eps))
        self.factors = factors

    def forward(self, ids: Tensor, ctx: ForwardContext) -> Tensor:
        """Return hidden states [T, hidden] of ids, int64 [T]."""
        return self.decoder(self.embed(ids).mul_(self.factors["embedding_multiplier"]), ctx)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [S, vocabulary] from hidden [S, hidden]."""
        return self.head(hidden).div_(self.factors["logits_scaling"])
