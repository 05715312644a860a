"""Defaults of sampling parameters: of the model's makers (generation_config.json), and of who starts the engine.

What a request says counts first; then override_generation_config, then generation_config.json, then SamplingParams itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from octavo.base.errors import ConfigError, InvalidRequestError
from octavo.base.logging import get_logger
from octavo.checkpoint.json_file import read_json_if_there
from octavo.config.model import ModelConfig
from octavo.protocol.sampling import SamplingParams

_log = get_logger(__name__)

_TAKEN: Final = ("temperature", "top_p", "min_p", "repetition_penalty")
# What is there and not taken is said: an answer without it is another one.
_PENALTIES: Final = {"no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0}


def sampling_defaults(model: Path, config: ModelConfig) -> dict[str, Any]:
    """Return sampling parameters by name, and log them; raises CheckpointError or ConfigError naming a value that is none."""
    given = Path(config.generation_config).expanduser()
    found: dict[str, Any] = {}
    if config.generation_config == "auto":
        found = _of_makers(model if model.is_dir() else model.parent)
    elif given.exists():
        found = _of_makers(given)
    elif config.generation_config not in ("none", "vllm"):
        allowed = "auto, none, vllm, or a folder or file that exists"
        raise ConfigError(f"generation_config must be {allowed}, not {str(given)!r}", field="generation_config")
    override = dict(config.override_generation_config or {})
    if "max_new_tokens" in override:
        override["max_tokens"] = override.pop("max_new_tokens")
    try:
        SamplingParams(**override)
    except (InvalidRequestError, TypeError) as error:
        raise ConfigError(str(error), field="override_generation_config") from error
    found |= override
    if found:
        listed = ", ".join(f"{name} {value}" for name, value in found.items())
        _log.info("sampling defaults: %s; what a request says counts before them", listed)
    return found


def _of_makers(place: Path) -> dict[str, Any]:
    config = read_json_if_there(place if place.is_file() else place / "generation_config.json")
    for key, neutral in _PENALTIES.items():
        if config.values.get(key, neutral) not in (None, neutral):
            _log.warning("%s: %r is %r, which Octavo does not apply", config.place, key, config.values[key])
    found: dict[str, Any] = {key: 0.0 for key in _TAKEN if config.values.get(key) == 0}
    found |= {key: config.number(key) for key in _TAKEN if config.has(key) and key not in found}
    if config.has("top_k"):
        found["top_k"] = config.integer("top_k")
    if config.has("max_new_tokens"):
        found["max_tokens"] = config.integer("max_new_tokens", low=1)
    return found
