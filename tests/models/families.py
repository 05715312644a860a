"""The architectures under test: one row each, a tiny configuration of the transformers model that is its oracle.

Each is measured in the same way (test_families.py), and docs/models.md lists what came out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.models.oracle import make_oracle
from tests.models.witnesses import BORROWING, DELTA, LATENT, MOE, settled


def _save(oracle: Any, folder: Path) -> None:
    oracle.save_pretrained(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A row. options: of the oracle's configuration, beside the common tiny ones. save: the oracle as a checkpoint."""

    model_type: str
    options: Mapping[str, Any] = field(default_factory=dict)
    save: Callable[[Any, Path], None] = _save

    def write(self, folder: Path) -> Any:
        """Write a checkpoint with random weights and return the oracle that has them."""
        oracle = settled(make_oracle(self.model_type, self.options))
        self.save(oracle, folder)
        return oracle


def _save_internlm2(oracle: Any, folder: Path) -> None:
    """A Llama under InternLM2's names: each key-value head's queries, its key and its value lie together."""
    groups, tensors = oracle.config.num_key_value_heads, dict(oracle.state_dict())
    renamed = {
        "embed_tokens": "tok_embeddings",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
        "lm_head": "output",
    }
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if ".q_proj" in name:
            parts = [tensors[name.replace("q_proj", f"{x}_proj")].unflatten(0, (groups, -1)) for x in "qkv"]
            name, tensor = name.replace("self_attn.q_proj", "attention.wqkv"), torch.cat(parts, 1).flatten(0, 1)
        elif ".k_proj" in name or ".v_proj" in name:
            continue
        for theirs, other in renamed.items():
            name = name.replace(theirs, other)
        found[name] = tensor.contiguous()
    config = {
        **oracle.config.to_dict(),
        "architectures": ["InternLM2ForCausalLM"],
        "bias": oracle.config.attention_bias,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(found, folder / "model.safetensors")


# Keys that some have under other names, or not at all.
OTHER = {"intermediate_size": ..., "num_key_value_heads": ..., "head_dim": ...}
SLIDING = {"sliding_window": 13}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "short_factor": [1.0, 1.1],
    "long_factor": [1.5, 6.0],
    "partial_rotary_factor": 0.5,
}
FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(model_type="llama"),
    "MistralForCausalLM": Family(model_type="mistral", options={"sliding_window": 21}),
    "Qwen2ForCausalLM": Family(
        model_type="qwen2", options={"use_sliding_window": True, **SLIDING, "max_window_layers": 1}
    ),
    "Qwen3ForCausalLM": Family(model_type="qwen3", options={"tie_word_embeddings": True}),
    "Phi3ForCausalLM": Family(
        model_type="phi3", options={"rope_parameters": LONG, "original_max_position_embeddings": 16}
    ),
    "Gemma2ForCausalLM": Family(
        model_type="gemma2",
        options={
            **SLIDING,
            "num_hidden_layers": 4,
            "query_pre_attn_scalar": 5,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 20.0,
        },
    ),
    "Gemma3ForCausalLM": Family(
        model_type="gemma3_text",
        options={**SLIDING, "num_hidden_layers": 7, "query_pre_attn_scalar": 5},
    ),
    "GraniteForCausalLM": Family(
        model_type="granite",
        options={"embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.6}
        | {"logits_scaling": 0.7, "attention_bias": True, "mlp_bias": True},
    ),
    "Olmo2ForCausalLM": Family(model_type="olmo2"),
    "Cohere2ForCausalLM": Family(model_type="cohere2", options={**SLIDING, "num_hidden_layers": 4, "logit_scale": 0.4}),
    "InternLM2ForCausalLM": Family(model_type="llama", options={"attention_bias": True}, save=_save_internlm2),
    "Glm4ForCausalLM": Family(model_type="glm4"),
    "SmolLM3ForCausalLM": Family(
        model_type="smollm3",
        options={"no_rope_layers": [1, 0, 1], "use_sliding_window": True, **SLIDING, "tie_word_embeddings": True},
    ),
    "GPT2LMHeadModel": Family(model_type="gpt2", options=OTHER),
    "Starcoder2ForCausalLM": Family(model_type="starcoder2", options=SLIDING),
    "GPTNeoXForCausalLM": Family(model_type="gpt_neox"),
    "OPTForCausalLM": Family(model_type="opt", options={**OTHER, "ffn_dim": 80}),
    "FalconForCausalLM": Family(
        model_type="falcon", options={**OTHER, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}
    ),
    "StableLmForCausalLM": Family(model_type="stablelm", options={"use_qkv_bias": True, "qk_layernorm": True}),
    "Qwen3MoeForCausalLM": Family(model_type="qwen3_moe", options=MOE),
    "Gemma4ForCausalLM": Family(model_type="gemma4_text", options=BORROWING),
    "DeepseekV2ForCausalLM": Family(model_type="deepseek_v2", options=LATENT),
    "Qwen3NextForCausalLM": Family(model_type="qwen3_next", options=DELTA),
}
# With an encoder, and so measured otherwise (encoders.py): their types in transformers.
ENCODERS = {"BertModel": "bert", "BartForConditionalGeneration": "bart"}
