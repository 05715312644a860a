"""StableLM (Bellagente et al. 2024): Llama's shape with layer norms, a part of each head rotated; some run side by side."""

from __future__ import annotations

from torch import nn

from octavo.base.facts import ModelFacts
from octavo.nn.attention.layer import Attention
from octavo.nn.causal import USUAL_NAMES, CausalDecoder, SelfAttention
from octavo.nn.decoder import DecoderLayer, ParallelDecoderLayer
from octavo.nn.heads import Heads
from octavo.nn.mlp import GatedMLP
from octavo.nn.norm import HeadsLayerNorm, LayerNorm
from octavo.nn.rope import Rope


class StableLmForCausalLM(CausalDecoder):
    """Layers of attention and a gated MLP; q and k may be normalized, each head by its own norm."""

    config_keys = {"use_qkv_bias": False, "qk_layernorm": False, "use_parallel_residual": False}
    checkpoint_names = {
        **USUAL_NAMES,
        "decoder.layers.{}.attention.attend.q_norm.{}": "model.layers.{}.self_attn.q_layernorm.norms.{}",
        "decoder.layers.{}.attention.attend.k_norm.{}": "model.layers.{}.self_attn.k_layernorm.norms.{}",
    }

    def __init__(self, facts: ModelFacts) -> None:
        rope, heads, hidden, eps = Rope(facts.rope), Heads.of(facts), facts.hidden_size, facts.norm_eps
        bias, parallel = facts.extras["use_qkv_bias"], facts.extras["use_parallel_residual"]

        def layer(index: int) -> nn.Module:
            norms = None
            if facts.extras["qk_layernorm"]:
                norms = HeadsLayerNorm(heads.query, heads.dim, eps), HeadsLayerNorm(heads.kv, heads.dim, eps)
            attend = Attention(index, heads, rope, norms=norms)
            attention_norm = LayerNorm(hidden, eps)
            attention = SelfAttention(hidden, heads, attend, bias=bias, out_bias=False)
            mlp = GatedMLP(hidden, facts.intermediate_size, facts.activation)
            if parallel:
                return ParallelDecoderLayer(attention_norm=attention_norm, attention=attention, mlp=mlp)
            mlp_norm = LayerNorm(hidden, eps)
            return DecoderLayer(attention_norm=attention_norm, attention=attention, mlp_norm=mlp_norm, mlp=mlp)

        super().__init__(facts, layer, norm=LayerNorm(hidden, eps))
