"""Facts from config.json: both spellings, defaults, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.base.errors import CheckpointError
from octavo.base.facts import ModelFacts, RopeFacts
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
    found = read(tmp_path, tie_word_embeddings=True, attention_bias=True, bos_token_id=3, pad_token_id=-1)
    assert found == ModelFacts(
        architecture="LlamaForCausalLM", dtype="bfloat16", vocab_size=100, hidden_size=64, intermediate_size=96,
        num_layers=4, num_heads=8, num_kv_heads=2, head_dim=8, max_position=512, norm_eps=1e-5,
        rope=RopeFacts(dim=8, theta=1234.5), layer_kinds=("full",) * 4, tie_embeddings=True, attention_bias=True,
        bos_token_id=3, eos_token_ids=(2,),
    )  # fmt: skip


def test_what_is_left_out_has_the_architectures_default(tmp_path: Path):
    left_out = dict.fromkeys(("num_key_value_heads", "rms_norm_eps", "rope_theta", "torch_dtype"), "absent")
    found = read(tmp_path, **left_out)
    assert (found.num_kv_heads, found.norm_eps, found.rope.theta, found.dtype) == (8, 1e-6, 10000.0, "float16")
    assert (found.bos_token_id, found.eos_token_ids) == (1, (2,))
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


@pytest.mark.parametrize(
    ("changes", "window", "kinds"),
    [
        (MISTRAL, 4096, "ssss"),
        (MISTRAL | {"sliding_window": 100}, 100, "ssss"),
        (MISTRAL | {"sliding_window": None}, None, "ffff"),
        (QWEN3 | {"sliding_window": 100}, None, "ffff"),
        (QWEN3 | {"sliding_window": 100, "use_sliding_window": True, "max_window_layers": 3}, 100, "fffs"),
        (QWEN3 | {"sliding_window": 100, "use_sliding_window": True}, None, "ffff"),
        (QWEN3 | {"sliding_window": None, "use_sliding_window": True, "max_window_layers": 1}, None, "ffff"),
        (
            QWEN3
            | {"sliding_window": 9, "use_sliding_window": True}
            | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]},
            9,
            "sfsf",
        ),
        ({"sliding_window": 100}, None, "ffff"),
    ],
)
def test_sliding_windows_by_each_architectures_rule(
    tmp_path: Path, changes: dict[str, Any], window: int | None, kinds: str
):
    found = read(tmp_path, **changes)
    assert found.sliding_window == window
    assert "".join(kind[0] for kind in found.layer_kinds) == kinds


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
        ({"hidden_act": "mish"}, "hidden_act"),
        ({"torch_dtype": "int8"}, "torch_dtype"),
        ({"dtype": 3}, "dtype"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type"),
        ({"rope_scaling": {"type": "longrope"}}, "rope_type"),
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
