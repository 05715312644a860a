"""The sampler against float64 numpy, row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.ops.draw.filters import keep_sorted, keep_top
from octavo.ops.draw.reference import draw as reference
from octavo.ops.draw.uniform import uniform
from octavo.protocol.arrays import int32
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.step import Admission
from octavo.worker.sampling.logprobs import token_logprobs
from octavo.worker.sampling.rows import SamplingBatch, SamplingRows
from octavo.worker.sampling.sampler import sample

CPU = torch.device("cpu")
_MASK = 2**64 - 1


def admission(slot=0, seed=0, choice=0, stop_ids=(), num_prompt=1, tokens=(0,), bad_tokens=(), **params):
    return Admission(
        slot=slot,
        generation=0,
        key=0,
        choice=choice,
        tokens=int32(tokens),
        bad_tokens=bad_tokens,
        num_prompt=num_prompt,
        num_computed=0,
        seed=seed,
        stop_ids=tuple(stop_ids),
        sampling=SamplingParams(**params),
    )


def rows_of(admissions, vocab):
    """Return the parameters of these admissions, with their histories."""
    num_slots = max(a.slot for a in admissions) + 1
    history = torch.full((num_slots, max(len(a.tokens) for a in admissions) + 8), vocab - 1, dtype=torch.int32)
    bounds = np.zeros(num_slots, np.int64)
    for one in admissions:
        bounds[one.slot] = len(one.tokens)
        history[one.slot, : len(one.tokens)] = torch.from_numpy(one.tokens.copy())
    rows = SamplingRows(history, bounds, vocab)
    rows.admit(admissions)
    return rows


def draw(logits, admissions, positions):
    rows = rows_of(admissions, logits.shape[1])
    slots = np.array([a.slot for a in admissions])
    return sample_by(logits, rows, slots, torch.as_tensor(positions))


def batch_of(slots, positions):
    return SamplingBatch(
        sampling=np.arange(len(slots)), slots=slots, targets=torch.from_numpy(slots), positions=positions
    )


def sample_by(logits, rows, slots, positions):
    return sample(logits, rows, batch_of(slots, positions), reference)


def splitmix(seed, choice, position):
    state = 0
    for part in (seed, choice, position):
        state = (state + (part + 1) * 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return (state >> 12) / 2**52


def reference_probs(logits, temperature, top_k, top_p, min_p):
    """What SamplingParams mean, over one float64 row: temperature, then min_p, top_k, top_p."""
    weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    weights[weights < min_p] = 0.0
    order = np.argsort(-weights, kind="stable")
    if top_k > 0:
        weights[order[top_k:]] = 0.0
    weights /= weights.sum()
    if top_p < 1.0:
        before = np.concatenate([[0.0], weights[order].cumsum()[:-1]])
        weights[order[before >= top_p]] = 0.0
    return weights / weights.sum()


def test_uniform_is_splitmix_of_the_key():
    keys = [(0, 0, 0), (42, 0, 7), (42, 1, 7), (-(2**63) + 1, 3, 131071), (2**63 - 1, 16383, 1)]
    got = uniform(*(torch.tensor(part) for part in zip(*keys, strict=True)))
    assert got.tolist() == [splitmix(*key) for key in keys]


def test_uniform_is_uniform_along_positions_choices_and_seeds():
    count = torch.arange(20000)
    zero = torch.zeros_like(count)
    for parts in ((zero, zero, count), (zero, count, zero), (count, zero, zero)):
        numbers = uniform(*parts).numpy()
        observed = np.histogram(numbers, bins=50, range=(0, 1))[0]
        assert ((observed - 400) ** 2 / 400).sum() < 90  # chi-square, 49 degrees: p = 0.0003
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.5, "top_k": 5},
        {"top_p": 0.7},
        {"min_p": 0.1},
        {"temperature": 1.5, "top_k": 9, "top_p": 0.8, "min_p": 0.02},
    ],
)
def test_frequencies_follow_the_reference(params):
    vocab, draws = 32, 20000
    logits = torch.from_numpy(np.random.default_rng(1).normal(0, 1.5, vocab).astype(np.float32))
    rows = rows_of([admission(seed=11, **params)], vocab)
    got = sample_by(logits.expand(draws, vocab), rows, np.zeros(draws, np.int64), torch.arange(draws)).ids.numpy()
    full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | params
    expected = reference_probs(logits.numpy(), **full) * draws
    observed = np.bincount(got, minlength=vocab)
    assert (observed[expected == 0] == 0).all()
    common = expected >= 5
    statistic = ((observed - expected)[common] ** 2 / expected[common]).sum()
    freedom = int(common.sum()) - 1
    assert freedom >= 3
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5  # four deviations


@pytest.mark.parametrize("vocab", [40, 1000])
@pytest.mark.parametrize("levels", [7, 10**6])  # few levels: many ties
@pytest.mark.parametrize("keep", [keep_top, keep_sorted])
def test_filters_keep_exactly_the_reference_set(vocab, levels, keep):
    rng = np.random.default_rng(vocab + levels)
    cases = [(0, 0.5), (0, 0.999), (0, 1e-9), (1, 1.0), (3, 1.0), (17, 0.6), (vocab - 1, 0.3), (39, 1.0), (0, 0.9)]
    # Whole numbers: sums are exact in any order.
    weights = rng.integers(0, levels, (len(cases), vocab)).astype(np.float64)
    weights[:, 5] = levels
    kept = keep(
        torch.from_numpy(weights),
        torch.tensor([k for k, _ in cases]),
        torch.tensor([p for _, p in cases], dtype=torch.float64),
    )
    for row, (top_k, top_p) in enumerate(cases):
        order = np.argsort(-weights[row], kind="stable")[: top_k or vocab]
        ranked = weights[row][order]
        before = np.concatenate([[0.0], ranked.cumsum()[:-1]])
        stays = order if top_p == 1.0 else order[before < top_p * ranked.sum()]
        assert set(np.flatnonzero(kept[row].numpy())) == set(stays), (top_k, top_p)


def test_a_flat_distribution_needs_more_than_the_candidates():
    logits = torch.zeros(1, 5000)
    ids = {int(draw(logits, [admission(seed=seed, top_p=0.5)], [1]).ids) for seed in range(300)}
    assert max(ids) < 2500
    assert len(ids) > 250


def test_greedy_takes_the_lowest_id_of_equals():
    logits = torch.tensor([[0.0, 3.0, 1.0, 3.0], [2.0, 2.0, 2.0, 2.0]])
    for params in ({"temperature": 0}, {"temperature": 1e-6}, {"temperature": 1.0, "top_k": 1}):
        result = draw(logits, [admission(0, **params), admission(1, **params)], [1, 1])
        assert result.ids.tolist() == [1, 0]


def test_small_temperatures_equal_greedy():
    logits = torch.randn(6, 500, generator=torch.Generator().manual_seed(0)) * 5
    admissions = [admission(i, seed=i, temperature=t) for i, t in enumerate((1e-3, 1e-4, 1.1e-5, 1e-5, 1e-6, 1e-12))]
    assert draw(logits, admissions, [3] * 6).ids.tolist() == logits.argmax(1).tolist()


def test_a_row_is_the_same_alone_and_among_others():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(51, 700, generator=generator) * 3
    kinds = [
        {"temperature": 0.8},
        {"temperature": 0},
        {"top_p": 0.9},
        {"top_k": 300},
        {"top_k": 4, "min_p": 0.05},
        {"temperature": 2.0},
    ]
    admissions = [admission(i, seed=100 + i, choice=i % 3, **kinds[i % len(kinds)]) for i in range(51)]
    positions = list(range(10, 61))
    together = draw(logits, admissions, positions).ids.tolist()
    for row in range(51):
        alone = draw(logits[row : row + 1], [admissions[row]], [positions[row]]).ids.tolist()
        assert alone == together[row : row + 1], row


def test_slices_do_not_change_what_is_drawn(monkeypatch):
    logits = torch.randn(20, 100, generator=torch.Generator().manual_seed(4))
    admissions = [admission(i, seed=5, choice=i, top_p=0.95) for i in range(20)]
    whole = draw(logits, admissions, [9] * 20).ids.tolist()
    monkeypatch.setattr("octavo.ops.draw.reference._SLICE", 300)
    assert draw(logits, admissions, [9] * 20).ids.tolist() == whole


def test_seed_choice_and_position_each_change_the_draw():
    logits = torch.zeros(1, 10**5)
    draws = [
        int(draw(logits, [admission(seed=seed, choice=choice)], [position]).ids)
        for seed, choice, position in ((1, 0, 5), (2, 0, 5), (1, 1, 5), (1, 0, 6), (1, 0, 5))
    ]
    assert len(set(draws[:4])) == 4
    assert draws[4] == draws[0]


def test_min_tokens_holds_back_every_stop_id_until_then():
    vocab = 10
    logits = torch.zeros(4, vocab)
    logits[:, 7], logits[:, 2], logits[:, 4] = 9.0, 8.0, 7.0
    # Stop ids outside the vocabulary must not reach a neighbour's logits.
    asked = {"stop_ids": (7, 2, vocab + 3), "num_prompt": 5, "min_tokens": 3, "temperature": 0}
    admissions = [
        admission(0, **asked),
        admission(1, **asked),
        admission(2, temperature=0),
        admission(3, **(asked | {"temperature": 0.01})),
    ]
    before = logits.clone()
    assert draw(logits, admissions, [5, 8, 5, 7]).ids.tolist() == [4, 7, 7, 4]
    assert torch.equal(logits, before)


def test_a_row_with_only_stop_ids_fails_alone():
    logits = torch.full((2, 4), -float("inf"))
    logits[:, 1] = 0.0
    result = draw(logits, [admission(0, stop_ids=(1,), min_tokens=2), admission(1)], [1, 1])
    assert result.ok.tolist() == [False, True]
    assert int(result.ids[1]) == 1


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "params", [{"temperature": 0}, {"temperature": 1.0}, {"top_p": 0.5, "top_k": 20, "min_p": 0.1}]
)
def test_a_poisoned_row_fails_alone(poison, params):
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(9))
    admissions = [admission(i, seed=i, **params) for i in range(5)]
    clean = draw(logits, admissions, [2] * 5).ids.tolist()
    logits[3, 17] = poison
    logits[1, 0] = -float("inf")  # A token that cannot be is no fault.
    result = draw(logits, admissions, [2] * 5)
    assert result.ok.tolist() == [True, True, True, False, True]
    assert [result.ids[i].item() for i in (0, 2, 4)] == [clean[i] for i in (0, 2, 4)]
    assert 0 <= int(result.ids[3]) < 300


def test_released_slots_forget_what_was_asked():
    rows = rows_of([admission(0, temperature=1.0, stop_ids=(1,), min_tokens=5, logprobs=3)], 4)
    rows.release(np.array([0]))
    rows.admit([admission(0, temperature=0)])
    result = sample_by(torch.tensor([[0.0, 5.0, 0.0, 0.0]]), rows, np.array([0]), torch.tensor([1]))
    assert result.ids.tolist() == [1]
    assert rows.num_logprobs[0] == -1


def test_logprobs_equal_log_softmax_and_are_padded():
    logits = torch.randn(4, 60, generator=torch.Generator().manual_seed(2)) * 4
    ids = int32([3, int(logits[1].argmax()), 5, 59])
    got = token_logprobs(logits, ids, np.array([2, 0, -1, 60]))
    assert got is not None
    expected = torch.log_softmax(logits.double(), dim=1).numpy()
    assert got.wanted.tolist() == [True, True, False, True]
    assert got.ranks.tolist() == [
        1 + int((logits[0] > logits[0, 3]).sum()),
        1,
        0,
        1 + int((logits[3] > logits[3, 59]).sum()),
    ]
    np.testing.assert_allclose(got.chosen[[0, 1, 3]], expected[[0, 1, 3], ids[[0, 1, 3]]], atol=1e-5)
    assert got.top_ids.shape == got.top.shape == (4, 60)
    order = np.argsort(-expected, axis=1, kind="stable")
    assert got.top_ids[0].tolist() == [*order[0, :2].tolist(), *[-1] * 58]
    assert got.top_ids[3].tolist() == order[3].tolist()
    assert (got.top_ids[1:3] == -1).all()
    np.testing.assert_allclose(got.top[3], expected[3, order[3]], atol=1e-5)
    assert (np.diff(got.top[3]) <= 0).all()


def test_no_logprobs_unless_asked():
    assert token_logprobs(torch.zeros(2, 5), int32([1, 2]), np.array([-1, -1])) is None


def test_all_logprobs_mean_the_vocabulary():
    rows = rows_of([admission(0, logprobs=-1), admission(1, logprobs=10**6), admission(2, logprobs=0)], 30)
    assert rows.num_logprobs.tolist() == [30, 30, 0]
