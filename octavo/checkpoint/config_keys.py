"""The keys of config.json: which mean the same, which change no answer, and which a model has to know.

`ModelFacts.extras` holds the keys that are neither common (hf_config.py reads those) nor harmless. A model's file declares
those it computes with, and their defaults; any other is an error, unless its value means that nothing is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec

from octavo.base.errors import CheckpointError
from octavo.base.facts import ModelFacts


class _Keys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys in `config_keys.json`.

    synonyms: common keys under the names that configurations use for them; of several in one file the first counts. common:
    further ones, of one name. harmless: by why they are. factors: one changes nothing.
    """

    synonyms: dict[str, tuple[str, ...]]
    common: tuple[str, ...]
    harmless: dict[str, tuple[str, ...]]
    harmless_endings: tuple[str, ...]
    factors: tuple[str, ...]


_KEYS: Final = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=_Keys)
SYNONYMS: Final = _KEYS.synonyms
COMMON: Final = frozenset(chain(_KEYS.common, *SYNONYMS.values()))
_HARMLESS: Final = frozenset(chain(*_KEYS.harmless.values()))


def extra_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a configuration that only its architecture can know."""
    return {
        key: value
        for key, value in config.items()
        if not (key in COMMON or key in _HARMLESS or key.endswith(_KEYS.harmless_endings))
    }


def settle_extras(facts: ModelFacts, declared: Mapping[str, Any]) -> ModelFacts:
    """Return facts whose extras hold every key that a model declares, with its default where the configuration has none.

    Raises CheckpointError naming a key that the model does not know and whose value is not neutral.
    """
    for key, value in facts.extras.items():
        if (
            key in declared
            or key.startswith("_")
            or value in (None, False, 0, [], {}, "")
            or (key in _KEYS.factors and value == 1)
        ):
            continue
        raise CheckpointError(
            f"config key {key!r} is {value!r}, which Octavo does not support for {facts.architecture}; "
            "hf_overrides can set it to null, if it changes nothing",
            field=key,
        )
    return replace(facts, extras={**declared, **facts.extras})
