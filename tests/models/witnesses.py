"""Tiny configurations of the models that keep and compute other things than a dense decoder does."""

from __future__ import annotations

from typing import Any

from tests.models.oracle import make_oracle

MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {
    "num_key_value_heads": 6,
    "kv_lora_rank": 16,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 10,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
BORROWING = {
    "num_hidden_layers": 7,
    "num_kv_shared_layers": 4,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2 + ["full_attention"],
    "sliding_window": 13,
    "global_head_dim": 12,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 199,
    "final_logit_softcapping": 20.0,
}
DELTA = {
    **MOE,
    "num_hidden_layers": 5,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "shared_expert_intermediate_size": 16,
    "partial_rotary_factor": 0.5,
}
WITNESSES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-moe": ("qwen3_moe", MOE),
    "qwen3-moe-normalized-some-layers-dense": ("qwen3_moe", {**MOE, "norm_topk_prob": True, "mlp_only_layers": [1]}),
    "qwen3-moe-every-other-layer": ("qwen3_moe", {**MOE, "num_hidden_layers": 4, "decoder_sparse_step": 2}),
    "gemma4": ("gemma4_text", BORROWING),
    "gemma4-double-wide": ("gemma4_text", {**BORROWING, "use_double_wide_mlp": True, "final_logit_softcapping": None}),
    "gemma4-nothing-borrowed": (
        "gemma4_text",
        {**BORROWING, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0},
    ),
    "qwen3-next": ("qwen3_next", DELTA),
    "qwen3-next-as-many-values-as-keys": (
        "qwen3_next",
        {**DELTA, "linear_num_value_heads": 2, "mlp_only_layers": [0, 1], "linear_conv_kernel_dim": 3},
    ),
    "deepseek-v2": ("deepseek_v2", LATENT),
    "deepseek-v2-lite": ("deepseek_v2", {**LATENT, "q_lora_rank": None, "mlp_bias": True, "attention_bias": True}),
    "deepseek-v2-stretched": (
        "deepseek_v2",
        {
            **LATENT,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 0.707,
                "mscale_all_dim": 0.5,
            },
        },
    ),
    "deepseek-v2-groups": (
        "deepseek_v2",
        {**LATENT, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
    ),
}
# A state that remembers: it forgets a few percent a token, not all but a few. Norms that add to a scale of one stay near it.
SHIFTS = {"A_log": -4.0, "layernorm.weight": -1.0, "_norm.weight": -1.0, "model.norm.weight": -1.0}


def make_witness(witness: str) -> Any:
    """Return the oracle of a witness."""
    model_type, options = WITNESSES[witness]
    return settled(make_oracle(model_type, options))


def settled(oracle: Any) -> Any:
    """Return an oracle whose recurrent layers, if it has any, remember."""
    for name, parameter in oracle.named_parameters() if oracle.config.model_type == "qwen3_next" else ():
        parameter.data += sum(shift for ending, shift in SHIFTS.items() if name.endswith(ending))
    return oracle
