"""Plain weights that are rounded to few bits as they are read: held to the rounded weights' answer."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from octavo.base.errors import ConfigError
from octavo.checkpoint.open import open_checkpoint
from octavo.config.model import ModelConfig, Quantization
from octavo.device.registry import detect
from octavo.ops.packed_product.blocks import dequantize, quantize
from octavo.worker.loader.assemble import assemble
from octavo.worker.spec import Weights
from tests.models.oracle import assemble_folder, make_oracle, oracle_logits, random_tokens
from tests.models.paged_run import PagedRun

SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_attention_heads": 4}
KINDS = {"int8": Type.Q8_0, "int4": Type.Q4_1}


@pytest.mark.parametrize(("kind", "steps"), [("Q8_0", 127), ("Q4_1", 15)])
def test_numbers_are_rounded_to_the_nearest_step(kind: str, steps: int) -> None:
    numbers = torch.randn(300, 32, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 1, 300)[:, None]
    numbers[7], numbers[8] = 0.0, 0.5
    size = gguf.GGML_QUANT_SIZES[Type[kind]][1]
    blocks = quantize(numbers, size)
    found = dequantize(kind, blocks.flatten()).view(300, 32)
    assert np.array_equal(gguf.quants.dequantize(blocks.numpy(), Type[kind]), found.numpy())
    most = numbers.abs().amax(1) if steps == 127 else numbers.amax(1) - numbers.amin(1)
    # Half a step, and what the scale and the minimum lose as float16.
    assert ((found - numbers).abs().amax(1) <= most / steps * 0.51 + numbers.abs().amax(1) * 2e-3).all()
    assert torch.equal(found[7], numbers[7])
    assert steps == 127 or torch.equal(found[8], numbers[8])
    assert torch.equal(quantize(found, size)[:, -16:], blocks[:, -16:]), "what is rounded stays so"


def _round(oracle: torch.nn.Module, quantization: Quantization) -> None:
    """Round the oracle's own matrices as the loader does."""
    for name, parameter in oracle.named_parameters():
        if parameter.ndim == 2:
            kind = Type.Q8_0 if "embed" in name or "lm_head" in name else KINDS[quantization]
            raw = quantize(parameter.detach().reshape(-1, 32), gguf.GGML_QUANT_SIZES[kind][1])
            parameter.data = torch.from_numpy(gguf.quants.dequantize(raw.numpy(), kind)).view(parameter.shape)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_model_gives_the_logits_of_its_rounded_weights(
    tmp_path: Path, quantization: Quantization, tied: bool
) -> None:
    oracle = make_oracle("qwen2", {**SIZES, "tie_word_embeddings": tied})
    oracle.save_pretrained(tmp_path)
    _round(oracle, quantization)
    tokens = random_tokens(40)
    expected = oracle_logits(oracle, tokens)
    made = assemble_folder(tmp_path, weights=Weights(quantization=quantization))
    run = PagedRun(made).prefill_and_decode(tokens, [20, 15])
    torch.testing.assert_close(run, expected, rtol=1e-4, atol=1e-3)
    assert any(line.startswith("weights stay packed, ") and "taken as they are" in line for line in made.decisions)
    # Inputs of 16 bits: close, also in other chunks.
    rounded = assemble_folder(tmp_path, weights=Weights(quantization=quantization, exact=False))
    found = PagedRun(rounded).prefill_and_decode(tokens, [20, 15])
    assert 1e-6 < float((found - expected).abs().mean() / expected.std()) < 1e-3
    again = PagedRun(rounded).prefill_and_decode(tokens, [40])
    assert float((again - found).abs().mean() / expected.std()) < 1e-3


def test_dummy_weights_of_few_bits(tmp_path: Path) -> None:
    make_oracle("qwen3", SIZES).config.save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(
        config.replace('"architectures": null', '"architectures": ["Qwen3ForCausalLM"]')
    )
    checkpoint = open_checkpoint(ModelConfig(model=str(tmp_path), skip_tokenizer_init=True, load_format="dummy"))
    spread = {}
    for quantization in ("auto", "int8", "int4"):
        weights = Weights(load_format="dummy", quantization=quantization)
        made = assemble(checkpoint, dtype="float32", device=detect("cpu"), max_model_len=64, weights=weights)
        spread[quantization] = float(PagedRun(made).prefill_and_decode(random_tokens(30), [30]).std())
    assert spread["int8"] == pytest.approx(spread["auto"], rel=0.3)
    assert spread["int4"] == pytest.approx(spread["auto"], rel=0.3)


def test_where_nothing_multiplies_packed_weights_it_is_refused(tmp_path: Path) -> None:
    make_oracle("qwen2", SIZES).save_pretrained(tmp_path)
    with pytest.raises(
        ConfigError, match="quantization int8 is not possible: no kernel here multiplies packed weights"
    ):
        assemble_folder(tmp_path, weights=Weights(quantization="int8"), overrides={"packed_product": "torch"})
