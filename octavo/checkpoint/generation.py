"""How a model's makers sample from it: generation_config.json, as defaults for requests that do not say."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from octavo.base.logging import get_logger
from octavo.checkpoint.json_file import read_json_if_there

_log = get_logger(__name__)

_TAKEN: Final = ("temperature", "top_p", "top_k", "min_p")
# What is there and not taken is said: an answer without it is another one.
_PENALTIES: Final = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0}


def sampling_defaults(folder: Path) -> dict[str, float | int]:
    """Return sampling parameters by name; raises CheckpointError naming a value that is none."""
    config = read_json_if_there(folder / "generation_config.json")
    for key, neutral in _PENALTIES.items():
        if config.values.get(key, neutral) not in (None, neutral):
            _log.warning("%s: %r is %r, which Octavo does not apply", config.place, key, config.values[key])
    found: dict[str, float | int] = {}
    for key in _TAKEN:
        if key == "top_k" and config.has(key):
            found[key] = config.integer(key)
        elif config.values.get(key) == 0:
            found[key] = 0.0
        elif config.has(key):
            found[key] = config.number(key)
    return found
