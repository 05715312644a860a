"""Which model, how its weights are read, and how long its context is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from octavo.base.errors import ConfigError
from octavo.config.fields import check_options, option

DType = Literal["auto", "float32", "bfloat16", "float16"]
LogprobsMode = Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]
Quantization = Literal["auto", "int8", "int4"]
LoadFormat = Literal["auto", "safetensors", "pt", "gguf", "dummy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The model and its tokenizer."""

    model: str = option(
        "demo", "a folder, a .gguf file, a hub name (organization/name), or 'demo' for the embedded model"
    )
    revision: str | None = option(None, "branch, tag or commit of a hub name; main if not given")
    tokenizer: str | None = option(None, "folder or file of the tokenizer, if it is not the model's own")
    skip_tokenizer_init: bool = option(False, "no tokenizer: token ids in, token ids out")
    dtype: DType = option(
        "auto", "type of weights and activations; auto takes the checkpoint's own where the device has it"
    )
    max_model_len: int | None = option(
        None, "longest prompt and output together, in tokens; the model's own if not given", low=1
    )
    load_format: LoadFormat = option("auto", "how weights are stored; dummy makes random ones from the config alone")
    quantization: Quantization = option(
        "auto",
        "int8, int4: plain weights are stored in so many bits once they are read, in groups of 32 with a scale each; auto: as "
        "the checkpoint has them",
    )
    hf_overrides: dict[str, Any] | None = option(
        None, "keys of the model's config.json to change on purpose; null takes one away"
    )
    seed: int = option(0, "seed of dummy weights; requests that bring no seed draw one each", low=0)
    chat_template: str | None = option(
        None, "a Jinja chat template, the path of a file with one, or the name of one of the model's"
    )
    generation_config: str = option(
        "auto",
        "auto: a model's generation_config.json gives requests their sampling defaults; none, or vllm: it does not; else the "
        "folder or file to take in its place",
    )
    override_generation_config: dict[str, Any] | None = option(
        None, "sampling defaults that go before those of generation_config.json; what a request says goes before both"
    )
    logprobs_mode: LogprobsMode = option(
        "raw_logprobs",
        "what is reported as a token's log-probability: the model's own (raw), or that from which tokens are drawn, after "
        "penalties, masks, temperature and filters (processed)",
    )
    logits_processors: tuple[str, ...] = option((), "classes (module:Class) that change logits of every request")
    trust_remote_code: bool = option(False, "always refused: Octavo runs no code that comes with weights")

    def __post_init__(self) -> None:
        check_options(self)
        if self.skip_tokenizer_init and self.chat_template is not None:
            raise ConfigError(
                "chat_template needs the tokenizer that skip_tokenizer_init leaves out", field="chat_template"
            )
