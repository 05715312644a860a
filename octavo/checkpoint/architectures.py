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
    path: str
    model_type: str
    defaults: Mapping[str, Any]


def _row(path: str, model_type: str, **defaults: Any) -> _Row:
    return _Row(path, model_type, defaults)


_ROWS: Final = {
    "LlamaForCausalLM": _row(
        "octavo.models.llama:LlamaForCausalLM", "llama",
        max_position_embeddings=2048, rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2,
    ),
    "MistralForCausalLM": _row(
        "octavo.models.llama:MistralForCausalLM", "mistral",
        max_position_embeddings=131072, rms_norm_eps=1e-6, num_key_value_heads=8, sliding_window=4096,
        bos_token_id=1, eos_token_id=2,
    ),
    "Qwen3ForCausalLM": _row(
        "octavo.models.qwen3:Qwen3ForCausalLM", "qwen3",
        max_position_embeddings=32768, rms_norm_eps=1e-6, num_key_value_heads=32, head_dim=128, sliding_window=4096,
    ),
    "FalconForCausalLM": _row(
        "octavo.models.falcon:FalconForCausalLM", "falcon", max_position_embeddings=2048, rms_norm_eps=1e-5,
        intermediate_size=None, hidden_act="gelu", tie_word_embeddings=True, bos_token_id=11, eos_token_id=11,
    ),
    "GPT2LMHeadModel": _row(
        "octavo.models.gpt2:GPT2LMHeadModel", "gpt2", max_position_embeddings=1024, rms_norm_eps=1e-5,
        intermediate_size=None, hidden_act="gelu_new", tie_word_embeddings=True, bos_token_id=50256, eos_token_id=50256,
    ),
    "GPTNeoXForCausalLM": _row(
        "octavo.models.gpt_neox:GPTNeoXForCausalLM", "gpt_neox", max_position_embeddings=2048, rms_norm_eps=1e-5,
        hidden_act="gelu", partial_rotary_factor=0.25, attention_bias=True, bos_token_id=0, eos_token_id=2,
    ),
    "OPTForCausalLM": _row(
        "octavo.models.opt:OPTForCausalLM", "opt", max_position_embeddings=2048, rms_norm_eps=1e-5, hidden_act="relu",
        tie_word_embeddings=True, bos_token_id=2, eos_token_id=2, pad_token_id=1,
    ),
    "StableLmForCausalLM": _row(
        "octavo.models.stablelm:StableLmForCausalLM", "stablelm", max_position_embeddings=4096, rms_norm_eps=1e-5,
        num_key_value_heads=32, partial_rotary_factor=0.25, bos_token_id=0, eos_token_id=0,
    ),
    "Starcoder2ForCausalLM": _row(
        "octavo.models.starcoder2:Starcoder2ForCausalLM", "starcoder2", max_position_embeddings=4096, rms_norm_eps=1e-5,
        num_key_value_heads=2, hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True, bos_token_id=50256,
        eos_token_id=50256,
    ),
}  # fmt: skip


def architectures() -> Registry:
    """Return the registry of model classes, with those of other packages (entry points `octavo.models`)."""
    registry = Registry("model", {name: row.path for name, row in _ROWS.items()})
    extend(registry, "octavo.models")
    return registry


def config_defaults(architecture: str) -> Mapping[str, Any]:
    """Return what the architecture's configuration class has for common keys."""
    return _ROWS[architecture].defaults if architecture in _ROWS else {}


def of_model_type(model_type: str) -> str | None:
    """Return the architecture of a file that says no more than its `model_type`, None if no row has it."""
    return next((name for name, row in _ROWS.items() if row.model_type == model_type), None)
