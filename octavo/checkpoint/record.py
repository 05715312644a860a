"""What is known of a checkpoint before a weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.base.facts import ModelFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model on disk. `name` is what the user gave; `path` the folder, or the (first) .gguf file.

    kind: how weights are stored; "pt" is pickled by torch, "config" has none (dummy weights only). files: weight files,
    absolute, in order.
    tokenizer: folder with tokenizer.json, or a .gguf file with a vocabulary; None if there is none.
    chat_template: Jinja source, None if the model has none. sampling: parameters for requests that do not give them.
    """

    name: str
    path: str
    kind: Literal["gguf", "safetensors", "pt", "config"]
    files: tuple[str, ...]
    facts: ModelFacts
    tokenizer: str | None = None
    chat_template: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
