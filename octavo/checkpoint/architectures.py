"""The architectures: which class computes each, and what its configuration class has for keys that config.json leaves out.

A model is one file and one row for each name it goes by. Only common keys have defaults here: a front knows vocabulary,
context and end tokens from them, and imports no model file. A model's own keys have theirs in its file (`config_keys`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from octavo.base.plugins import extend
from octavo.base.registry import Registry


@dataclass(frozen=True, slots=True)
class _Row:
    module: str
    model_type: str
    defaults: Mapping[str, Any]


def _row(module: str, model_type: str, **defaults: Any) -> _Row:
    return _Row(module, model_type, defaults)


# Architecture -> the module of `octavo/models/` that has a class of this name, and what else is known of it.
_ROWS: Final = {
    "BartForConditionalGeneration": _row(
        "bart", "bart", max_position_embeddings=1024, decoder_layers=12, decoder_attention_heads=16,
        decoder_ffn_dim=4096, d_model=1024, layer_norm_eps=1e-5, hidden_act="gelu", eos_token_id=2,
        tie_word_embeddings=True,
    ),
    "BertModel": _row(
        "bert", "bert", max_position_embeddings=512, layer_norm_eps=1e-12, hidden_act="gelu", tie_word_embeddings=True,
    ),
    "LlamaForCausalLM": _row("llama", "llama", max_position_embeddings=2048, rms_norm_eps=1e-6, eos_token_id=2),
    "MistralForCausalLM": _row(
        "llama", "mistral", max_position_embeddings=131072, rms_norm_eps=1e-6, num_key_value_heads=8,
        sliding_window=4096, eos_token_id=2,
    ),
    "Qwen2ForCausalLM": _row(
        "qwen2", "qwen2", max_position_embeddings=32768, rms_norm_eps=1e-6, num_key_value_heads=32, sliding_window=4096,
    ),
    "Qwen3ForCausalLM": _row(
        "qwen3", "qwen3", max_position_embeddings=32768, rms_norm_eps=1e-6, num_key_value_heads=32, head_dim=128,
        sliding_window=4096,
    ),
    "FalconForCausalLM": _row(
        "falcon", "falcon", max_position_embeddings=2048, rms_norm_eps=1e-5, intermediate_size=None, hidden_act="gelu",
        tie_word_embeddings=True, eos_token_id=11,
    ),
    "GPT2LMHeadModel": _row(
        "gpt2", "gpt2", max_position_embeddings=1024, rms_norm_eps=1e-5, intermediate_size=None, hidden_act="gelu_new",
        tie_word_embeddings=True, eos_token_id=50256,
    ),
    "GPTNeoXForCausalLM": _row(
        "gpt_neox", "gpt_neox", max_position_embeddings=2048, rms_norm_eps=1e-5, hidden_act="gelu",
        partial_rotary_factor=0.25, attention_bias=True, eos_token_id=2,
    ),
    "OPTForCausalLM": _row(
        "opt", "opt", max_position_embeddings=2048, rms_norm_eps=1e-5, hidden_act="relu", tie_word_embeddings=True,
        eos_token_id=2,
    ),
    "StableLmForCausalLM": _row(
        "stablelm", "stablelm", max_position_embeddings=4096, rms_norm_eps=1e-5, num_key_value_heads=32,
        partial_rotary_factor=0.25, eos_token_id=0,
    ),
    "Starcoder2ForCausalLM": _row(
        "starcoder2", "starcoder2", max_position_embeddings=4096, rms_norm_eps=1e-5, num_key_value_heads=2,
        hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True, eos_token_id=50256,
    ),
    "Phi3ForCausalLM": _row(
        "phi3", "phi3", max_position_embeddings=4096, original_max_position_embeddings=4096, rms_norm_eps=1e-5,
        eos_token_id=32000,
    ),
    "Gemma2ForCausalLM": _row(
        "gemma", "gemma2", max_position_embeddings=8192, rms_norm_eps=1e-6, num_key_value_heads=4, head_dim=256,
        sliding_window=4096, hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True, eos_token_id=1,
    ),
    "Gemma3ForCausalLM": _row(
        "gemma", "gemma3_text", vocab_size=262208, max_position_embeddings=131072, rms_norm_eps=1e-6,
        num_attention_heads=8, num_key_value_heads=4, head_dim=256, sliding_window=4096, rope_theta=1e6,
        rope_local_base_freq=1e4, hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True, eos_token_id=1,
    ),
    "GraniteForCausalLM": _row("granite", "granite", max_position_embeddings=2048, rms_norm_eps=1e-6, eos_token_id=2),
    "Olmo2ForCausalLM": _row("olmo2", "olmo2", max_position_embeddings=2048, rms_norm_eps=1e-5, eos_token_id=50279),
    "Cohere2ForCausalLM": _row(
        "cohere2", "cohere2", max_position_embeddings=8192, rms_norm_eps=1e-5, sliding_window=4096,
        tie_word_embeddings=True, eos_token_id=255001,
    ),
    "InternLM2ForCausalLM": _row(
        "internlm2", "internlm2", max_position_embeddings=2048, rms_norm_eps=1e-6, eos_token_id=2,
    ),
    "Glm4ForCausalLM": _row(
        "glm4", "glm4", max_position_embeddings=131072, rms_norm_eps=1.5625e-7, num_key_value_heads=2, head_dim=128,
        partial_rotary_factor=0.5, attention_bias=True, eos_token_id=[151329, 151336, 151338],
    ),
    "SmolLM3ForCausalLM": _row(
        "smollm3", "smollm3", max_position_embeddings=32768, rms_norm_eps=1e-6, num_key_value_heads=4, rope_theta=2e6,
        tie_word_embeddings=True, eos_token_id=128001,
    ),
    "DeepseekV2ForCausalLM": _row(
        "deepseek", "deepseek_v2", max_position_embeddings=2048, rms_norm_eps=1e-6, head_dim=64, eos_token_id=2,
    ),
    "Gemma4ForCausalLM": _row(
        "gemma4", "gemma4_text",
        max_position_embeddings=131072, rms_norm_eps=1e-6, num_key_value_heads=4, head_dim=256, sliding_window=512,
        tie_word_embeddings=True, hidden_act="gelu_pytorch_tanh", eos_token_id=1,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
        },
    ),
    "Qwen3NextForCausalLM": _row(
        "qwen3_next", "qwen3_next", max_position_embeddings=32768, rms_norm_eps=1e-6, num_key_value_heads=2,
        head_dim=256, partial_rotary_factor=0.25,
    ),
    "Qwen3MoeForCausalLM": _row(
        "qwen3", "qwen3_moe", max_position_embeddings=32768, rms_norm_eps=1e-6, num_key_value_heads=4,
        sliding_window=4096,
    ),
}  # fmt: skip


def architectures() -> Registry:
    """Return the registry of model classes, with those of other packages (entry points `octavo.models`)."""
    registry = Registry("model", {name: f"octavo.models.{row.module}:{name}" for name, row in _ROWS.items()})
    extend(registry, "octavo.models")
    return registry


def config_defaults(architecture: str) -> Mapping[str, Any]:
    """Return what the architecture's configuration class has for common keys."""
    return _ROWS[architecture].defaults if architecture in _ROWS else {}


def of_model_type(model_type: str) -> str | None:
    """Return the architecture of a file that says no more than its `model_type`, None if no row has it."""
    return next((name for name, row in _ROWS.items() if row.model_type == model_type), None)
