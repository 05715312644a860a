"""Models that keep and compute other things than a dense decoder does: logits equal those of transformers in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.models.oracle import assemble_folder, oracle_logits, random_tokens
from tests.models.paged_run import PagedRun
from tests.models.witnesses import WITNESSES, make_witness

SIDE_BY_SIDE = ("qwen3-moe", "deepseek-v2", "gemma4", "qwen3-next")


@pytest.mark.parametrize("witness", WITNESSES)
def test_logits_in_chunks_then_token_by_token(tmp_path: Path, witness: str) -> None:
    oracle = make_witness(witness)
    oracle.save_pretrained(tmp_path)
    tokens = random_tokens(75)
    expected = oracle_logits(oracle, tokens)
    assert expected.std() > 0.5, "an oracle that says the same of all tokens proves nothing"
    run = PagedRun(assemble_folder(tmp_path))
    torch.testing.assert_close(run.prefill_and_decode(tokens, [7, 33, 16]), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("witness", SIDE_BY_SIDE)
def test_rows_side_by_side_do_not_touch_each_other(tmp_path: Path, witness: str) -> None:
    oracle = make_witness(witness)
    oracle.save_pretrained(tmp_path)
    texts = [random_tokens(count, seed=count) for count in (64, 41, 18, 1)]
    expected = [oracle_logits(oracle, text) for text in texts]
    run = PagedRun(assemble_folder(tmp_path), num_pages=128)
    rows, done = [run.row() for _ in texts], [0] * len(texts)
    # Every step mixes rows that decode with rows whose prompt comes in chunks; rows end at different times.
    for step in ([9, 1, 17, 1], [30, 25, 1, 0], [1, 1, 0, 0], [24, 14, 0, 0]):
        owners = [i for i, count in enumerate(step) if count]
        work = [(rows[i], texts[i][done[i] : done[i] + step[i]]) for i in owners]
        found = run.step(work).split([len(tokens) for _, tokens in work])
        for i, logits in zip(owners, found, strict=True):
            want = expected[i][done[i] : done[i] + step[i]]
            torch.testing.assert_close(logits, want, rtol=1e-4, atol=1e-3)
            done[i] += step[i]
    assert done == [len(text) for text in texts]
