"""A Hugging Face folder's config.json and generation_config.json → ModelFacts. The only place that probes loose JSON.

Keys that all architectures share are read here, under any of their names; what a file leaves out gets the default of the
architecture's own configuration class. The rest goes into `extras`, for the model that knows it (config_keys.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from octavo.base.facts import Activation, LayerKind, ModelFacts, RopeFacts, RopeKind
from octavo.checkpoint.architectures import architectures, config_defaults, of_model_type
from octavo.checkpoint.config_keys import SYNONYMS, extra_keys
from octavo.checkpoint.json_file import JsonObject, read_json, read_json_if_there

_ACTIVATIONS: Final[dict[str, Activation]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_DTYPES: Final = ("float32", "float16", "bfloat16")
_KINDS: Final[dict[Any, LayerKind]] = {
    "full_attention": "full",
    "sliding_attention": "sliding",
    "linear_attention": "linear",
}
_MOST_LAYERS: Final = 10_000
_ORIGINAL: Final = "original_max_position_embeddings"
# Kind of rotary embedding -> the keys that it has, beside those that all have.
_ROPE_KEYS: Final[dict[RopeKind, frozenset[str]]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor"}),
    "yarn": frozenset({"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
    "longrope": frozenset({"factor", "attention_factor", "short_factor", "long_factor"}),
    "proportional": frozenset(),
}
_ROPE_COMMON: Final = frozenset({"type", "rope_type", "rope_theta", "partial_rotary_factor", _ORIGINAL})
_ROPE_NAMES: Final[dict[str, RopeKind]] = {**{kind: kind for kind in _ROPE_KEYS}, "su": "longrope"}


def read_hf_facts(
    folder: Path, *, weights_dtype: str = "float32", overrides: Mapping[str, Any] | None = None
) -> ModelFacts:
    """Return the facts of the model in `folder`; raises CheckpointError naming the file and key that is wrong.

    weights_dtype: what the weights themselves are stored in, for a config that does not say. overrides: replace its keys.
    """
    config = _complete(read_json(folder / "config.json"), overrides or {})
    num_heads = config.integer(_key(config, "num_attention_heads"), low=1)
    hidden_size = config.integer(_key(config, "hidden_size"), low=1)
    num_layers = config.integer(_key(config, "num_hidden_layers"), low=1)
    if num_layers > _MOST_LAYERS:
        raise config.fail(_key(config, "num_hidden_layers"), f"must be at most {_MOST_LAYERS}, not {num_layers}")
    max_position = config.integer(_key(config, "max_position_embeddings"), low=1)
    head_dim = _head_dim(config, hidden_size, num_heads)
    rope, sliding_rope = _ropes(config, head_dim, max_position)
    return ModelFacts(
        architecture=config.values["architectures"][0],
        dtype=_dtype(config, weights_dtype),
        vocab_size=config.integer("vocab_size", low=1),
        hidden_size=hidden_size,
        intermediate_size=_intermediate_size(config, hidden_size),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(config, num_heads),
        head_dim=head_dim,
        # Files that stretch by YaRN may still name the training's context.
        max_position=max(max_position, int(rope.original_max_position * rope.factor) if rope.kind == "yarn" else 0),
        norm_eps=config.number(_key(config, "rms_norm_eps")),
        rope=rope,
        sliding_rope=sliding_rope,
        activation=_activation(config),
        layer_kinds=_layer_kinds(config, num_layers),
        sliding_window=config.integer("sliding_window", low=1) if config.has("sliding_window") else None,
        tie_embeddings=config.flag("tie_word_embeddings", False),
        attention_bias=config.flag("attention_bias", False),
        mlp_bias=config.flag("mlp_bias", False),
        eos_token_ids=_eos(folder, config),
        extras=extra_keys(config.values),
    )


def _complete(config: JsonObject, overrides: Mapping[str, Any]) -> JsonObject:
    """Return the configuration with its overrides, the architecture that Octavo has, and its defaults for missing keys."""
    values = {**config.values, **overrides}
    config = JsonObject(config.place, values)
    architecture = _architecture(config)
    given = {common for common, names in SYNONYMS.items() if any(name in values for name in names)}
    missing = {key: value for key, value in config_defaults(architecture).items() if key not in given}
    return JsonObject(config.place, {**missing, **values, "architectures": [architecture]})


def _architecture(config: JsonObject) -> str:
    named = [name for name in config.list("architectures") or [] if isinstance(name, str)]
    if not named and config.has("model_type"):
        named = [of_model_type(config.text("model_type")) or config.text("model_type")]
    known = architectures()
    for name in named:
        if name in known:
            return name
    code = "; the code that comes with it (auto_map) is never run" if config.has("auto_map") else ""
    raise config.fail("architectures", f"is {named}; Octavo has {', '.join(known)}{code}")


def _key(config: JsonObject, common: str) -> str:
    """Return the name under which the file has a common key."""
    return next((name for name in SYNONYMS[common] if name in config.values), common)


def _head_dim(config: JsonObject, hidden_size: int, num_heads: int) -> int:
    if config.has("head_dim"):
        return config.integer("head_dim", low=1)
    if hidden_size % num_heads:
        raise config.fail("head_dim", f"is missing, and {num_heads} heads do not divide a hidden size of {hidden_size}")
    return hidden_size // num_heads


def _intermediate_size(config: JsonObject, hidden_size: int) -> int:
    """Read the width of the feed-forward block: four times the hidden size where it is null."""
    key = _key(config, "intermediate_size")
    return 4 * hidden_size if config.values.get(key, 0) is None else config.integer(key, low=1)


def _num_kv_heads(config: JsonObject, num_heads: int) -> int:
    key = _key(config, "num_key_value_heads")
    num_kv_heads = config.integer(key, num_heads, low=1)
    if num_heads % num_kv_heads:
        raise config.fail(key, f"is {num_kv_heads}, which does not divide the {num_heads} attention heads")
    return num_kv_heads


def _dtype(config: JsonObject, weights_dtype: str) -> str:
    key = next((key for key in SYNONYMS["dtype"] if config.has(key)), "torch_dtype")
    dtype = config.text(key, weights_dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise config.fail(key, f"is {dtype!r}; Octavo has {', '.join(_DTYPES)}")
    return dtype


def _activation(config: JsonObject) -> Activation:
    key = next((key for key in SYNONYMS["hidden_act"] if config.has(key)), "hidden_act")
    name = config.text(key, "silu")
    if name not in _ACTIVATIONS:
        raise config.fail(key, f"is {name!r}; Octavo has {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _layer_kinds(config: JsonObject, num_layers: int) -> tuple[LayerKind, ...]:
    declared = config.list("layer_types")
    if declared is None:
        return ()
    unknown = [name for name in declared if not isinstance(name, str) or name not in _KINDS]
    if unknown or len(declared) != num_layers:
        raise config.fail(
            "layer_types", f"must name {num_layers} layers, each one of {', '.join(_KINDS)}, not {declared}"
        )
    return tuple(_KINDS[name] for name in declared)


def _ropes(config: JsonObject, head_dim: int, max_position: int) -> tuple[RopeFacts, RopeFacts | None]:
    """Return the rotary embedding of all layers, and that of sliding layers where it is another.

    Read either spelling: rope_parameters (which also holds theta, and may do so for each kind of layer), or rope_theta,
    rope_local_base_freq and rope_scaling side by side.
    """
    key = "rope_parameters" if config.object("rope_parameters") else "rope_scaling"
    found = config.object(key) or JsonObject(f"{config.place}: {key}", {})
    theta, local_theta = _key(config, "rope_theta"), "rope_local_base_freq"
    nested = any(kind in found.values for kind in _KINDS)
    full = (found.object("full_attention") or JsonObject(found.place, {})) if nested else found
    local = found.object("sliding_attention") if nested else None
    if local is None and config.has(local_theta):
        local = JsonObject(config.place, {})
    rope = _rope(config, full, theta, head_dim, max_position)
    return rope, None if local is None else _rope(config, local, local_theta, head_dim, max_position)


def _rope(config: JsonObject, rope: JsonObject, theta_key: str, head_dim: int, max_position: int) -> RopeFacts:
    name = rope.text("rope_type", rope.text("type", "default"))
    if name not in _ROPE_NAMES:
        raise rope.fail("rope_type", f"is {name!r}; Octavo has {', '.join(_ROPE_KEYS)}")
    kind = _ROPE_NAMES[name]
    for key in rope.values:
        if rope.has(key) and key not in _ROPE_KEYS[kind] | _ROPE_COMMON:
            raise rope.fail(key, f"is not something that Octavo knows of rope type {kind!r}")
    rotated = rope.number("partial_rotary_factor", config.number(_key(config, "partial_rotary_factor"), 1.0))
    dim = int(head_dim * rotated)
    if dim > head_dim or dim % 2 or dim == 0:
        raise rope.fail("partial_rotary_factor", f"rotates {dim} of a head's {head_dim} values; an even part is needed")
    theta = rope.number("rope_theta", config.number(theta_key, 10000.0))
    if kind == "default":
        return RopeFacts(dim=dim, theta=theta)
    if kind == "proportional":
        return RopeFacts(dim=head_dim, theta=theta, kind=kind, turning=rotated)
    if kind == "linear":
        return RopeFacts(dim=dim, theta=theta, kind=kind, factor=rope.number("factor"))
    original = config.integer(_ORIGINAL, rope.integer(_ORIGINAL, max_position, low=1), low=1)
    # These two may leave it to what the context grew by.
    grown = max_position / original if kind in ("yarn", "longrope") else None
    facts = RopeFacts(
        dim=dim, theta=theta, kind=kind, factor=rope.number("factor", grown), original_max_position=original
    )
    match kind:
        case "llama3":
            low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
            return replace(facts, low_freq_factor=low, high_freq_factor=high)
        case "yarn":
            return _yarn(rope, facts)
        case "longrope":
            return _longrope(rope, facts)
        case _:
            return facts


def _yarn(rope: JsonObject, facts: RopeFacts) -> RopeFacts:
    """Read YaRN (Peng et al. 2023); mscale and mscale_all_dim are DeepSeek's."""
    mscale, all_dim = (rope.number(key) if rope.values.get(key) else 0.0 for key in ("mscale", "mscale_all_dim"))
    growth = 0.1 * math.log(max(facts.factor, 1.0))
    attention = (growth * mscale + 1) / (growth * all_dim + 1) if mscale and all_dim else growth + 1
    return replace(
        facts,
        attention_factor=rope.number("attention_factor", attention),
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        mscale=mscale,
        mscale_all_dim=all_dim,
        truncate=rope.flag("truncate", True),
    )


def _longrope(rope: JsonObject, facts: RopeFacts) -> RopeFacts:
    """Read LongRoPE (Ding et al. 2024)."""
    factors: list[tuple[float, ...]] = []
    for key in ("short_factor", "long_factor"):
        values: list[Any] = rope.list(key) or []
        if len(values) != facts.dim // 2 or not all(isinstance(value, (int, float)) and value > 0 for value in values):
            raise rope.fail(key, f"must be {facts.dim // 2} positive numbers, not {values}")
        factors.append(tuple(values))
    growth = math.log(max(facts.factor, 1.0))
    attention = math.sqrt(1 + growth / math.log(facts.original_max_position)) if growth else 1.0
    return replace(
        facts,
        attention_factor=rope.number("attention_factor", attention),
        short_factors=factors[0],
        long_factors=factors[1],
    )


def _eos(folder: Path, config: JsonObject) -> tuple[int, ...]:
    """Every id that ends a text: those of both files, each once."""
    generation = read_json_if_there(folder / "generation_config.json")
    return tuple(dict.fromkeys(_token_ids(config, "eos_token_id") + _token_ids(generation, "eos_token_id")))


def _token_ids(config: JsonObject, key: str) -> tuple[int, ...]:
    value: Any = config.values.get(key)
    if value is None:
        return ()
    ids: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        raise config.fail(key, f"must be a token id or a list of them, not {value!r}")
    # Some files say -1 for "none".
    return tuple(token for token in ids if token >= 0)
