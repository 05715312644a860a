"""GGUF weights: every type bit for bit, rows of rotated pairs put back in order, and the embedded model against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from octavo.base.errors import CheckpointError
from octavo.checkpoint.open import open_checkpoint
from octavo.config.model import ModelConfig
from octavo.frontend.text.tokenizer import load_tokenizer
from octavo.ops.packed_product.blocks import dequantize
from octavo.worker.loader.gguf_weights import hugging_face_name
from octavo.worker.spec import Weights
from tests.models.gguf_writing import gguf_name, write_gguf
from tests.models.oracle import assemble_folder, make_oracle, oracle_logits, random_tokens
from tests.models.paged_run import PagedRun

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_attention_heads": 4}
# As in files in the wild: one projection of a fused group is stored otherwise than its neighbours.
CAPPED = {
    "sliding_window": 13,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 20.0,
    "query_pre_attn_scalar": SIZES["head_dim"],
}
MIXED = {".attn_v.weight": Type.F16, ".attn_q.weight": Type.Q4_1, ".weight_norm": Type.F32, ".ffn_up.weight": Type.BF16}


@pytest.mark.parametrize("kind", [Type.Q4_1, Type.Q8_0, Type.F16, Type.BF16, Type.F32])
def test_types_are_decoded_bit_for_bit(kind: Type) -> None:
    values = np.random.default_rng(0).standard_normal((37, 96)).astype(np.float32) * 3
    raw = gguf.quants.quantize(values, kind)
    found = dequantize(kind.name, torch.from_numpy(raw.view(np.uint8).reshape(-1).copy()))
    expected = gguf.quants.dequantize(raw, kind).astype(np.float32)
    assert np.array_equal(found.numpy().view(np.uint32), expected.reshape(-1).view(np.uint32))


# Where a block keeps its float16 scales: random bytes are kept finite there.
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
    "BF16": (0,),
    "F16": (0,),
}


@pytest.mark.parametrize("kind", HALVES)
def test_any_bytes_are_decoded_as_gguf_does(kind: str) -> None:
    number = Type[kind]
    size = gguf.GGML_QUANT_SIZES[number][1]
    raw = np.random.default_rng(1).integers(0, 256, (1500, size), dtype=np.uint8)
    for start in HALVES[kind]:
        raw[:, start + 1] &= 0xBF  # both signs, no infinity
    if kind == "MXFP4":
        raw[:, 0] %= 250
    expected = gguf.quants.dequantize(raw, number).reshape(-1)
    found = dequantize(kind, torch.from_numpy(raw.reshape(-1).copy())).numpy()
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize(
    ("arch", "options", "types"),
    [
        ("llama", {"tie_word_embeddings": True}, {".weight": Type.F32}),
        ("llama", {"tie_word_embeddings": False, "attention_bias": True}, MIXED),
        ("llama", {"num_key_value_heads": 4}, {"norm.weight": Type.F32, ".weight": Type.Q8_0}),
        ("qwen2", {"tie_word_embeddings": True}, {"norm.weight": Type.F32, "bias": Type.F32, ".weight": Type.Q8_0}),
        ("gemma2", CAPPED, {"norm.weight": Type.F32, ".weight": Type.Q8_0}),
        (
            "gemma3",
            {**CAPPED, "final_logit_softcapping": None, "num_hidden_layers": 7},
            {"norm.weight": Type.F32, ".weight": Type.Q4_1},
        ),
        ("qwen3", {"tie_word_embeddings": True}, {"norm.weight": Type.F32, ".weight": Type.Q4_1}),
    ],
)
def test_written_models_give_the_logits_of_their_rounded_weights(
    tmp_path: Path, arch: str, options: dict[str, Any], types: dict[str, Type]
) -> None:
    oracle = make_oracle({"gemma3": "gemma3_text"}.get(arch, arch), {**SIZES, **options})
    write_gguf(tmp_path / "tiny.gguf", arch, oracle, types)
    tokens = random_tokens(40)
    found = PagedRun(assemble_folder(tmp_path / "tiny.gguf")).prefill_and_decode(tokens, [20, 15])
    torch.testing.assert_close(found, oracle_logits(oracle, tokens), rtol=1e-4, atol=1e-3)


def test_a_model_in_several_files_gives_the_same_logits(tmp_path: Path) -> None:
    oracle = make_oracle("llama", SIZES)
    write_gguf(tmp_path / "tiny.gguf", "llama", oracle, MIXED, tensors_per_file=7)
    assert len(list(tmp_path.glob("tiny-0000?-of-00005.gguf"))) == 5
    tokens = random_tokens(12)
    found = PagedRun(assemble_folder(tmp_path)).prefill_and_decode(tokens, [12])
    torch.testing.assert_close(found, oracle_logits(oracle, tokens), rtol=1e-4, atol=1e-3)


def test_a_type_that_is_not_read_is_named(tmp_path: Path) -> None:
    oracle = make_oracle("llama", {**SIZES, "hidden_size": 256})
    write_gguf(tmp_path / "tiny.gguf", "llama", oracle, {".ffn_up.weight": Type.TQ2_0})
    with pytest.raises(CheckpointError, match=r"blk\.0\.ffn_up\.weight is of type TQ2_0; Octavo reads F32, F16"):
        assemble_folder(tmp_path / "tiny.gguf")


def test_names_map_both_ways() -> None:
    oracle = make_oracle("qwen3", {"attention_bias": True, "tie_word_embeddings": False, "num_hidden_layers": 11})
    names = [name for name, _ in oracle.named_parameters()]
    assert [hugging_face_name(gguf_name(name)) for name in names] == names
    gemma = [name for name, _ in make_oracle("gemma3_text", {}).named_parameters()]
    assert [hugging_face_name(gguf_name(name, sandwich=True), sandwich=True) for name in gemma] == gemma
    assert hugging_face_name("blk.3.ssm_in.weight") == "blk.3.ssm_in.weight"


def test_the_embedded_model_gives_the_logits_of_transformers(demo_gguf: Path) -> None:
    from transformers import AutoModelForCausalLM, GgufConfig

    oracle = AutoModelForCausalLM.from_pretrained(
        demo_gguf.parent,
        gguf_file=demo_gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
        local_files_only=True,
    ).eval()
    tokens = random_tokens(70, vocab_size=49152)
    expected = oracle_logits(oracle, tokens)
    run = PagedRun(assemble_folder(demo_gguf))
    torch.testing.assert_close(run.prefill_and_decode(tokens, [50, 14]), expected, rtol=0, atol=1e-3)


def test_inputs_of_sixteen_bits_lose_next_to_nothing(demo_gguf: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/design/0001-shape.md").read_text(encoding="utf-8")
    checkpoint = open_checkpoint(ModelConfig(model=str(demo_gguf)))
    assert checkpoint.tokenizer is not None
    tokens = load_tokenizer(checkpoint.tokenizer).encode(text)[:300]
    exact = PagedRun(assemble_folder(demo_gguf)).prefill_and_decode(tokens, [300]).log_softmax(-1)
    rounded = PagedRun(assemble_folder(demo_gguf, weights=Weights(exact=False)))
    found = rounded.prefill_and_decode(tokens, [200, 90]).log_softmax(-1)
    best = exact.topk(2)
    wide = best.values[:, 0] - best.values[:, 1] > 0.02
    assert wide.sum() > 250
    assert torch.equal(found.argmax(-1)[wide], best.indices[:, 0][wide])
    following = torch.tensor(tokens[1:])[:, None]
    losses = [-float(each[:-1].gather(1, following).mean()) for each in (exact, found)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert 1e-6 < (found - exact).gather(1, best.indices[:, :1]).abs().mean() < 1e-3
