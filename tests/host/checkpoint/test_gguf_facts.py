"""Facts from GGUF metadata."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest

from octavo.base.errors import CheckpointError
from octavo.base.facts import RopeFacts
from octavo.checkpoint.gguf import read_gguf
from octavo.checkpoint.gguf_facts import read_gguf_facts
from tests.host.checkpoint.gguf_writer import Tensor, embedding, llama_metadata, write


def facts(tmp_path: Path, tensors: list[Tensor] | None = None, **changes):
    path = write(tmp_path / "m.gguf", llama_metadata(**changes), [embedding(), *(tensors or [])])
    return read_gguf_facts(read_gguf(path))


def test_smollm2(demo_gguf: Path):
    found = read_gguf_facts(read_gguf(str(demo_gguf)))
    assert found.architecture == "LlamaForCausalLM"
    assert (found.vocab_size, found.hidden_size, found.intermediate_size) == (49152, 576, 1536)
    assert (found.num_layers, found.num_heads, found.num_kv_heads, found.head_dim) == (30, 9, 3, 64)
    assert (found.max_position, found.norm_eps) == (8192, 1e-5)
    assert found.rope == RopeFacts(dim=64, theta=100000.0)
    assert found.tie_embeddings
    assert found.dtype == "float32"
    assert found.eos_token_ids == (2,)
    assert found.layer_kinds == ()
    assert found.sliding_window is None


def test_every_end_of_turn_counts_once(tmp_path: Path):
    found = facts(tmp_path, tokenizer__ggml__eot_token_id=5, tokenizer__ggml__eom_token_id=2)
    assert found.eos_token_ids == (2, 5)


def test_an_output_matrix_unties(tmp_path: Path):
    assert not facts(tmp_path, [("output.weight", 0, (7, 32), bytes(7 * 32 * 4))]).tie_embeddings


@pytest.mark.parametrize(("kind", "itemsize", "dtype"), [(0, 4, "float32"), (1, 2, "float16"), (30, 2, "bfloat16")])
def test_dtype_is_that_of_the_matrices(tmp_path: Path, kind: int, itemsize: int, dtype: str):
    norm: Tensor = ("output_norm.weight", 0, (32,), bytes(128))
    path = write(tmp_path / "m.gguf", llama_metadata(), [embedding(kind, itemsize), norm])
    assert read_gguf_facts(read_gguf(path)).dtype == dtype


def test_quantized_files_are_float32(tmp_path: Path):
    quantized: Tensor = ("blk.0.attn_q.weight", 3, (32, 32), bytes(32 * 20))
    path = write(tmp_path / "m.gguf", llama_metadata(), [embedding(1, 2), quantized])
    assert read_gguf_facts(read_gguf(path)).dtype == "float32"


def test_head_dim_and_biases(tmp_path: Path):
    bias: Tensor = ("blk.0.attn_q.bias", 0, (64,), bytes(256))
    found = facts(tmp_path, [bias], llama__attention__key_length=16, llama__attention__value_length=16)
    assert (found.head_dim, found.rope.dim, found.attention_bias, found.mlp_bias) == (16, 16, True, False)


def test_linear_rope(tmp_path: Path):
    found = facts(tmp_path, llama__rope__scaling__type="linear", llama__rope__scaling__factor=4.0)
    assert found.rope == RopeFacts(dim=8, theta=50000.0, kind="linear", factor=4.0)


def llama3_divisors(dim: int, theta: float, factor: float) -> list[float]:
    """As Llama 3.1's reference code scales frequencies: by wavelength, with bounds at 8192 / 1 and 8192 / 4."""
    divisors: list[float] = []
    for pair in range(dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * pair / dim)
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors


def test_llama3_rope_is_recognized_by_its_divisors(tmp_path: Path):
    divisors = llama3_divisors(128, 500000.0, 32.0)
    assert 0 < sum(1 < d < 32 for d in divisors) < 64
    tensor: Tensor = ("rope_freqs.weight", 0, (64,), struct.pack("<64f", *divisors))
    sizes = {"llama__attention__key_length": 128, "llama__attention__value_length": 128}
    found = facts(tmp_path, [tensor], llama__rope__freq_base=500000.0, **sizes)
    assert found.rope == RopeFacts(
        dim=128, theta=500000.0, kind="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position=8192,
    )  # fmt: skip
    bent: Tensor = ("rope_freqs.weight", 0, (64,), struct.pack("<64f", *divisors[:20], 7.0, *divisors[21:]))
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        facts(tmp_path, [bent], llama__rope__freq_base=500000.0, **sizes)


def test_qwen3(tmp_path: Path):
    metadata = {key.replace("llama", "qwen3"): value for key, value in llama_metadata().items()}
    metadata |= {"general.architecture": "qwen3", "qwen3.attention.key_length": 16, "qwen3.attention.value_length": 16}
    found = read_gguf_facts(read_gguf(write(tmp_path / "m.gguf", metadata, [embedding()])))
    assert (found.architecture, found.head_dim, found.rope.theta) == ("Qwen3ForCausalLM", 16, 50000.0)


def gemma(tmp_path: Path, arch: str, **changes):
    metadata = {key.replace("llama", arch): value for key, value in llama_metadata().items()}
    metadata |= {"general.architecture": arch, f"{arch}.attention.sliding_window": 512}
    metadata |= {f"{arch}.{key.replace('__', '.')}": value for key, value in changes.items()}
    return read_gguf_facts(read_gguf(write(tmp_path / "m.gguf", metadata, [embedding()])))


def test_gemma3(tmp_path: Path):
    sizes = {"attention__key_length": 16, "attention__value_length": 16}
    found = gemma(tmp_path, "gemma3", rope__scaling__type="linear", rope__scaling__factor=8.0, **sizes)
    assert (found.architecture, found.activation, found.tie_embeddings) == ("Gemma3ForCausalLM", "gelu_tanh", True)
    assert found.rope == RopeFacts(dim=16, theta=50000.0, kind="linear", factor=8.0)
    assert found.sliding_rope == RopeFacts(dim=16, theta=10000.0)
    assert (found.sliding_window, found.layer_kinds) == (512, ())
    assert found.extras == {"query_pre_attn_scalar": 16}
    # Of the largest alone, scores are scaled by hidden size per head.
    found = gemma(tmp_path, "gemma3", rope__freq_base_swa=777.0, block_count=62, final_logit_softcapping=30.0, **sizes)
    assert found.sliding_rope == RopeFacts(dim=16, theta=777.0)
    assert found.extras == {"query_pre_attn_scalar": 8, "final_logit_softcapping": 30.0}


def test_gemma2(tmp_path: Path):
    sizes = {"attention__key_length": 16, "attention__value_length": 16}
    found = gemma(tmp_path, "gemma2", attn_logit_softcapping=50.0, final_logit_softcapping=30.0, **sizes)
    assert (found.architecture, found.sliding_window, found.sliding_rope) == ("Gemma2ForCausalLM", 512, None)
    assert found.extras == {
        "query_pre_attn_scalar": 16, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0
    }  # fmt: skip
    # Of the largest alone, scores are scaled by hidden size per head.
    assert gemma(tmp_path, "gemma2", block_count=46, **sizes).extras == {"query_pre_attn_scalar": 8}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"general__architecture": "mamba"},
            "general.architecture is 'mamba'; Octavo reads llama, qwen2, qwen3, gemma2, gemma3",
        ),
        ({"llama__block_count": None}, "llama.block_count: is missing"),
        ({"llama__block_count": 0}, "llama.block_count must be positive"),
        ({"llama__block_count": 10**9}, "llama.block_count must be at most"),
        ({"llama__attention__head_count_kv": 3}, "4 heads, 3 key-value heads"),
        ({"llama__attention__head_count_kv": [2, 1]}, "head_count_kv differs between layers"),
        ({"llama__attention__sliding_window": 8}, "llama.attention.sliding_window is 8"),
        ({"llama__expert_count": 8}, "llama.expert_count is 8"),
        ({"llama__rope__scaling__type": "yarn"}, "rope.scaling.type is 'yarn'"),
        ({"llama__embedding_length": 64}, "token_embd.weight is [7, 32]"),
        ({"llama__context_length": "long"}, "llama.context_length: must be a whole number"),
    ],
)
def test_what_is_not_understood_is_named(tmp_path: Path, changes: dict[str, object], message: str):
    with pytest.raises(CheckpointError) as error:
        facts(tmp_path, **changes)
    assert message in error.value.message
    assert "m.gguf" in error.value.message


def test_equal_values_per_layer_are_one(tmp_path: Path):
    assert facts(tmp_path, llama__attention__head_count_kv=[2, 2]).num_kv_heads == 2
