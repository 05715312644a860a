"""One engine's configuration, composed of one record per concern."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from octavo.base.errors import ConfigError
from octavo.base.logging import get_logger
from octavo.base.naming import unknown_name
from octavo.config.cache import CacheConfig
from octavo.config.device import DeviceConfig, ParallelConfig
from octavo.config.model import ModelConfig
from octavo.config.schedule import ScheduleConfig
from octavo.config.serve import ServeConfig

# Other spellings of options that scripts in the wild use.
ALIASES = {
    "kv_cache_memory_bytes": "kv_cache_memory",
    "num_gpu_blocks_override": "num_pages",
    "device_memory_utilization": "gpu_memory_utilization",
}
# Other spellings of values.
SPELLINGS: dict[str, dict[str | None, str]] = {
    "dtype": {"half": "float16", "float": "float32"},
    "quantization": {None: "auto", "none": "auto", "gguf": "auto"},
}

_OF_THE_SERVER = frozenset(declared.name for declared in fields(ServeConfig))
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything an engine is made from."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)

    @staticmethod
    def from_options(options: Mapping[str, Any]) -> EngineConfig:
        """Build from flat options (`max_model_len=…`); raises ConfigError for an unknown name or a value out of range.

        Options of vLLM's that Octavo has not are noted in the log, or refused with the reason (`octavo.config.foreign`); those of
        the server are noted.
        """
        from octavo.config.foreign import FOREIGN  # Not read in processes that are given a whole configuration.

        concerns: dict[str, Any] = {declared.name: declared.default_factory for declared in fields(EngineConfig)}
        homes = {declared.name: concern for concern, cls in concerns.items() for declared in fields(cls)}
        split: dict[str, dict[str, Any]] = {concern: {} for concern in concerns}
        for given, value in options.items():
            name = ALIASES.get(given, given)
            if name in homes:
                split[homes[name]][name] = spelled(name, value)
            elif name in FOREIGN:
                _log.warning("%s", FOREIGN[name].check(value))
            elif name in _OF_THE_SERVER:
                _log.warning("%s changes nothing: it is an option of the server, and there is none", given)
            else:
                raise ConfigError(unknown_name("engine option", given, [*homes, *ALIASES]), field=given)
        return EngineConfig(**{concern: cls(**split[concern]) for concern, cls in concerns.items()})


def spelled(name: str, value: Any) -> Any:
    """Return a value as the option calls it."""
    return SPELLINGS.get(name, {}).get(value, value) if isinstance(value, str | None) else value
