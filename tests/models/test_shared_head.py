"""Ranks that look for likeliest tokens in their parts of the vocabulary find what one finds in all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo.nn.parallel.mesh import Mesh
from octavo.worker.step import shared_head
from tests.models.oracle import TINY, assemble_folder, make_oracle
from tests.models.threads import on_ranks

VOCAB, HIDDEN = TINY["vocab_size"], TINY["hidden_size"]


def test_likeliest_tokens_of_parts(tmp_path: Path) -> None:
    make_oracle("llama", {"tie_word_embeddings": False}).save_pretrained(tmp_path)
    table = torch.randn((VOCAB, HIDDEN), generator=torch.Generator().manual_seed(2))
    # The first feature likes a token of each part equally.
    table[:, 0] = 0.0
    table[[7, VOCAB - 3], 0] = 1.0
    hidden = torch.randn((20, HIDDEN), generator=torch.Generator().manual_seed(3))
    hidden[:4] = 0.0
    hidden[0, 0], hidden[1, 0] = 5.0, -5.0
    hidden[2, 3], hidden[3, 3] = float("nan"), float("inf")
    logits = hidden @ table.T

    def run(mesh: Mesh) -> tuple[Tensor, Tensor]:
        model: Any = assemble_folder(tmp_path, mesh=mesh).model
        head = shared_head(model)
        assert head is model.head
        with torch.no_grad():
            head.tensors["weight"].copy_(table[head.rows.start : head.rows.stop])
            return head.likeliest(hidden)

    for ids, ok in on_ranks(2, 1, run):
        assert ids[:2].tolist() == [7, 0], "of equal ones the lowest"
        assert ok.tolist() == [True, True, False, False] + [True] * 16
        assert torch.equal(ids[4:], logits[4:].argmax(1))
        assert len({int(id) >= VOCAB // 2 for id in ids[4:]}) == 2


def test_one_rank_and_what_changes_logits_behind_the_head_look_at_all(tmp_path: Path) -> None:
    for kind, folder in (("llama", tmp_path / "llama"), ("granite", tmp_path / "granite")):
        make_oracle(kind, {}).save_pretrained(folder)
    assert shared_head(assemble_folder(tmp_path / "llama").model) is None  # pyright: ignore[reportArgumentType]
    for head in on_ranks(2, 1, lambda mesh: shared_head(assemble_folder(tmp_path / "granite", mesh=mesh).model)):
        assert head is None
