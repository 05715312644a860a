"""A GGUF file's metadata → ModelFacts."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from typing import Any, Final

from octavo.base.errors import CheckpointError
from octavo.base.facts import Activation, ModelFacts, RopeFacts
from octavo.checkpoint.gguf import GgufArray, GgufFile


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """What files of an architecture have, and what they leave to their readers.

    pairs_together: query and key rows of a rotated pair lie side by side. norms_hold_one: norms are the whole scale, where
    Hugging Face's add one. known: keys of `_FOREIGN` that the model knows. local_theta: of layers that slide. wide: layers of
    the one size whose scores are scaled by hidden size per head instead of head size.
    """

    name: str
    pairs_together: bool = False
    norms_hold_one: bool = False
    known: tuple[str, ...] = ()
    activation: Activation = "silu"
    local_theta: float | None = None
    wide: int | None = None


_CAPS: Final = ("attn_logit_softcapping", "final_logit_softcapping")
_WINDOW: Final = "attention.sliding_window"
_ROWS: Final = {
    "llama": _Row(name="LlamaForCausalLM", pairs_together=True),
    "qwen2": _Row(name="Qwen2ForCausalLM"),
    "qwen3": _Row(name="Qwen3ForCausalLM"),
    "gemma2": _Row(
        name="Gemma2ForCausalLM", norms_hold_one=True, known=(_WINDOW, *_CAPS), activation="gelu_tanh", wide=46
    ),
    "gemma3": _Row(
        name="Gemma3ForCausalLM", norms_hold_one=True, known=(_WINDOW, *_CAPS), activation="gelu_tanh",
        local_theta=10000.0, wide=62,
    ),
}  # fmt: skip
# Keys, after the architecture's prefix, that change what is computed; zero or one means that they do not.
_FOREIGN: Final = (
    "expert_count", _WINDOW, "logit_scale", "residual_scale", "embedding_scale", "attention.scale", *_CAPS,
    "attention.clamp_kqv", "rope.scaling.attn_factor",
)  # fmt: skip
_END_KEYS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")
_STORED: Final = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Llama 3.1 and later all stretch the same way; files hold only the resulting divisors.
_LLAMA3: Final = RopeFacts(dim=0, kind="llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192)
_MOST_LAYERS: Final = 10_000


def keeps_pairs_together(file: GgufFile) -> bool:
    """Return whether query and key rows are stored with the two rows of a rotated pair side by side."""
    return _ROWS[file.text("general.architecture")].pairs_together


def norms_hold_one(file: GgufFile) -> bool:
    """Return whether norm weights have a one in them that Hugging Face checkpoints leave to the model to add."""
    return _ROWS[file.text("general.architecture")].norms_hold_one


def read_gguf_facts(file: GgufFile) -> ModelFacts:
    """Return the facts of the model in a GGUF file; raises CheckpointError naming the file and key that is wrong."""
    prefix = file.text("general.architecture")
    if prefix not in _ROWS:
        raise CheckpointError(f"{file.path}: general.architecture is {prefix!r}; Octavo reads {', '.join(_ROWS)}")
    row = _ROWS[prefix]
    _refuse_foreign(file, prefix, row)
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
    ends = [file.integer(f"tokenizer.ggml.{key}", -1) for key in _END_KEYS]
    rope = _rope(file, prefix, head_dim)
    local_theta = file.number(f"{prefix}.rope.freq_base_swa", row.local_theta or rope.theta)
    window = file.integer(f"{prefix}.{_WINDOW}", 0)
    return ModelFacts(
        architecture=row.name,
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
        rope=rope,
        sliding_rope=RopeFacts(dim=rope.dim, theta=_shortest(local_theta)) if row.local_theta else None,
        activation=row.activation,
        sliding_window=window if window > 0 else None,
        tie_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        eos_token_ids=tuple(dict.fromkeys(token for token in ends if token >= 0)),
        extras=_extras(file, prefix, row, hidden_size // num_heads if row.wide == num_layers else head_dim),
    )


def _extras(file: GgufFile, prefix: str, row: _Row, query_scalar: int) -> dict[str, Any]:
    """Return what the model alone knows, under the names of config.json."""
    extras: dict[str, Any] = {}
    if row.wide is not None:
        extras["query_pre_attn_scalar"] = query_scalar
    for name in _CAPS:
        if name in row.known and file.number(f"{prefix}.{name}", 0.0):
            extras[name] = _shortest(file.number(f"{prefix}.{name}"))
    return extras


def _refuse_foreign(file: GgufFile, prefix: str, row: _Row) -> None:
    for name in _FOREIGN:
        key = f"{prefix}.{name}"
        if name not in row.known and file.metadata.get(key) not in (None, 0, 1):
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
