"""Any model on any mesh: logits equal those of transformers, though no model file knows of ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.base.errors import ConfigError
from octavo.nn.parallel.mesh import Mesh
from octavo.worker.loader.assemble import AssembledModel
from tests.models.oracle import assemble_folder, make_oracle, oracle_logits, random_tokens
from tests.models.paged_run import PagedRun
from tests.models.test_against_transformers import VARIANTS
from tests.models.threads import on_ranks
from tests.models.witnesses import BORROWING, WITNESSES

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **VARIANTS,
    **WITNESSES,
    # Every layer has an input of its own, made from the tokens: later stages get it too.
    "gemma4-inputs": ("gemma4_text", {**BORROWING, "num_kv_shared_layers": 0}),
}
MESHES = {
    # Layers that borrow must be on the stage of the owner.
    **{name: ((2, 1),) for name, (_, options) in MODELS.items() if options.get("num_kv_shared_layers")},
    "falcon-groups-one-norm": ((3, 1), (1, 3)),  # 3 key heads
}
TOKENS = random_tokens(60)


class EarlyStage:
    """A stage before the last, which has no logits."""

    def __init__(self, assembled: AssembledModel) -> None:
        self.forward = assembled.model.forward

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return torch.zeros(1)


def run(folder: Path, mesh: Mesh) -> Tensor:
    assembled = assemble_folder(folder, mesh=mesh)
    paged = PagedRun(assembled)
    if not mesh.ends:
        paged.model = EarlyStage(assembled)
    return paged.prefill_and_decode(TOKENS, [7, 33, 16])


@pytest.mark.parametrize("name", MODELS)
def test_logits_on_meshes(tmp_path: Path, name: str) -> None:
    model_type, options = MODELS[name]
    oracle = make_oracle(model_type, options)
    oracle.save_pretrained(tmp_path)
    expected = oracle_logits(oracle, TOKENS)
    for tensor, pipeline in MESHES.get(name, ((2, 2), (1, 3))):
        found = on_ranks(tensor, pipeline, lambda mesh: run(tmp_path, mesh))
        for logits in found[-tensor:]:
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("tensor", [3, 6])
def test_key_heads_are_repeated_where_there_are_fewer_than_ranks(tmp_path: Path, tensor: int) -> None:
    oracle = make_oracle("llama", {"num_key_value_heads": 3 if tensor == 6 else 1, "intermediate_size": 84})
    oracle.save_pretrained(tmp_path)
    expected = oracle_logits(oracle, TOKENS)
    for logits in on_ranks(tensor, 1, lambda mesh: run(tmp_path, mesh)):
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-3)


def test_experts_are_cut_or_spread_by_a_table(tmp_path: Path) -> None:
    model_type, options = WITNESSES["deepseek-v2"]
    oracle = make_oracle(model_type, options)
    oracle.save_pretrained(tmp_path)
    expected = oracle_logits(oracle, TOKENS)
    # 8 experts; every second one on the first rank, then in some order.
    for table in ((), (0, 4, 1, 5, 2, 6, 3, 7), (3, 1, 4, 7, 5, 2, 6, 0)):
        found = on_ranks(
            2, 2, lambda mesh, table=table: run(tmp_path, replace(mesh, expert=mesh.tensor, experts=table))
        )
        for logits in found[-2:]:
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-3)
    make_oracle(model_type, {**options, "intermediate_size": 84}).save_pretrained(tmp_path / "wide")
    with pytest.raises(ConfigError, match="8 units of 1 features cannot be spread over 3 ranks"):
        on_ranks(3, 1, lambda mesh: assemble_folder(tmp_path / "wide", mesh=replace(mesh, expert=mesh.tensor)))


def test_a_borrower_away_from_its_owner_is_refused(tmp_path: Path) -> None:
    model_type, options = WITNESSES["gemma4"]
    make_oracle(model_type, options).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="reads what layer 1 keeps, so one stage must have both"):
        on_ranks(1, 2, lambda mesh: assemble_folder(tmp_path, mesh=mesh))


def test_a_rank_holds_its_share_only(tmp_path: Path) -> None:
    make_oracle("llama", {"tie_word_embeddings": True}).save_pretrained(tmp_path)

    def held(mesh: Mesh) -> dict[str, tuple[int, ...]]:
        model: Any = assemble_folder(tmp_path, mesh=mesh).model
        return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}

    first, _, last, other = on_ranks(2, 2, held)
    assert {name.split(".")[2] for name in first if ".layers." in name} == {"0", "1"}
    assert {name.split(".")[2] for name in last if ".layers." in name} == {"2"}
    # The last stage needs the table too, for the head that is tied to it.
    assert first["embed.weight"] == last["embed.weight"] == (100, 48)
    assert other["embed.weight"] == (99, 48)
    assert last["decoder.layers.2.mlp.down.pieces.0.weight"] == (48, 40)
    assert last["decoder.layers.2.attention.qkv.pieces.0.weight"] == ((3 + 1 + 1) * 8, 48)
