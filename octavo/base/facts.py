"""Facts about the machine and the model: plain frozen records.

Every choice (kernels, attention, memory, formats) is made from these records, so it can be tested without the device or
the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
LayerKind = Literal["full", "sliding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """What a device is. `arch` is its instruction set or compute capability ("avx512", "sm_90"). Memory in bytes."""

    kind: str
    name: str
    arch: str
    num_cores: int
    total_memory: int
    dtypes: tuple[str, ...]
    features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeFacts:
    """Rotary position embedding. `kind` is "default", "linear" or "llama3"; `dim` the rotated part of a head."""

    dim: int
    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """All that is known of a model before a weight is read: shapes, positions, special tokens.

    `dtype` is the checkpoint's own ("float32", "bfloat16", "float16"; GGUF quantized files say "float32").
    `layer_kinds` has one entry a layer; "sliding" layers see the last `sliding_window` tokens.
    """

    architecture: str
    dtype: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    norm_eps: float
    rope: RopeFacts
    activation: Activation = "silu"
    layer_kinds: tuple[LayerKind, ...] = ()
    sliding_window: int | None = None
    tie_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
