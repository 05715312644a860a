"""Which model, how its weights are read, and how long its context is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from octavo.config.fields import check_options, option

DType = Literal["auto", "float32", "bfloat16", "float16"]
LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The model and its tokenizer."""

    model: str = option(
        "demo", "a folder, a .gguf file, a hub name in the local cache, or 'demo' for the embedded model"
    )
    tokenizer: str | None = option(None, "folder or file of the tokenizer, if it is not the model's own")
    skip_tokenizer_init: bool = option(False, "no tokenizer: token ids in, token ids out")
    dtype: DType = option(
        "auto", "type of weights and activations; auto takes the checkpoint's own where the device has it"
    )
    max_model_len: int | None = option(
        None, "longest prompt and output together, in tokens; the model's own if not given", low=1
    )
    load_format: LoadFormat = option("auto", "how weights are stored; dummy makes random ones from the config alone")
    hf_overrides: dict[str, Any] | None = option(
        None, "keys of the model's config.json to change on purpose; null takes one away"
    )
    seed: int = option(0, "seed of dummy weights; requests that bring no seed draw one each", low=0)
    chat_template: str | None = option(None, "a Jinja chat template, or the path of a file with one")

    def __post_init__(self) -> None:
        check_options(self)
