"""Facts about the machine and the model: plain frozen records.

Every choice (kernels, attention, memory, formats) is made from these records, so it can be tested without the device or
the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
LayerKind = Literal["full", "sliding", "linear"]
RopeKind = Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional"]


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
    """Rotary position embedding: `dim` is the rotated part of a head, `kind` how it was stretched beyond its training.

    attention_factor: of cosines and sines. original_max_position: of the training; dynamic and longrope leave contexts up to
    it as they are. beta_*, mscale*, truncate: yarn's. *_freq_factor: llama3's. short_factors, long_factors: longrope's
    divisors, one for each pair. turning: proportional's share of pairs that turn at all.
    """

    dim: int
    theta: float = 10000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    attention_factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    turning: float = 1.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """All that is known of a model before a weight is read: shapes, positions, special tokens.

    dtype: the checkpoint's own ("float32", "bfloat16", "float16"; GGUF quantized files say "float32"). rope: of all layers,
    except those that slide where sliding_rope is given. layer_kinds: one for each layer if the configuration lists them, else
    empty: the architecture has a rule. sliding_window: tokens that a layer sees if it slides. extras: the configuration's
    further keys, by the names that config.json has for them; once a model is built, also those that it left out.
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
    sliding_rope: RopeFacts | None = None
    activation: Activation = "silu"
    layer_kinds: tuple[LayerKind, ...] = ()
    sliding_window: int | None = None
    tie_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    eos_token_ids: tuple[int, ...] = ()
    extras: Mapping[str, Any] = field(default_factory=dict[str, Any])
