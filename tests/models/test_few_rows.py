"""Which layers go another way in steps of few rows, and that it leads to the same place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.nn.decoder import DecoderLayer
from octavo.nn.few_rows import FewRowsLayer
from octavo.nn.parallel.mesh import Mesh
from octavo.worker.loader.assemble import AssembledModel
from tests.models.families import FAMILIES
from tests.models.oracle import TINY, assemble_folder, make_oracle, oracle_logits, random_tokens
from tests.models.paged_run import PagedRun
from tests.models.threads import PeerThreads, on_ranks

# Heads of a size that the kernels are made for.
WIDE = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
NOTE = "layers in steps of few rows: "


def assembled(folder: Path, model_type: str, options: Mapping[str, Any], **more: Any) -> AssembledModel:
    make_oracle(model_type, options).save_pretrained(folder)
    return assemble_folder(folder, overrides={"few_rows": "torch"}, **more)


def taken(model: Any) -> list[bool]:
    return [layer.few_rows is not None for layer in model.modules() if type(layer) is DecoderLayer]


def counted(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of rows of every call."""
    calls, forward = list[int](), FewRowsLayer.forward

    def run(self: FewRowsLayer, residual: Tensor, ctx: Any) -> None:
        calls.append(len(residual))
        forward(self, residual, ctx)

    monkeypatch.setattr(FewRowsLayer, "forward", run)
    return calls


@pytest.mark.parametrize(
    ("model_type", "options"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("qwen2", {}),
        ("qwen3", {"hidden_act": "gelu_pytorch_tanh"}),
        ("phi3", {}),
        ("smollm3", {"no_rope_layers": [1, 0, 1]}),
    ],
)
def test_logits_by_the_other_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str, options: dict[str, Any]
) -> None:
    oracle = make_oracle(model_type, {**WIDE, **options})
    found = assembled(tmp_path, model_type, {**WIDE, **options})
    ways = [True, "no_rope_layers" not in options, True]
    assert taken(found.model) == ways
    assert f"{NOTE}one op" in found.decisions
    tokens = random_tokens(40)
    calls = counted(found.model, monkeypatch)
    logits = PagedRun(found).prefill_and_decode(tokens, [7, 1, 22])
    torch.testing.assert_close(logits, oracle_logits(oracle, tokens), rtol=1e-4, atol=1e-3)
    assert calls == [1] * (sum(ways) * 11), "the chunk of one token and ten decodes"


def test_rows_side_by_side_up_to_eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = assembled(tmp_path, "qwen3", WIDE)
    prompts = [random_tokens(3 + 5 * row, seed=row) for row in range(9)]
    calls = counted(found.model, monkeypatch)

    def decode(count: int) -> Tensor:
        run = PagedRun(found, num_pages=200)
        rows = [run.row() for _ in range(count)]
        for row, prompt in zip(rows, prompts, strict=False):
            run.step([(row, prompt)])
        return run.step([(row, [row_number]) for row_number, row in enumerate(rows)])

    eight = decode(8)
    assert calls == [8, 8, 8]
    nine = decode(9)
    assert calls == [8, 8, 8], "nine rows are not few"
    torch.testing.assert_close(eight, nine[:8], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("model_type", "options", "reason"),
    [
        ("llama", {}, "heads are of 8"),
        ("llama", {**WIDE, "hidden_size": 132}, "features are no multiples of 8"),
        ("llama", {**WIDE, "num_attention_heads": 16}, "16 heads share a key"),
        ("mistral", {**WIDE, "sliding_window": 21}, "they attend in a way of their own"),
        ("phi3", {**WIDE, "partial_rotary_factor": 0.5}, "they rotate heads in part, in neighbours or not at all"),
        ("qwen3_moe", {**FAMILIES["Qwen3MoeForCausalLM"].options, **WIDE}, "they have other parts"),
        ("starcoder2", {**WIDE, "sliding_window": None}, "they have other parts"),
    ],
)
def test_layers_that_the_op_cannot_do(tmp_path: Path, model_type: str, options: dict[str, Any], reason: str) -> None:
    found = assembled(tmp_path, model_type, options)
    assert not any(taken(found.model))
    assert f"{NOTE}as always, {reason}" in found.decisions


def test_layers_that_are_too_wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    widest = max(128, 2 * 64, 80)
    for most, way in ((widest, True), (widest - 1, False)):
        monkeypatch.setattr("octavo.ops.few_rows.MOST_INS", most)
        found = assembled(tmp_path, "llama", WIDE)
        assert taken(found.model) == [way] * 3
    assert f"{NOTE}as always, they are too wide" in found.decisions


def test_other_layers_stay_out(tmp_path: Path) -> None:
    found = assembled(tmp_path, "gemma2", {**WIDE, "num_key_value_heads": 1})
    assert not any("few rows" in decision for decision in found.decisions)
    assert not any(isinstance(module, FewRowsLayer) for module in found.model.modules())


def test_ranks_that_reach_each_other_go_the_other_way_together(tmp_path: Path) -> None:
    options = {**WIDE, "num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}
    oracle, tokens = make_oracle("llama", options), random_tokens(40)
    oracle.save_pretrained(tmp_path)

    def run(mesh: Mesh) -> Tensor:
        found = assemble_folder(tmp_path, overrides={"few_rows": "torch"}, mesh=mesh)
        assert all(taken(found.model))
        return PagedRun(found).prefill_and_decode(tokens, [7, 1, 22])

    for logits in on_ranks(2, 1, run, PeerThreads):
        torch.testing.assert_close(logits, oracle_logits(oracle, tokens), rtol=1e-4, atol=1e-3)


def test_ranks_and_the_choice_of_kernel(tmp_path: Path) -> None:
    make_oracle("llama", {**WIDE, "num_key_value_heads": 2}).save_pretrained(tmp_path)
    alone = assemble_folder(tmp_path)
    assert not any(taken(alone.model)), "the torch reference is slower than what layers do"
    assert "few_rows apart: cuda needs a device of cuda, not cpu" in alone.decisions
    for shared in on_ranks(2, 1, lambda mesh: assemble_folder(tmp_path, overrides={"few_rows": "torch"}, mesh=mesh)):
        assert not any(taken(shared.model))
        assert f"{NOTE}as always, ranks share them that do not reach each other's memory" in shared.decisions
    forced = assemble_folder(tmp_path, overrides={"few_rows": "torch"})
    assert "few_rows torch" in forced.unrecordable
    assert "few_rows torch" not in alone.unrecordable
    assert TINY["num_hidden_layers"] == sum(taken(forced.model))
