"""Configurations as their models were published, old keys and all: known, and as many parameters as they should have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from octavo.checkpoint.architectures import architectures
from octavo.checkpoint.config_keys import settle_extras
from octavo.checkpoint.hf_config import read_hf_facts
from octavo.models.registry import load_model
from octavo.nn.formats.dense import DenseFormat
from octavo.nn.parallel.mesh import Mesh
from octavo.worker.loader.assemble import assign_formats, place
from tests.models.families import ENCODERS, FAMILIES

PUBLISHED: dict[str, str] = {
    "gpt2": """{
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
        "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
        "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
        "n_special": 0, "predict_special_tokens": true, "resid_pdrop": 0.1, "summary_activation": null,
        "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
        "summary_use_proj": true, "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
        "vocab_size": 50257}""",
    "gpt-neox-20b": """{
        "architectures": ["GPTNeoXForCausalLM"], "attention_probs_dropout_prob": 0, "bos_token_id": 0, "eos_token_id": 0,
        "hidden_act": "gelu_fast", "hidden_dropout_prob": 0, "hidden_size": 6144, "initializer_range": 0.02,
        "intermediate_size": 24576, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "model_type": "gpt_neox",
        "num_attention_heads": 64, "num_hidden_layers": 44, "rotary_emb_base": 10000, "rotary_pct": 0.25,
        "tie_word_embeddings": false, "torch_dtype": "float16", "transformers_version": "4.19.0.dev0",
        "use_cache": true, "vocab_size": 50432}""",
    "opt-350m": """{
        "_remove_final_layer_norm": false, "activation_dropout": 0.0, "activation_function": "relu",
        "architectures": ["OPTForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 2, "do_layer_norm_before": false,
        "dropout": 0.1, "eos_token_id": 2, "ffn_dim": 4096, "hidden_size": 1024, "init_std": 0.02, "layerdrop": 0.0,
        "max_position_embeddings": 2048, "model_type": "opt", "num_attention_heads": 16, "num_hidden_layers": 24,
        "pad_token_id": 1, "prefix": "</s>", "torch_dtype": "float16", "transformers_version": "4.20.0.dev0",
        "use_cache": true, "vocab_size": 50272, "word_embed_proj_dim": 512}""",
    "falcon-7b": """{
        "alibi": false, "apply_residual_connection_post_layernorm": false, "architectures": ["FalconForCausalLM"],
        "attention_dropout": 0.0, "bias": false, "bos_token_id": 11, "eos_token_id": 11, "hidden_dropout": 0.0,
        "hidden_size": 4544, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "falcon",
        "multi_query": true, "new_decoder_architecture": false, "num_attention_heads": 71, "num_hidden_layers": 32,
        "parallel_attn": true, "torch_dtype": "bfloat16", "transformers_version": "4.27.4", "use_cache": true,
        "vocab_size": 65024}""",
    "falcon-40b": """{
        "alibi": false, "apply_residual_connection_post_layernorm": false, "architectures": ["FalconForCausalLM"],
        "attention_dropout": 0.0, "bias": false, "bos_token_id": 11, "eos_token_id": 11, "hidden_dropout": 0.0,
        "hidden_size": 8192, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "falcon",
        "new_decoder_architecture": true, "num_attention_heads": 128, "num_hidden_layers": 60, "num_kv_heads": 8,
        "parallel_attn": true, "torch_dtype": "bfloat16", "transformers_version": "4.27.4", "use_cache": true,
        "vocab_size": 65024}""",
    "starcoder2-3b": """{
        "activation_function": "gelu", "architectures": ["Starcoder2ForCausalLM"], "attention_dropout": 0.1,
        "residual_dropout": 0.1, "embedding_dropout": 0.1, "attention_softmax_in_fp32": true, "bos_token_id": 0,
        "eos_token_id": 0, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072, "initializer_range": 0.018042,
        "intermediate_size": 12288, "layer_norm_epsilon": 1e-05, "max_position_embeddings": 16384,
        "mlp_type": "default", "model_type": "starcoder2", "norm_epsilon": 1e-05, "norm_type": "layer_norm",
        "num_attention_heads": 24, "num_hidden_layers": 30, "num_key_value_heads": 2, "rope_theta": 999999.4420358813,
        "scale_attention_softmax_in_fp32": true, "scale_attn_weights": true, "sliding_window": 4096,
        "torch_dtype": "bfloat16", "transformers_version": "4.37.0.dev0", "use_bias": true, "use_cache": true,
        "vocab_size": 49152}""",
    "stablelm-2-1.6b": """{
        "architectures": ["StableLmForCausalLM"], "bos_token_id": 100257, "eos_token_id": 100257, "hidden_act": "silu",
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5632, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 4096, "model_type": "stablelm", "num_attention_heads": 32, "num_hidden_layers": 24,
        "num_key_value_heads": 32, "partial_rotary_factor": 0.25, "rope_theta": 10000, "tie_word_embeddings": false,
        "torch_dtype": "float16", "transformers_version": "4.38.0", "use_cache": true, "use_qkv_bias": true,
        "vocab_size": 100352}""",
}
PUBLISHED |= {
    "qwen2.5-7b": """{
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
        "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02, "intermediate_size": 18944,
        "max_position_embeddings": 32768, "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 28,
        "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
        "sliding_window": 131072, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.43.1", "use_cache": true, "use_sliding_window": false, "vocab_size": 152064}""",
    "phi-3-mini-4k": """{
        "_name_or_path": "Phi-3-mini-4k-instruct", "architectures": ["Phi3ForCausalLM"], "attention_dropout": 0.0,
        "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "bos_token_id": 1, "embd_pdrop": 0.0,
        "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02,
        "intermediate_size": 8192, "max_position_embeddings": 4096, "model_type": "phi3", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 32, "original_max_position_embeddings": 4096,
        "pad_token_id": 32000, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
        "sliding_window": 2047, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.40.2", "use_cache": true, "attention_bias": false, "vocab_size": 32064}""",
    "gemma-2-2b": """{
        "architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 107],
        "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02,
        "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8,
        "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0, "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "torch_dtype": "bfloat16",
        "transformers_version": "4.42.4", "use_cache": true, "vocab_size": 256000}""",
    "gemma-3-1b": """{
        "architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "attn_logit_softcapping": null, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 106],
        "final_logit_softcapping": null, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152,
        "initializer_range": 0.02, "intermediate_size": 6912, "max_position_embeddings": 32768,
        "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
        "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
        "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
        "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "use_cache": true, "vocab_size": 262144}""",
    "granite-3.1-2b": """{
        "architectures": ["GraniteForCausalLM"], "attention_bias": false, "attention_dropout": 0.1,
        "attention_multiplier": 0.015625, "bos_token_id": 0, "embedding_multiplier": 12.0, "eos_token_id": 0,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
        "logits_scaling": 8.0, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "granite",
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 0,
        "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 5000000.0,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.47.0", "use_cache": true,
        "vocab_size": 49155}""",
    "olmo-2-7b": """{
        "architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "eos_token_id": 100257,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008,
        "max_position_embeddings": 4096, "model_type": "olmo2", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "pad_token_id": 100277, "rms_norm_eps": 1e-06, "rope_scaling": null,
        "rope_theta": 500000, "tie_word_embeddings": false, "torch_dtype": "float32",
        "transformers_version": "4.47.0.dev0", "use_cache": false, "vocab_size": 100352}""",
    "c4ai-command-r7b": """{
        "architectures": ["Cohere2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 5,
        "cache_implementation": "hybrid", "eos_token_id": 255001, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "layer_norm_eps": 1e-05,
        "layer_switch": 4, "logit_scale": 0.25, "max_position_embeddings": 8192, "model_type": "cohere2",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "order_of_interleaved_layers": "local_attn_first", "pad_token_id": 0, "position_embedding_type": "rope_gptj",
        "rope_scaling": null, "rope_theta": 50000, "rotary_pct": 1.0, "sliding_window": 4096,
        "sliding_window_pattern": 4, "torch_dtype": "bfloat16", "transformers_version": "4.48.0.dev0",
        "use_cache": true, "use_embedding_sharing": true, "use_gated_activation": true, "use_parallel_block": true,
        "use_parallel_embedding": true, "vocab_size": 256000}""",
    "glm-4-9b-0414": """{
        "architectures": ["Glm4ForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
        "eos_token_id": [151329, 151336, 151338], "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 13696, "max_position_embeddings": 32768, "model_type": "glm4",
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2, "pad_token_id": 151329,
        "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "transformers_version": "4.52.0.dev0", "use_cache": true, "vocab_size": 151552}""",
    "smollm3-3b": """{
        "architectures": ["SmolLM3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": null, "eos_token_id": 128012, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 65536,
        "max_window_layers": 28, "mlp_bias": false, "model_type": "smollm3", "no_rope_layer_interval": 4,
        "no_rope_layers": [1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1,
        0, 1, 1, 1, 0], "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4,
        "pad_token_id": 128004, "pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_scaling": null,
        "rope_theta": 5000000.0, "sliding_window": null, "torch_dtype": "bfloat16",
        "transformers_version": "4.54.0.dev0", "use_cache": false, "use_sliding_window": false, "vocab_size": 128256}""",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_makes_the_model_that_was_published(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(PUBLISHED[name])
    facts = read_hf_facts(tmp_path)
    with torch.device("meta"):
        kind = load_model(facts.architecture)
        model: Any = kind(settle_extras(facts, kind.config_keys))
        values = json.loads(PUBLISHED[name])
        oracle = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values))
    assign_formats(model, lambda path, num_ins: DenseFormat(dtype=torch.float16))
    place(model, Mesh(), torch.float16)
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in oracle.parameters())
    assert facts.max_position == oracle.config.max_position_embeddings


SIZES = {"vocab_size": 90, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 8}
# That configuration is not in transformers.
KNOWN = [name for name in architectures() if name != "InternLM2ForCausalLM"]
TYPES = {name: family.model_type for name, family in FAMILIES.items()} | ENCODERS


@pytest.mark.parametrize("name", KNOWN)
def test_what_a_configuration_leaves_out_is_what_transformers_has(tmp_path: Path, name: str) -> None:
    sizes = SIZES | {"num_key_value_heads": 2} if TYPES[name] in ("qwen2", "qwen3", "stablelm") else SIZES
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name], **sizes}))
    facts, config = read_hf_facts(tmp_path), AutoConfig.for_model(TYPES[name], **sizes)
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    found = (
        facts.max_position,
        list(facts.eos_token_ids),
        facts.tie_embeddings,
    )
    expected = (config.max_position_embeddings, [token for token in ends if token is not None])
    assert found == (*expected, config.tie_word_embeddings)
    keys = {
        "rms_norm_eps": facts.norm_eps,
        "layer_norm_eps": facts.norm_eps,
        "layer_norm_epsilon": facts.norm_eps,
        "norm_epsilon": facts.norm_eps,
        "head_dim": facts.head_dim,
        "num_key_value_heads": facts.num_kv_heads,
        "attention_bias": facts.attention_bias,
    }
    written = config.to_dict()
    assert {key: value for key, value in keys.items() if key in written} == {
        k: written[k] for k in keys if k in written
    }
    ropes = written.get("rope_parameters") or {}
    full = ropes.get("full_attention", ropes)
    if full:
        assert facts.rope.theta == full["rope_theta"]
        # Proportional rotations go over the whole head, most of them by nothing.
        part = 1 if full["rope_type"] == "proportional" else full.get("partial_rotary_factor") or 1
        assert facts.rope.dim == int(facts.head_dim * part)
    assert (facts.sliding_rope is None) == ("sliding_attention" not in ropes)
    if facts.sliding_rope is not None:
        assert facts.sliding_rope.theta == ropes["sliding_attention"]["rope_theta"]
