"""Facts from config.json: both spellings, defaults, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from octavo.base.errors import CheckpointError
from octavo.base.facts import ModelFacts, RopeFacts
from octavo.checkpoint.config_keys import settle_extras
from octavo.checkpoint.hf_config import read_hf_facts

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1234.5,
    "torch_dtype": "bfloat16",
}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "head_dim": 16}
MISTRAL = {"architectures": ["MistralForCausalLM"]}


def read(tmp_path: Path, generation: dict[str, Any] | None = None, **changes: Any) -> ModelFacts:
    config = {key: value for key, value in (BASE | changes).items() if value != "absent"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    return read_hf_facts(tmp_path, weights_dtype="float16")


def test_llama(tmp_path: Path):
    found = read(tmp_path, tie_word_embeddings=True, attention_bias=True, eos_token_id=[2, -1])
    assert found == ModelFacts(
        architecture="LlamaForCausalLM", dtype="bfloat16", vocab_size=100, hidden_size=64, intermediate_size=96,
        num_layers=4, num_heads=8, num_kv_heads=2, head_dim=8, max_position=512, norm_eps=1e-5,
        rope=RopeFacts(dim=8, theta=1234.5), tie_embeddings=True, attention_bias=True,
        eos_token_ids=(2,),
    )  # fmt: skip


def test_what_is_left_out_has_the_architectures_default(tmp_path: Path):
    left_out = dict.fromkeys(("num_key_value_heads", "rms_norm_eps", "rope_theta", "torch_dtype"), "absent")
    found = read(tmp_path, **left_out)
    assert (found.num_kv_heads, found.norm_eps, found.rope.theta, found.dtype) == (8, 1e-6, 10000.0, "float16")
    assert found.eos_token_ids == (2,)
    assert read(tmp_path, **MISTRAL, num_attention_heads=16, num_key_value_heads="absent").num_kv_heads == 8
    assert read(tmp_path, **MISTRAL, num_key_value_heads=None).num_kv_heads == 8
    assert read(tmp_path, architectures=["Qwen3ForCausalLM"]).head_dim == 128
    assert read(tmp_path, **QWEN3).eos_token_ids == ()
    assert read(tmp_path, eos_token_id=None).eos_token_ids == ()
    assert read(tmp_path, architectures="absent", model_type="mistral").architecture == "MistralForCausalLM"


@pytest.mark.parametrize("changes", [{"dtype": "float32"}, {"dtype": "torch.float32"}, {"torch_dtype": "float32"}])
def test_dtype_spellings(tmp_path: Path, changes: dict[str, str]):
    assert read(tmp_path, **changes).dtype == "float32"


def test_ends_of_both_files_are_joined(tmp_path: Path):
    found = read(tmp_path, {"eos_token_id": [9, 7, 8]}, eos_token_id=7)
    assert found.eos_token_ids == (7, 9, 8)
    assert read(tmp_path, {"eos_token_id": 5}, eos_token_id=[4, 5]).eos_token_ids == (4, 5)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope_scaling": None}, RopeFacts(dim=8, theta=1234.5)),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.5}},
            RopeFacts(dim=8, theta=1234.5, kind="linear", factor=2.5),
        ),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2}},
            RopeFacts(dim=8, theta=1234.5, kind="linear", factor=2.0),
        ),
        (
            {"rope_theta": "absent", "rope_parameters": {"rope_type": "default", "rope_theta": 77.0}},
            RopeFacts(dim=8, theta=77.0),
        ),
        ({"rope_parameters": {"rope_type": "default"}}, RopeFacts(dim=8, theta=1234.5)),
        (
            {"rope_scaling": LLAMA3 | {"rope_type": "llama3"}},
            RopeFacts(dim=8, theta=1234.5, kind="llama3", factor=8.0, original_max_position=256),
        ),
        (
            {"rope_parameters": LLAMA3 | {"type": "llama3", "rope_theta": 5.0, "low_freq_factor": 2.0}},
            RopeFacts(dim=8, theta=5.0, kind="llama3", factor=8.0, low_freq_factor=2.0, original_max_position=256),
        ),
        ({"partial_rotary_factor": 0.5}, RopeFacts(dim=4, theta=1234.5)),
    ],
)
def test_rope(tmp_path: Path, changes: dict[str, Any], expected: RopeFacts):
    assert read(tmp_path, **changes).rope == expected


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
GROWTH = 0.1 * math.log(4.0)
LONG = {"short_factor": [1.0, 1.0, 1.5, 2], "long_factor": [1, 2, 4, 8.5]}
LOCAL = {"rope_type": "default", "rope_theta": 10.0}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"rope_scaling": {"type": "dynamic", "factor": 3.0}},
            RopeFacts(dim=8, theta=1234.5, kind="dynamic", factor=3.0, original_max_position=512),
        ),
        (
            {"rope_parameters": YARN},
            RopeFacts(
                dim=8, theta=1234.5, kind="yarn", factor=4.0, original_max_position=128, attention_factor=GROWTH + 1
            ),
        ),
        (
            {"rope_parameters": YARN | {"mscale": 0.5, "mscale_all_dim": 2.0, "beta_fast": 16, "truncate": False}},
            RopeFacts(
                dim=8, theta=1234.5, kind="yarn", factor=4.0, original_max_position=128, beta_fast=16.0, truncate=False,
                mscale=0.5, mscale_all_dim=2.0, attention_factor=(0.5 * GROWTH + 1) / (2 * GROWTH + 1),
            ),
        ),
        (
            {"rope_scaling": {"type": "su"} | LONG, "original_max_position_embeddings": 64},
            RopeFacts(
                dim=8, theta=1234.5, kind="longrope", factor=8.0, original_max_position=64,
                attention_factor=math.sqrt(1.5), short_factors=(1.0, 1.0, 1.5, 2.0), long_factors=(1.0, 2.0, 4.0, 8.5),
            ),
        ),
    ],
)  # fmt: skip
def test_stretched_rope(tmp_path: Path, changes: dict[str, Any], expected: RopeFacts):
    found = read(tmp_path, **changes)
    assert (found.rope, found.max_position) == (expected, 512)


def test_yarn_makes_the_context_as_long_as_it_stretches(tmp_path: Path):
    found = read(tmp_path, rope_parameters={"rope_type": "yarn", "factor": 4.0})
    assert (found.rope.original_max_position, found.max_position) == (512, 2048)


@pytest.mark.parametrize(
    ("changes", "full", "sliding"),
    [
        (
            {"rope_parameters": {"full_attention": YARN, "sliding_attention": LOCAL}},
            ("yarn", 1234.5),
            ("default", 10.0),
        ),
        ({"rope_parameters": {"sliding_attention": LOCAL}}, ("default", 1234.5), ("default", 10.0)),
        ({"rope_parameters": {"full_attention": YARN}}, ("yarn", 1234.5), None),
        ({"rope_scaling": YARN, "rope_local_base_freq": 11}, ("yarn", 1234.5), ("default", 11.0)),
    ],
)
def test_rope_of_layers_that_slide(tmp_path: Path, changes: dict[str, Any], full: Any, sliding: Any):
    found = read(tmp_path, **changes)
    assert (found.rope.kind, found.rope.theta) == full
    assert (found.sliding_rope and (found.sliding_rope.kind, found.sliding_rope.theta)) == sliding


def test_other_names_of_common_keys(tmp_path: Path):
    gone = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    changes = dict.fromkeys((*gone, "max_position_embeddings", "rms_norm_eps"), "absent")
    changes |= {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": None, "n_positions": 77, "layer_norm_epsilon": 1e-3}
    found = read(tmp_path, **changes, activation_function="gelu_new")
    assert (found.hidden_size, found.num_layers, found.num_heads, found.num_kv_heads, found.head_dim) == (
        32,
        3,
        4,
        4,
        8,
    )
    assert (found.intermediate_size, found.max_position, found.norm_eps) == (128, 77, 1e-3)
    assert found.activation == "gelu_tanh"
    with pytest.raises(CheckpointError, match="'n_head' must be at least 1"):
        read(tmp_path, **changes | {"n_head": 0})
    assert read(tmp_path, hidden_act="relu", hidden_activation="gelu").activation == "gelu"


def test_layer_kinds_are_those_that_are_listed(tmp_path: Path):
    listed = ["sliding_attention", "full_attention", "sliding_attention", "linear_attention"]
    found = read(tmp_path, layer_types=listed, sliding_window=9)
    assert (found.layer_kinds, found.sliding_window) == (("sliding", "full", "sliding", "linear"), 9)
    assert read(tmp_path, **MISTRAL).sliding_window == 4096
    assert read(tmp_path, **MISTRAL, sliding_window=None).sliding_window is None


def test_extras_are_what_is_neither_common_nor_harmless(tmp_path: Path):
    harmless = {
        "transformers_version": "5",
        "attention_dropout": 0.1,
        "top_k": 3,
        "use_cache": True,
    }
    assert read(tmp_path, **harmless, num_experts=8, logit_scale=1.0).extras == {"num_experts": 8, "logit_scale": 1.0}


def test_keys_with_an_underscore_are_nobodys_unless_a_model_declares_one(tmp_path: Path):
    facts = read(tmp_path, _name_or_path="x", _remove_final_layer_norm=True)
    assert settle_extras(facts, {}).architecture == "LlamaForCausalLM"
    assert settle_extras(facts, {"_remove_final_layer_norm": False}).extras["_remove_final_layer_norm"] is True


@pytest.mark.parametrize(
    ("key", "value"),
    [("alibi", True), ("num_experts", 1), ("logit_scale", 0.5), ("quantization_config", {"quant_method": "awq"})],
)
def test_a_key_that_a_model_does_not_know_is_refused(tmp_path: Path, key: str, value: Any):
    facts = read(tmp_path, **{key: value, "other": 2})
    with pytest.raises(CheckpointError, match=f"config key '{key}' is .* not support for LlamaForCausalLM") as error:
        settle_extras(facts, {"other": 1})
    assert error.value.field == key
    assert settle_extras(facts, {"other": 1, key: None, "third": 3}).extras == {key: value, "other": 2, "third": 3}


def test_neutral_values_are_let_pass(tmp_path: Path):
    neutral = {"alibi": False, "num_experts": 0, "logit_scale": 1.0, "no_rope_layers": [], "mup": None, "experts": {}}
    assert settle_extras(read(tmp_path, **neutral), {"mup": 3}).extras["mup"] is None


def test_overrides_change_keys_on_purpose(tmp_path: Path):
    read(tmp_path, alibi=True, hidden_act="relu")
    found = read_hf_facts(tmp_path, overrides={"alibi": None, "max_position_embeddings": 9, "hidden_act": "silu"})
    assert (found.extras, found.max_position, found.activation) == ({"alibi": None}, 9, "silu")
    assert read_hf_facts(tmp_path, overrides={"architectures": ["Qwen3ForCausalLM"]}).head_dim == 128


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "architectures"),
        ({"architectures": "absent"}, "architectures"),
        ({"hidden_size": "absent"}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_attention_heads": True}, "num_attention_heads"),
        ({"num_attention_heads": 7}, "head_dim"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"vocab_size": "absent"}, "vocab_size"),
        ({"hidden_act": "mish"}, "hidden_act"),
        ({"torch_dtype": "int8"}, "torch_dtype"),
        ({"dtype": 3}, "dtype"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"rope_scaling": {"rope_type": "ntk", "factor": 4.0}}, "rope_type"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "factor"),
        ({"rope_scaling": {"type": "longrope"}}, "short_factor"),
        ({"rope_scaling": {"type": "longrope"} | LONG | {"long_factor": [1.0] * 8}}, "long_factor"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2, "mscale": 1.5}}, "mscale"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"partial_rotary_factor": 0.4}, "partial_rotary_factor"),
        (QWEN3 | {"use_sliding_window": True, "layer_types": ["full_attention"]}, "layer_types"),
        (QWEN3 | {"use_sliding_window": True, "layer_types": ["chunked"] * 4}, "layer_types"),
    ],
)
def test_what_is_not_understood_names_file_and_key(tmp_path: Path, changes: dict[str, Any], key: str):
    with pytest.raises(CheckpointError) as error:
        read(tmp_path, **changes)
    assert repr(key) in error.value.message
    assert "config.json" in error.value.message
    assert error.value.field == key


@pytest.mark.parametrize("raw", ["{", "[]", "\x00", "[" * 100_000])
def test_a_broken_file_is_named(tmp_path: Path, raw: str):
    (tmp_path / "config.json").write_text(raw)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_hf_facts(tmp_path)


def test_code_that_comes_with_an_unknown_architecture_is_named(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"'OwnLM'.*; the code that comes with it \(auto_map\) is never run"):
        read(tmp_path, architectures=["OwnLM"], auto_map={"AutoModelForCausalLM": "own.OwnLM"})
    assert read(tmp_path, auto_map={"AutoModelForCausalLM": "own.OwnLM"}).architecture == "LlamaForCausalLM"
