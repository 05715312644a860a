"""A GGUF file's metadata → ModelFacts."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from typing import Final

from octavo.base.errors import CheckpointError
from octavo.base.facts import ModelFacts, RopeFacts
from octavo.checkpoint.gguf import GgufArray, GgufFile

_ARCHITECTURES: Final = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_PAIRS_TOGETHER: Final = ("llama",)
# Keys, after the architecture's prefix, that change what is computed; zero or one means that they do not.
_FOREIGN: Final = (
    "expert_count", "attention.sliding_window", "logit_scale", "residual_scale", "embedding_scale", "attention.scale",
    "attn_logit_softcapping", "final_logit_softcapping", "attention.clamp_kqv", "rope.scaling.attn_factor",
)  # fmt: skip
_END_KEYS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")
_STORED: Final = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Llama 3.1 and later all stretch the same way; files hold only the resulting divisors.
_LLAMA3: Final = RopeFacts(dim=0, kind="llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192)
_MOST_LAYERS: Final = 10_000


def keeps_pairs_together(file: GgufFile) -> bool:
    """Return whether query and key rows are stored with the two rows of a rotated pair side by side."""
    return file.text("general.architecture") in _PAIRS_TOGETHER


def read_gguf_facts(file: GgufFile) -> ModelFacts:
    """Return the facts of the model in a GGUF file; raises CheckpointError naming the file and key that is wrong."""
    prefix = file.text("general.architecture")
    if prefix not in _ARCHITECTURES:
        raise CheckpointError(
            f"{file.path}: general.architecture is {prefix!r}; Octavo reads {', '.join(_ARCHITECTURES)}"
        )
    _refuse_foreign(file, prefix)
    hidden_size = _positive(file, f"{prefix}.embedding_length")
    num_heads = _positive(file, f"{prefix}.attention.head_count")
    num_kv_heads = _positive(file, f"{prefix}.attention.head_count_kv", num_heads)
    num_layers = _positive(file, f"{prefix}.block_count")
    if num_layers > _MOST_LAYERS:
        raise CheckpointError(f"{file.path}: {prefix}.block_count must be at most {_MOST_LAYERS}, not {num_layers}")
    head_dim = _positive(file, f"{prefix}.attention.key_length", hidden_size // num_heads)
    if num_heads % num_kv_heads or file.integer(f"{prefix}.attention.value_length", head_dim) != head_dim:
        raise CheckpointError(
            f"{file.path}: {num_heads} heads, {num_kv_heads} key-value heads of {head_dim} do not fit"
        )
    bos = file.integer("tokenizer.ggml.bos_token_id", -1)
    pad = file.integer("tokenizer.ggml.padding_token_id", -1)
    ends = [file.integer(f"tokenizer.ggml.{key}", -1) for key in _END_KEYS]
    return ModelFacts(
        architecture=_ARCHITECTURES[prefix],
        dtype=_dtype(file),
        vocab_size=_vocab_size(file, hidden_size),
        hidden_size=hidden_size,
        intermediate_size=_positive(file, f"{prefix}.feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position=_positive(file, f"{prefix}.context_length"),
        norm_eps=_shortest(file.number(f"{prefix}.attention.layer_norm_rms_epsilon")),
        rope=_rope(file, prefix, head_dim),
        tie_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        bos_token_id=bos if bos >= 0 else None,
        eos_token_ids=tuple(dict.fromkeys(token for token in ends if token >= 0)),
        pad_token_id=pad if pad >= 0 else None,
    )


def _refuse_foreign(file: GgufFile, prefix: str) -> None:
    if file.integer("split.count", 0) > 1:
        raise CheckpointError(
            f"{file.path}: split.count: one model in several GGUF files is not supported; merge them first"
        )
    for name in _FOREIGN:
        key = f"{prefix}.{name}"
        if file.metadata.get(key) not in (None, 0, 1):
            raise CheckpointError(f"{file.path}: {key} is {file.metadata[key]!r}, which Octavo does not support")


def _positive(file: GgufFile, key: str, default: int | None = None) -> int:
    """Read a count; one that is given per layer must be the same in all."""
    if isinstance(file.metadata.get(key), GgufArray):
        values = set(file.numbers(key))
        if len(values) != 1:
            raise CheckpointError(f"{file.path}: {key} differs between layers, which Octavo does not support")
        value = int(values.pop())
    else:
        value = file.integer(key, default)
    if value <= 0:
        raise CheckpointError(f"{file.path}: {key} must be positive, not {value}")
    return value


def _shortest(value: float) -> float:
    """Undo the widening of a float32: 9.999999747378752e-06 was written as 1e-05."""
    return float(f"{value:.7g}")


def _vocab_size(file: GgufFile, hidden_size: int) -> int:
    table = file.tensors.get("token_embd.weight")
    if table is None:
        raise CheckpointError(f"{file.path}: tensor token_embd.weight is missing")
    if len(table.shape) != 2 or table.shape[1] != hidden_size:
        raise CheckpointError(
            f"{file.path}: tensor token_embd.weight is {list(table.shape)}, not [vocabulary, {hidden_size}]"
        )
    return table.shape[0]


def _dtype(file: GgufFile) -> str:
    """Name the type of the matrices if they share one that is not quantized; float32 otherwise."""
    types = {tensor.type for tensor in file.tensors.values() if len(tensor.shape) > 1}
    return _STORED.get(types.pop(), "float32") if len(types) == 1 else "float32"


def _rope(file: GgufFile, prefix: str, head_dim: int) -> RopeFacts:
    dim = _positive(file, f"{prefix}.rope.dimension_count", head_dim)
    if dim > head_dim or dim % 2:
        raise CheckpointError(f"{file.path}: {prefix}.rope.dimension_count is {dim}, with heads of {head_dim}")
    theta = _shortest(file.number(f"{prefix}.rope.freq_base", 10000.0))
    kind = file.text(f"{prefix}.rope.scaling.type", "none")
    factor = _shortest(file.number(f"{prefix}.rope.scaling.factor", file.number(f"{prefix}.rope.scale_linear", 1.0)))
    if "rope_freqs.weight" in file.tensors:
        return _llama3_rope(file, dim, theta)
    if kind not in ("none", "linear"):
        raise CheckpointError(
            f"{file.path}: {prefix}.rope.scaling.type is {kind!r}; Octavo has none, linear and llama3's"
        )
    if kind == "none" and factor in (0.0, 1.0):
        return RopeFacts(dim=dim, theta=theta)
    return RopeFacts(dim=dim, theta=theta, kind="linear", factor=factor)


def _llama3_rope(file: GgufFile, dim: int, theta: float) -> RopeFacts:
    """Recognize llama3's stretching by its divisors, one for each pair of a head."""
    tensor = file.tensors["rope_freqs.weight"]
    if tensor.type != "F32" or tensor.shape != (dim // 2,):
        raise CheckpointError(f"{file.path}: tensor rope_freqs.weight must be F32 [{dim // 2}]")
    found = struct.unpack(f"<{dim // 2}f", file.data("rope_freqs.weight"))
    rope = replace(_LLAMA3, dim=dim, theta=theta, factor=_shortest(max(found)))
    expected = [_divisor(rope, pair) for pair in range(dim // 2)]
    if any(not math.isclose(a, b, rel_tol=1e-3) for a, b in zip(found, expected, strict=True)):
        raise CheckpointError(f"{file.path}: tensor rope_freqs.weight holds divisors that are not llama3's")
    return rope


def _divisor(rope: RopeFacts, pair: int) -> float:
    """By how much llama3 divides the frequency of a pair: 1 for short waves, `factor` for long ones, smooth between."""
    wavelength = 2 * math.pi * rope.theta ** (2 * pair / rope.dim)
    turns = rope.original_max_position / wavelength
    smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    smooth = min(max(smooth, 0.0), 1.0)
    return 1.0 / ((1.0 - smooth) / rope.factor + smooth)
