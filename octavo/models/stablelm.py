"""StableLM (Bellagente et al. 2024): Llama's shape with layer norms, a part of each head rotated; some run side by side.

Shapes: T tokens, S rows to sample, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from torch import Tensor, nn

from octavo.base.facts import ModelFacts
from octavo.nn.attention.layer import Attention
from octavo.nn.context import ForwardContext
from octavo.nn.decoder import Decoder, DecoderLayer, ParallelDecoderLayer
from octavo.nn.embedding import Embedding, LMHead
from octavo.nn.heads import Heads
from octavo.nn.linear import QKVLinear, RowLinear
from octavo.nn.mlp import GatedMLP
from octavo.nn.norm import HeadsLayerNorm, LayerNorm
from octavo.nn.rope import Rope


class StableLmAttention(nn.Module):
    """Grouped-query attention with rotary positions; q and k may be normalized, each head by its own norm."""

    def __init__(self, facts: ModelFacts, layer: int, rope: Rope) -> None:
        super().__init__()
        heads, norms = Heads(query=facts.num_heads, kv=facts.num_kv_heads, dim=facts.head_dim), None
        if facts.extras["qk_layernorm"]:
            eps = facts.norm_eps
            norms = HeadsLayerNorm(heads.query, heads.dim, eps), HeadsLayerNorm(heads.kv, heads.dim, eps)
        self.qkv = QKVLinear(facts.hidden_size, heads, bias=facts.extras["use_qkv_bias"])
        self.attend = Attention(layer, heads, rope, norms=norms)
        self.out = RowLinear(facts.hidden_size, facts.hidden_size)

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, hidden] from x [T, hidden]."""
        q_THD, k_TKD, v_TKD = self.qkv(x)
        return self.out(self.attend(q_THD, k_TKD, v_TKD, ctx))


class StableLmForCausalLM(nn.Module):
    """Token embeddings, layers of attention and gated MLP, and a head over the vocabulary."""

    config_keys = {"use_qkv_bias": False, "qk_layernorm": False, "use_parallel_residual": False}
    checkpoint_names = {
        "embed": "model.embed_tokens",
        "decoder.layers.{}.attention_norm": "model.layers.{}.input_layernorm",
        "decoder.layers.{}.attention.qkv.q": "model.layers.{}.self_attn.q_proj",
        "decoder.layers.{}.attention.qkv.k": "model.layers.{}.self_attn.k_proj",
        "decoder.layers.{}.attention.qkv.v": "model.layers.{}.self_attn.v_proj",
        "decoder.layers.{}.attention.attend.q_norm.{}": "model.layers.{}.self_attn.q_layernorm.norms.{}",
        "decoder.layers.{}.attention.attend.k_norm.{}": "model.layers.{}.self_attn.k_layernorm.norms.{}",
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
            layers=(self._layer(facts, layer, rope) for layer in range(facts.num_layers)), norm=LayerNorm(hidden, eps)
        )
        self.head = LMHead(hidden, facts.vocab_size, tied=self.embed if facts.tie_embeddings else None)

    def _layer(self, facts: ModelFacts, layer: int, rope: Rope) -> nn.Module:
        hidden, eps = facts.hidden_size, facts.norm_eps
        attention_norm, attention = LayerNorm(hidden, eps), StableLmAttention(facts, layer, rope)
        mlp = GatedMLP(hidden, facts.intermediate_size, facts.activation)
        if facts.extras["use_parallel_residual"]:
            return ParallelDecoderLayer(attention_norm=attention_norm, attention=attention, mlp=mlp)
        mlp_norm = LayerNorm(hidden, eps)
        return DecoderLayer(attention_norm=attention_norm, attention=attention, mlp_norm=mlp_norm, mlp=mlp)

    def forward(self, ids: Tensor, ctx: ForwardContext) -> Tensor:
        """Return hidden states [T, hidden] of ids, int64 [T]."""
        return self.decoder(self.embed(ids), ctx)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [S, vocabulary] from hidden [S, hidden]."""
        return self.head(hidden)
