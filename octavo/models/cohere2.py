"""Command R7B and A (Cohere 2024): attention and MLP side by side; layers that see everything have no positions.

Shapes: S rows to sample.
"""

from __future__ import annotations

from torch import Tensor, nn

from octavo.base.facts import ModelFacts
from octavo.nn.attention.layer import Attention, window_of
from octavo.nn.causal import CausalDecoder, SelfAttention
from octavo.nn.decoder import ParallelDecoderLayer
from octavo.nn.heads import Heads
from octavo.nn.mlp import GatedMLP
from octavo.nn.norm import LayerNorm
from octavo.nn.rope import Rope


class Cohere2ForCausalLM(CausalDecoder):
    """Layers of attention beside a gated MLP; three in four slide, with interleaved rotary positions."""

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

    def __init__(self, facts: ModelFacts) -> None:
        rope, heads = Rope(facts.rope, interleaved=True), Heads.of(facts)
        hidden, eps = facts.hidden_size, facts.norm_eps

        def layer(index: int) -> nn.Module:
            window = window_of(facts, index, slides=(index + 1) % facts.extras["sliding_window_pattern"] != 0)
            attend = Attention(index, heads, None if window is None else rope, window=window)
            return ParallelDecoderLayer(
                attention_norm=LayerNorm(hidden, eps, bias=False),
                attention=SelfAttention(hidden, heads, attend, bias=facts.attention_bias),
                mlp=GatedMLP(hidden, facts.intermediate_size, facts.activation),
            )

        super().__init__(facts, layer, norm=LayerNorm(hidden, eps, bias=False))
        self.logit_scale = facts.extras["logit_scale"]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [S, vocabulary] from hidden [S, hidden]."""
        return self.head(hidden).mul_(self.logit_scale)
