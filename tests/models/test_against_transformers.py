"""Every parameter random, every variant of a config: logits equal those of transformers in float32, however they are computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.oracle import assemble_folder, make_oracle, oracle_logits, random_tokens
from tests.models.paged_run import PagedRun

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-gqa": ("llama", {"tie_word_embeddings": False}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-mha": ("llama", {"num_key_value_heads": 6}),
    "llama-mqa": ("llama", {"num_key_value_heads": 1}),
    "llama-wide-heads": ("llama", {"head_dim": 20}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama-rope-llama3": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-rope-linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}},
    ),
    "mistral-window": ("mistral", {"sliding_window": 21}),
    "mistral-full": ("mistral", {"sliding_window": None}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3-bias": ("qwen3", {"attention_bias": True}),
    "qwen3-some-layers-slide": (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 13, "max_window_layers": 1},
    ),
}
# Keys that these have under other names, or not at all.
OTHER = {"intermediate_size": ..., "num_key_value_heads": ..., "head_dim": ...}
VARIANTS |= {
    "gpt2": ("gpt2", OTHER),
    "gpt2-scales": (
        "gpt2",
        {**OTHER, "n_inner": 60, "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
    ),
    "gpt2-untied": ("gpt2", {**OTHER, "activation_function": "relu", "tie_word_embeddings": False}),
    "starcoder2": ("starcoder2", {}),
    "starcoder2-window": ("starcoder2", {"sliding_window": 21, "use_bias": False}),
    "gpt-neox": ("gpt_neox", {}),
    "gpt-neox-serial": (
        "gpt_neox",
        {
            "use_parallel_residual": False,
            "attention_bias": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
        },
    ),
    "opt": ("opt", {**OTHER, "ffn_dim": 80}),
    "opt-norms-after-narrow": (
        "opt",
        {**OTHER, "ffn_dim": 80, "do_layer_norm_before": False, "word_embed_proj_dim": 32},
    ),
    "opt-plain": (
        "opt",
        {
            **OTHER,
            "ffn_dim": 80,
            "enable_bias": False,
            "layer_norm_elementwise_affine": False,
            "_remove_final_layer_norm": True,
        },
    ),
    "falcon-one-key-head": ("falcon", OTHER),
    "falcon-groups": ("falcon", {**OTHER, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon-groups-one-norm": (
        "falcon",
        {**OTHER, "new_decoder_architecture": True, "num_kv_heads": 3, "num_ln_in_parallel_attn": 1},
    ),
    "falcon-alibi": ("falcon", {**OTHER, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}),
    "falcon-alibi-one-key-head": ("falcon", {**OTHER, "alibi": True, "ffn_hidden_size": 60}),
    "stablelm": ("stablelm", {}),
    "stablelm-parallel": (
        "stablelm",
        {"use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True, "partial_rotary_factor": 0.5},
    ),
}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0}
SFS = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 13}
VARIANTS |= {
    "llama-rope-yarn": ("llama", {"rope_parameters": YARN}),
    "qwen2-listed-kinds": ("qwen2", {**SFS, "use_sliding_window": True}),
    "phi3-window": ("phi3", {"sliding_window": 21}),
    "gemma2-plain": (
        "gemma2",
        {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True},
    ),
    "gemma3-listed-kinds-stretched": (
        "gemma3_text",
        {
            **SFS,
            "rope_parameters": {
                "full_attention": LINEAR,
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
    ),
    "cohere2-bias-untied": (
        "cohere2",
        {**SFS, "logit_scale": 0.5, "attention_bias": True, "tie_word_embeddings": False},
    ),
    "olmo2-bias-mqa": ("olmo2", {"attention_bias": True, "num_key_value_heads": 1}),
    "glm4-plain": ("glm4", {"attention_bias": False, "partial_rotary_factor": 1.0, "tie_word_embeddings": True}),
    "smollm3-every-third": ("smollm3", {"no_rope_layer_interval": 3, "attention_bias": True, "mlp_bias": True}),
}
TOKENS = random_tokens(75)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_in_chunks_then_token_by_token(tmp_path: Path, variant: str) -> None:
    model_type, options = VARIANTS[variant]
    oracle = make_oracle(model_type, options)
    oracle.save_pretrained(tmp_path)
    expected = oracle_logits(oracle, TOKENS)
    assert expected.std() > 0.5, "an oracle that says the same of all tokens proves nothing"
    run = PagedRun(assemble_folder(tmp_path))
    torch.testing.assert_close(run.prefill_and_decode(TOKENS, [7, 33, 16]), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("variant", ["llama-gqa", "mistral-window", "qwen3-some-layers-slide", "falcon-alibi", "gpt2"])
def test_rows_side_by_side_do_not_touch_each_other(tmp_path: Path, variant: str) -> None:
    model_type, options = VARIANTS[variant]
    oracle = make_oracle(model_type, options)
    oracle.save_pretrained(tmp_path)
    texts = [random_tokens(count, seed=count) for count in (64, 41, 18, 1)]
    expected = [oracle_logits(oracle, text) for text in texts]
    run = PagedRun(assemble_folder(tmp_path), num_pages=128)
    rows, done = [run.row() for _ in texts], [0] * len(texts)
    # Every step mixes rows that decode with rows whose prompt comes in chunks; rows end at different times.
    counts = ([9, 1, 17, 1], [30, 25, 1, 0], [1, 1, 0, 0], [24, 14, 0, 0])
    for step in counts:
        work = [(rows[i], texts[i][done[i] : done[i] + count]) for i, count in enumerate(step) if count]
        found = run.step(work).split([len(tokens) for _, tokens in work])
        for i, logits in zip([i for i, count in enumerate(step) if count], found, strict=True):
            want = expected[i][done[i] : done[i] + step[i]]
            torch.testing.assert_close(logits, want, rtol=1e-4, atol=1e-3)
            done[i] += step[i]
    assert done == [len(text) for text in texts]


def test_frequencies_far_out_follow_the_config(tmp_path: Path) -> None:
    oracle = make_oracle("llama", {"max_position_embeddings": 4096, "rope_parameters": {**LLAMA3_ROPE, "factor": 32.0}})
    oracle.save_pretrained(tmp_path)
    rotary = oracle.model.rotary_emb
    cos, sin = rotary(torch.zeros(1), torch.arange(4096)[None])
    table = assemble_folder(tmp_path).model.get_submodule("decoder.layers.0.attention.attend.rope").table
    torch.testing.assert_close(table, torch.cat((cos[0, :, :4], sin[0, :, :4]), -1), rtol=0, atol=1e-5)


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    oracle = make_oracle("qwen3", {})
    oracle.save_pretrained(tmp_path)
    expected = oracle_logits(oracle, TOKENS).log_softmax(-1)
    found = PagedRun(assemble_folder(tmp_path, dtype="bfloat16")).prefill_and_decode(TOKENS, [40]).log_softmax(-1)
    difference = (found - expected).abs()
    assert difference.mean() < 0.05
    assert difference.max() < 1.0
    best = expected.topk(2, -1).values
    clear = best[:, 0] - best[:, 1] > 0.5
    assert clear.sum() > 20
    assert (found.argmax(-1) == expected.argmax(-1))[clear].all()
