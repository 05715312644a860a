"""From what was asked for to what is done: pure, with the reason of every decision."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.base.errors import ConfigError
from octavo.base.facts import DeviceFacts, ModelFacts
from octavo.config.engine import EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """An engine's settled choices. depth: plans in flight. decisions: what was decided, and why, one line each."""

    dtype: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    depth: int
    decisions: tuple[str, ...]


def resolve(config: EngineConfig, model: ModelFacts, device: DeviceFacts) -> ResolvedConfig:
    """Settle every open choice; raises ConfigError where a request cannot be met."""
    decisions: list[str] = []
    dtype = _dtype(config, model, device, decisions)
    check_spread(config, model)
    max_model_len = config.model.max_model_len or model.max_position
    if max_model_len > model.max_position:
        raise ConfigError(
            f"max_model_len must be at most the model's {model.max_position} positions, not {max_model_len}",
            field="max_model_len",
        )
    source = "asked for" if config.model.max_model_len else "the model's own"
    decisions.append(f"max_model_len {max_model_len}: {source}")
    stages = config.parallel.pipeline_parallel_size
    depth = stages + 1 if config.schedule.async_scheduling else 1
    decisions.append(
        f"{depth} plan(s) in flight: async_scheduling is {config.schedule.async_scheduling}, {stages} pipeline stage(s)"
    )
    budget = config.schedule.max_num_batched_tokens
    if budget is None:
        # A step of a CPU must stay short beside running streams, and take all that can run; a GPU needs large products.
        budget = 256 if device.kind == "cpu" else 8192
        decisions.append(f"max_num_batched_tokens {budget}: fits a {device.kind}")
    return ResolvedConfig(
        dtype=dtype,
        max_model_len=max_model_len,
        max_num_seqs=config.schedule.max_num_seqs,
        max_num_batched_tokens=budget,
        depth=depth,
        decisions=tuple(decisions),
    )


def check_spread(config: EngineConfig, model: ModelFacts) -> None:
    """Refuse numbers of ranks that the model cannot be spread over, before a process is started for each."""
    tensor, stages = config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size
    for what, count in (("attention heads", model.num_heads), ("intermediate features", model.intermediate_size)):
        if count % tensor:
            raise ConfigError(
                f"tensor_parallel_size must divide the model's {count} {what}, {tensor} does not",
                field="tensor_parallel_size",
            )
    if model.num_kv_heads % tensor and tensor % model.num_kv_heads:
        raise ConfigError(
            f"tensor_parallel_size must divide the model's {model.num_kv_heads} key/value heads or be a multiple of them, "
            f"{tensor} is neither",
            field="tensor_parallel_size",
        )
    if stages > model.num_layers:
        raise ConfigError(
            f"pipeline_parallel_size must be at most the model's {model.num_layers} layers, not {stages}",
            field="pipeline_parallel_size",
        )


def _dtype(config: EngineConfig, model: ModelFacts, device: DeviceFacts, decisions: list[str]) -> str:
    asked = config.model.dtype
    if asked != "auto":
        if asked not in device.dtypes:
            raise ConfigError(f"dtype {asked} is not one of {device.name}'s: {', '.join(device.dtypes)}", field="dtype")
        decisions.append(f"dtype {asked}: asked for")
        return asked
    if model.dtype in device.dtypes:
        decisions.append(f"dtype {model.dtype}: the checkpoint's own")
        return model.dtype
    decisions.append(f"dtype float32: {device.name} does not compute in the checkpoint's {model.dtype}")
    return "float32"
