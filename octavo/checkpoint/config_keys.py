"""The keys of config.json: which mean the same, which change no answer, and which a model has to know.

`ModelFacts.extras` holds the keys that are neither common (hf_config.py reads those) nor harmless. A model's file declares
those it computes with, and their defaults; any other is an error, unless its value means that nothing is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from octavo.base.errors import CheckpointError
from octavo.base.facts import ModelFacts

# Common keys under the names that configurations use for them; of several in one file the first counts.
SYNONYMS: Final = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "decoder_ffn_dim", "ffn_hidden_size", "d_ff"),
    "num_hidden_layers": ("decoder_layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "decoder_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"),
    "rms_norm_eps": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    "hidden_act": ("hidden_activation", "hidden_act", "activation_function", "activation"),
    "rope_theta": ("rope_theta", "rotary_emb_base"),
    "partial_rotary_factor": ("partial_rotary_factor", "rotary_pct"),
    "dtype": ("dtype", "torch_dtype"),
}
COMMON: Final = frozenset(name for names in SYNONYMS.values() for name in names) | {
    "architectures", "model_type", "vocab_size", "head_dim", "tie_word_embeddings", "attention_bias", "mlp_bias",
    "sliding_window", "layer_types", "rope_parameters", "rope_scaling", "rope_local_base_freq",
    "original_max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id",
}  # fmt: skip
_HARMLESS: Final = frozenset({
    # How it was made, saved and is to be loaded.
    "auto_map", "transformers_version", "transformers.js_config", "use_cache", "cache_implementation", "is_llama_config",
    "attn_implementation", "pretraining_tp", "gradient_checkpointing", "tokenizer_class", "name_or_path",
    "use_parallel_embedding", "unsloth_fixed", "unsloth_version", "bad_words_ids", "prefix", "torchscript", "use_bfloat16",
    "finetuning_task", "task_specific_params", "problem_type", "id2label", "label2id", "num_labels", "summary_type",
    "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout", "return_dict",
    "output_attentions", "output_hidden_states", "output_router_logits", "router_aux_loss_coef", "router_z_loss_coef",
    "chunk_size_feed_forward", "pruned_heads", "tf_legacy_loss", "initializer_range", "initializer_factor", "init_std",
    # How to sample, which generation_config.json says nowadays.
    "do_sample", "temperature", "top_k", "top_p", "typical_p", "min_length", "max_length", "num_beams", "num_beam_groups",
    "diversity_penalty", "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
    "early_stopping", "num_return_sequences", "output_scores", "return_dict_in_generate", "remove_invalid_values",
    "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id",
    "forced_eos_token_id", "sep_token_id", "decoder_start_token_id", "predict_special_tokens",
})  # fmt: skip
_HARMLESS_ENDINGS: Final = ("dropout", "_drop", "_pdrop", "dropout_prob", "_token_index")
# Factors: one changes nothing.
_FACTORS: Final = frozenset({
    "logit_scale", "logits_scaling", "embedding_multiplier", "residual_multiplier", "rope_ratio", "full_attn_mod",
    "interpolate_factor",
})  # fmt: skip


def extra_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a configuration that only its architecture can know."""
    return {
        key: value
        for key, value in config.items()
        if not (key in COMMON or key in _HARMLESS or key.endswith(_HARMLESS_ENDINGS))
    }


def settle_extras(facts: ModelFacts, declared: Mapping[str, Any]) -> ModelFacts:
    """Return facts whose extras hold every key that a model declares, with its default where the configuration has none.

    Raises CheckpointError naming a key that the model does not know and whose value is not neutral.
    """
    for key, value in facts.extras.items():
        if (
            key in declared
            or key.startswith("_")
            or value in (None, False, 0, [], {}, "")
            or (key in _FACTORS and value == 1)
        ):
            continue
        raise CheckpointError(
            f"config key {key!r} is {value!r}, which Octavo does not support for {facts.architecture}; "
            "hf_overrides can set it to null, if it changes nothing",
            field=key,
        )
    return replace(facts, extras={**declared, **facts.extras})
