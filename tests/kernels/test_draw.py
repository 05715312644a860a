"""Drawing: every candidate gives the tokens of a plain formula, whatever rows ask for, at odd shapes, alone and together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.ops.draw.uniform import uniform
from tests.kernels.binding import candidates, kernel

# (temperature, top_p, min_p, top_k)
KINDS = [
    *((0.0, 1.0, 0.0, 0), (1.0, 1.0, 0.0, 0), (0.7, 1.0, 0.0, 5), (1.0, 0.9, 0.0, 0), (1.5, 0.8, 0.02, 50)),
    *((2.5, 0.3, 0.0, 700), (1.0, 1.0, 0.1, 0), (1.0, 0.5, 0.2, 3), (1.0, 1.0, 0.0, 1), (0.05, 0.999, 0.0, 0)),
]


def parameters(kinds: Any, vocab: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return the arrays of slots, each with a kind and a seed of its own."""
    seeds = torch.randint(-(2**63), 2**63 - 1, (len(kinds),), generator=torch.Generator().manual_seed(seed))
    wholes = torch.zeros(len(kinds), 5, dtype=torch.int64)
    wholes[:, 0] = torch.tensor([kind[3] if kind[3] < vocab else 0 for kind in kinds])
    wholes[:, 1], wholes[:, 2] = seeds, torch.arange(len(kinds)) % 3
    return torch.tensor([kind[:3] for kind in kinds], dtype=torch.float64), wholes


def expected(logits: Tensor, slots: Tensor, positions: Tensor, reals: Tensor, wholes: Tensor) -> list[int]:
    """What the parameters mean, row by row in float64: sorted whole."""
    found = list[int]()
    for row, slot in enumerate(slots.tolist()):
        x, (temperature, top_p, min_p), top_k = logits[row].double().numpy(), reals[slot].tolist(), int(wholes[slot, 0])
        if temperature < 1e-5:
            found.append(int(x.argmax()))
            continue
        weights = np.exp((x - x.max()) / temperature)
        weights[weights < min_p] = 0.0
        order = np.argsort(-weights, kind="stable")
        weights[order[top_k or len(x) :]] = 0.0
        before = np.concatenate([[0.0], weights[order].cumsum()[:-1]])
        if top_p < 1.0:
            weights[order[before >= top_p * weights.sum()]] = 0.0
        (number,) = uniform(*wholes[slot, 1:3].split(1), positions[row : row + 1]).tolist()
        found.append(int(np.searchsorted(weights.cumsum(), number * weights.sum(), side="right")))
    return found


@pytest.mark.parametrize("name", candidates("draw"))
@pytest.mark.parametrize("vocab", [1, 1024, 4999])
@pytest.mark.parametrize("spread", ["equal", "normal", "ties", "steep"])
def test_the_formulas_tokens(name: str, vocab: int, spread: str) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(len(KINDS), vocab, generator=generator)
    logits = {"equal": 0 * logits + 3, "normal": 2 * logits, "ties": (3 * logits).round(), "steep": 40 * logits}[spread]
    # Rows in another order than slots, of a wider table.
    slots, positions = torch.randperm(len(KINDS), generator=generator), torch.arange(len(KINDS)) + 7
    wide, before = torch.randn(len(KINDS), vocab + 3), logits.clone()
    wide[:, :vocab] = logits
    given = slots, positions, *parameters(KINDS, vocab)
    for same in (logits, wide[:, :vocab]) if vocab == 1024 else (logits,):
        ids, ok = kernel("draw", name, "float32")(same, *given)
        assert ids.tolist() == expected(logits, *given)
        assert ok.all()
    assert torch.equal(logits, before)


@pytest.mark.parametrize("name", candidates("draw"))
def test_ties_are_cut_in_the_middle_of_many_parts(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if name.startswith("triton"):
        monkeypatch.setattr("octavo.ops.draw.triton._BLOCK", 128)
    draws, vocab = 4, 8 * 512
    logits = torch.zeros(vocab).index_fill_(0, torch.arange(0, vocab, 2), 1.0).expand(draws, vocab).contiguous()
    reals, wholes = parameters([(1.0, 0.25, 0.0, 0), (1.0, 1.0, 0.0, 501)], vocab)
    slots = torch.arange(draws) % 2
    ids, _ = kernel("draw", name, "float32")(logits, slots, torch.arange(draws), reals, wholes)
    likely, unlikely = vocab // 2 * np.e, vocab // 2
    last = 2 * int(np.ceil((likely + unlikely) * 0.25 / np.e))
    for slot, end in ((0, last), (1, 1002)):
        mine = ids[slots == slot]
        assert (mine % 2 == 0).all()
        assert 0.1 * end < int(mine.max()) < end
    assert ids.tolist() == expected(logits, slots, torch.arange(draws), reals, wholes)


@pytest.mark.parametrize("name", candidates("draw"))
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), None])
def test_a_poisoned_row_fails_alone(name: str, poison: float | None) -> None:
    run, logits = kernel("draw", name, "float32"), torch.randn(len(KINDS), 300)
    given = torch.arange(len(KINDS)), torch.arange(len(KINDS)), *parameters(KINDS, 300)
    clean, _ = run(logits, *given)
    for row in range(len(KINDS)):
        poisoned = logits.clone()
        poisoned[row, 17 if poison is not None else slice(None)] = -float("inf") if poison is None else poison
        # A token that cannot be is no fault.
        poisoned[row - 1, int(logits[row - 1].argmin())] = -float("inf")
        ids, ok = run(poisoned, *given)
        assert ok.tolist() == [other != row for other in range(len(KINDS))]
        assert 0 <= int(ids[row]) < 300
        others = [other for other in range(len(KINDS)) if other not in (row, (row - 1) % len(KINDS))]
        assert torch.equal(ids[others], clean[others])
        if row > 1 or not name.startswith("torch"):
            break


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [32000, 151936, 262144])
@pytest.mark.parametrize("num_rows", [1, 33, 256])
def test_many_rows_of_large_vocabularies(vocab: int, num_rows: int) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    kinds = [KINDS[row % len(KINDS)] for row in range(num_rows)]
    for spread in (0.3, 2.0, 12.0):
        logits = (spread * torch.randn(num_rows, vocab, generator=generator)).bfloat16().float()
        given = torch.arange(num_rows), torch.arange(num_rows) + 5, *parameters(kinds, vocab, seed=vocab)
        outputs: list[tuple[Tensor, Tensor]] = []
        run: Callable[..., Any] = kernel("draw", "triton on cuda", "float32")
        outputs += [run(logits, *given), run(logits, *given)]
        (ids, ok), (again, _) = outputs
        assert ok.all()
        assert torch.equal(ids, again)
        some = torch.arange(0, num_rows, 7)
        assert ids[some].tolist() == expected(logits[some], some, given[1][some], *given[2:])
