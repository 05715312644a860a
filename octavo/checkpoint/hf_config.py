"""A Hugging Face folder's config.json and generation_config.json → ModelFacts. The only place that probes loose JSON.

What a file leaves out gets the default of the architecture's own configuration class; what Octavo does not compute is an
error that names the key, never a different answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from octavo.base.facts import Activation, LayerKind, ModelFacts, RopeFacts
from octavo.checkpoint.json_file import JsonObject, read_json, read_json_if_there


@dataclass(frozen=True, slots=True, kw_only=True)
class _Defaults:
    """What an architecture's configuration class has for keys that a file may leave out (None: derived or none)."""

    max_position: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    sliding_window: int | None = None
    bos: int | None = None
    eos: int | None = None


_ARCHITECTURES: Final = {
    "LlamaForCausalLM": _Defaults(max_position=2048, bos=1, eos=2),
    "MistralForCausalLM": _Defaults(max_position=131072, num_kv_heads=8, sliding_window=4096, bos=1, eos=2),
    "Qwen3ForCausalLM": _Defaults(max_position=32768, num_kv_heads=32, head_dim=128, sliding_window=4096),
}
_MODEL_TYPES: Final = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_ACTIVATIONS: Final[dict[str, Activation]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_DTYPES: Final = ("float32", "float16", "bfloat16")
# Keys that change what a model computes and that none of the architectures above has. Neutral values are let pass.
_FOREIGN: Final = (
    "quantization_config", "attn_logit_softcapping", "final_logit_softcapping", "logits_scaling", "logit_scale",
    "embedding_multiplier", "residual_multiplier", "attention_multiplier", "query_pre_attn_scalar", "no_rope_layers",
    "num_experts", "num_local_experts", "alibi", "use_qk_norm", "attention_chunk_size",
)  # fmt: skip
_ROPE_KINDS: Final = ("default", "linear", "llama3")
_ROPE_KEYS: Final = frozenset(
    {"type", "rope_type", "rope_theta", "partial_rotary_factor", "factor", "low_freq_factor", "high_freq_factor"}
    | {"original_max_position_embeddings"}
)
_MOST_LAYERS: Final = 10_000


def read_hf_facts(folder: Path, *, weights_dtype: str = "float32") -> ModelFacts:
    """Return the facts of the model in `folder`; raises CheckpointError naming the file and key that is wrong.

    weights_dtype: what the weights themselves are stored in, for a config that does not say.
    """
    config = read_json(folder / "config.json")
    architecture = _architecture(config)
    defaults = _ARCHITECTURES[architecture]
    for key in _FOREIGN:
        if config.values.get(key) not in (None, 0, 1, [], {}):
            raise config.fail(key, f"is {config.values[key]!r}, which Octavo does not support for {architecture}")
    num_heads = config.integer("num_attention_heads", low=1)
    hidden_size = config.integer("hidden_size", low=1)
    num_layers = config.integer("num_hidden_layers", low=1)
    if num_layers > _MOST_LAYERS:
        raise config.fail("num_hidden_layers", f"must be at most {_MOST_LAYERS}, not {num_layers}")
    max_position = config.integer("max_position_embeddings", defaults.max_position, low=1)
    head_dim = _head_dim(config, defaults, hidden_size, num_heads)
    num_kv_heads = _num_kv_heads(config, defaults, num_heads)
    window, kinds = _layers(config, architecture, defaults, num_layers)
    return ModelFacts(
        architecture=architecture,
        dtype=_dtype(config, weights_dtype),
        vocab_size=config.integer("vocab_size", low=1),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size", low=1),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position=max_position,
        norm_eps=config.number("rms_norm_eps", 1e-6),
        rope=_rope(config, head_dim, max_position),
        activation=_activation(config),
        layer_kinds=kinds,
        sliding_window=window,
        tie_embeddings=config.flag("tie_word_embeddings", False),
        # Mistral's layers have no biases, whatever its file says.
        attention_bias=architecture != "MistralForCausalLM" and config.flag("attention_bias", False),
        mlp_bias=architecture == "LlamaForCausalLM" and config.flag("mlp_bias", False),
        bos_token_id=_first(_token_ids(config, "bos_token_id", defaults.bos)),
        eos_token_ids=_eos(folder, config, defaults),
        pad_token_id=_first(_token_ids(config, "pad_token_id", None)),
    )


def _architecture(config: JsonObject) -> str:
    named: list[Any] = config.list("architectures") or []
    if not named and config.has("model_type"):
        named = [_MODEL_TYPES.get(config.text("model_type"), config.text("model_type"))]
    for name in named:
        if name in _ARCHITECTURES:
            return name
    raise config.fail("architectures", f"is {named}; Octavo has {', '.join(_ARCHITECTURES)}")


def _head_dim(config: JsonObject, defaults: _Defaults, hidden_size: int, num_heads: int) -> int:
    if config.has("head_dim"):
        return config.integer("head_dim", low=1)
    if "head_dim" not in config.values and defaults.head_dim is not None:
        return defaults.head_dim
    if hidden_size % num_heads:
        raise config.fail("head_dim", f"is missing, and {num_heads} heads do not divide a hidden size of {hidden_size}")
    return hidden_size // num_heads


def _num_kv_heads(config: JsonObject, defaults: _Defaults, num_heads: int) -> int:
    missing = num_heads if "num_key_value_heads" in config.values else defaults.num_kv_heads or num_heads
    num_kv_heads = config.integer("num_key_value_heads", missing, low=1)
    if num_heads % num_kv_heads:
        raise config.fail(
            "num_key_value_heads", f"is {num_kv_heads}, which does not divide the {num_heads} attention heads"
        )
    return num_kv_heads


def _dtype(config: JsonObject, weights_dtype: str) -> str:
    key = "dtype" if config.has("dtype") else "torch_dtype"
    dtype = config.text(key, weights_dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise config.fail(key, f"is {dtype!r}; Octavo has {', '.join(_DTYPES)}")
    return dtype


def _activation(config: JsonObject) -> Activation:
    name = config.text("hidden_act", "silu")
    if name not in _ACTIVATIONS:
        raise config.fail("hidden_act", f"is {name!r}; Octavo has {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _layers(
    config: JsonObject, architecture: str, defaults: _Defaults, num_layers: int
) -> tuple[int | None, tuple[LayerKind, ...]]:
    """Return (sliding window, kind of every layer), each architecture by its own rule."""
    window = defaults.sliding_window if "sliding_window" not in config.values else None
    if config.has("sliding_window"):
        window = config.integer("sliding_window", low=1)
    kinds: tuple[LayerKind, ...] | None = ("full",) * num_layers
    if architecture == "Qwen3ForCausalLM":
        if not config.flag("use_sliding_window", False):
            window = None
        kinds = _declared_kinds(config, num_layers)
        if kinds is None:
            first = config.integer("max_window_layers", 28)
            num_full = min(first, num_layers)
            kinds = ("full",) * num_full + ("sliding",) * (num_layers - num_full)
        # A layer that is called sliding while the window is off sees everything.
        kinds = kinds if window else ("full",) * num_layers
    elif architecture == "MistralForCausalLM":
        kinds = ("sliding" if window else "full",) * num_layers
    return (window if "sliding" in kinds else None), kinds


def _declared_kinds(config: JsonObject, num_layers: int) -> tuple[LayerKind, ...] | None:
    declared = config.list("layer_types")
    if declared is None:
        return None
    names: dict[Any, LayerKind] = {"full_attention": "full", "sliding_attention": "sliding"}
    unknown = [name for name in declared if not isinstance(name, str) or name not in names]
    if unknown or len(declared) != num_layers:
        raise config.fail(
            "layer_types", f"must name {num_layers} layers, each one of {', '.join(names)}, not {declared}"
        )
    return tuple(names[name] for name in declared)


def _rope(config: JsonObject, head_dim: int, max_position: int) -> RopeFacts:
    """Read either spelling: rope_parameters (which also holds theta), or rope_theta beside rope_scaling."""
    empty = JsonObject(f"{config.place}: rope_parameters", {})
    rope = config.object("rope_parameters") or config.object("rope_scaling") or empty
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind not in _ROPE_KINDS:
        raise rope.fail("rope_type", f"is {kind!r}; Octavo has {', '.join(_ROPE_KINDS)}")
    for key in rope.values:
        if rope.has(key) and key not in _ROPE_KEYS:
            raise rope.fail(key, f"is not something that Octavo knows of rope type {kind!r}")
    theta = rope.number("rope_theta", config.number("rope_theta", 10000.0))
    rotated = rope.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    dim = int(head_dim * rotated)
    if dim > head_dim or dim % 2 or dim == 0:
        raise rope.fail("partial_rotary_factor", f"rotates {dim} of a head's {head_dim} values; an even part is needed")
    if kind == "default":
        return RopeFacts(dim=dim, theta=theta)
    if kind == "linear":
        return RopeFacts(dim=dim, theta=theta, kind=kind, factor=rope.number("factor"))
    original = "original_max_position_embeddings"
    return RopeFacts(
        dim=dim,
        theta=theta,
        kind=kind,
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_position=rope.integer(original, config.integer(original, max_position, low=1), low=1),
    )


def _eos(folder: Path, config: JsonObject, defaults: _Defaults) -> tuple[int, ...]:
    """Every id that ends a text: those of both files, each once."""
    generation = read_json_if_there(folder / "generation_config.json")
    ids = _token_ids(config, "eos_token_id", defaults.eos) + _token_ids(generation, "eos_token_id", None)
    return tuple(dict.fromkeys(ids))


def _token_ids(config: JsonObject, key: str, missing: int | None) -> tuple[int, ...]:
    value: Any = config.values.get(key, missing)
    if value is None:
        return ()
    ids: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        raise config.fail(key, f"must be a token id or a list of them, not {value!r}")
    # Some files say -1 for "none".
    return tuple(token for token in ids if token >= 0)


def _first(ids: tuple[int, ...]) -> int | None:
    return ids[0] if ids else None
