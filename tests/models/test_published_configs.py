"""Configurations as their models were published, old keys and all: known, and as many parameters as they should have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from octavo.checkpoint.config_keys import settle_extras
from octavo.checkpoint.hf_config import read_hf_facts
from octavo.models.registry import load_model
from octavo.nn.formats.dense import DenseFormat
from octavo.nn.parallel.mesh import Mesh
from octavo.worker.loader.assemble import assign_formats, place

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


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_makes_the_model_that_was_published(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(PUBLISHED[name])
    facts = read_hf_facts(tmp_path)
    with torch.device("meta"):
        kind = load_model(facts.architecture)
        model: Any = kind(settle_extras(facts, kind.config_keys))
        values = json.loads(PUBLISHED[name])
        oracle = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values))
    assign_formats(model, lambda path: DenseFormat(dtype=torch.float16))
    place(model, Mesh(), torch.float16)
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in oracle.parameters())
    assert facts.max_position == oracle.config.max_position_embeddings
