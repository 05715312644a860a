"""Writes a transformers model as a GGUF file, the way llama.cpp's converter does, with the `gguf` package's quantizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

_MODULES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


# Where there are norms after attention and feed-forward too.
_SANDWICH = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(name: str, sandwich: bool = False) -> str:
    """Return what llama.cpp calls a Hugging Face tensor."""
    modules = _MODULES | _SANDWICH if sandwich else _MODULES
    module, suffix = name.rsplit(".", 1)
    if module.startswith("model.layers."):
        _, _, layer, module = module.split(".", 3)
        return f"blk.{layer}.{modules[module]}.{suffix}"
    return f"{modules[module]}.{suffix}"


def permuted(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Interleave the two halves of each head's rows, as the converter does for the llama architecture."""
    halves = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path, arch: str, model: Any, types: dict[str, gguf.GGMLQuantizationType], tensors_per_file: int = 0
) -> None:
    """Write the model and round its own parameters to what the file holds. types: by ending of the GGUF name; else F32."""
    config = model.config
    head_dim = model.model.layers[0].self_attn.head_dim
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=tensors_per_file)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    is_gemma = arch.startswith("gemma")
    if is_gemma:
        writer.add_sliding_window(config.sliding_window)
        # As the converter does, which leaves out the other.
        if config.final_logit_softcapping:
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
        if arch == "gemma2":
            writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    for name, parameter in model.named_parameters():
        stored_as = gguf_name(name, is_gemma)
        kind = next(
            (kind for ending, kind in types.items() if stored_as.endswith(ending)), gguf.GGMLQuantizationType.F32
        )
        weight = parameter.detach().numpy()
        rounded = gguf.quants.dequantize(gguf.quants.quantize(weight, kind), kind)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(rounded.reshape(weight.shape).astype(np.float32)))
        if is_gemma and stored_as.endswith("norm.weight"):
            weight = weight + 1
        if arch == "llama" and ".attn_q." in stored_as:
            weight = permuted(weight, config.num_attention_heads)
        if arch == "llama" and ".attn_k." in stored_as:
            weight = permuted(weight, config.num_key_value_heads)
        writer.add_tensor(stored_as, gguf.quants.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
