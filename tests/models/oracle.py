"""Tiny transformers models with every parameter random, and the same weights assembled by us."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from octavo.checkpoint.open import open_checkpoint
from octavo.config.model import ModelConfig
from octavo.device.registry import detect
from octavo.worker.loader.assemble import AssembledModel, assemble

TINY: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}


def make_oracle(
    model_type: str, options: Mapping[str, Any], seed: int = 0, auto: type[Any] = AutoModelForCausalLM
) -> Any:
    """Return a float32 model whose every parameter, biases and norms too, is random. options: `...` leaves a tiny key out.

    auto: the class of transformers that makes such a model.
    """
    keys = {key: value for key, value in {**TINY, **options}.items() if value is not ...}
    config = AutoConfig.for_model(model_type, **keys)
    # With eager attention transformers adds linear biases twice.
    config._attn_implementation = "sdpa" if options.get("alibi") else "eager"
    model = auto.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        kept = [(name, buffer) for name, buffer in model.named_buffers() if name in model.state_dict()]
        for name, parameter in (*model.named_parameters(), *kept):
            middle = 1.0 if parameter.ndim == 1 and not name.endswith("bias") else 0.0
            parameter.copy_(middle + 0.3 * torch.randn(parameter.shape, generator=generator))
    return model


@torch.inference_mode()
def oracle_logits(model: Any, tokens: list[int]) -> Tensor:
    """Return the oracle's logits of every position."""
    return model(torch.tensor([tokens]), use_cache=False).logits[0].float()


def random_tokens(count: int, vocab_size: int = TINY["vocab_size"], seed: int = 1) -> list[int]:
    """Return random token ids."""
    return torch.randint(vocab_size, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def assemble_folder(path: Path, dtype: str = "float32", **options: Any) -> AssembledModel:
    """Open a model's folder or file and assemble it."""
    checkpoint = open_checkpoint(ModelConfig(model=str(path), skip_tokenizer_init=True))
    return assemble(
        checkpoint, dtype=dtype, device=detect("cpu"), max_model_len=checkpoint.facts.max_position, **options
    )
