"""What requests change of logits: exact masks, penalties against plain references and against `transformers`."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from octavo.base.errors import PluginError
from octavo.worker.sampling.adjust import adjust
from octavo.worker.sampling.processors import load_processors
from octavo.worker.sampling.rows import SamplingRows
from tests.worker.test_sampling import CPU, admission, draw, reference_probs, rows_of, sample_by

VOCAB = 40
NEVER = -float("inf")


def logits_of(rows, seed=0, vocab=VOCAB):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 4


def adjusted(logits, admissions, positions=None):
    """Return the adjusted logits; positions: behind the histories if not given."""
    rows = rows_of(admissions, logits.shape[1])
    slots = np.array([a.slot for a in admissions])
    places = [len(a.tokens) for a in admissions] if positions is None else positions
    before = logits.clone()
    after = adjust(logits, rows, slots, torch.tensor(places))
    assert torch.equal(logits, before), "the model's own logits are needed for log-probabilities"
    return after


def penalized(logits, tokens, num_prompt, presence=0.0, frequency=0.0, repetition=1.0):
    """What the three penalties mean, token by token, in float64."""
    after = logits.double().numpy().copy()
    for token in range(len(after)):
        made = list(tokens[num_prompt:]).count(token)
        if token in tokens:
            after[token] = after[token] / repetition if after[token] > 0 else after[token] * repetition
        after[token] -= frequency * made + presence * (made > 0)
    return after


def test_penalties_equal_the_plain_reference():
    rng = np.random.default_rng(5)
    kinds = [
        {"presence_penalty": 1.5},
        {"frequency_penalty": -0.75},
        {"repetition_penalty": 1.7},
        {"repetition_penalty": 0.4},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0, "repetition_penalty": 1.2},
        {},
    ]
    admissions, expected = [], []
    logits = logits_of(len(kinds))
    for slot, kind in enumerate(kinds):
        tokens, num_prompt = rng.integers(0, 12, 10 + 7 * slot).tolist(), 5 + slot
        admissions.append(admission(slot, num_prompt=num_prompt, tokens=tokens, **kind))
        short = {name.removesuffix("_penalty"): value for name, value in kind.items()}
        expected.append(penalized(logits[slot], tokens, num_prompt, **short))
    np.testing.assert_allclose(adjusted(logits, admissions).numpy(), np.stack(expected), rtol=1e-5, atol=1e-5)


def test_presence_and_frequency_do_not_see_the_prompt_and_repetition_does():
    logits = torch.ones(2, VOCAB)
    tokens = [7, 7, 7, 9]
    after = adjusted(
        logits,
        [
            admission(0, num_prompt=3, tokens=tokens, presence_penalty=1.0, frequency_penalty=0.5),
            admission(1, num_prompt=3, tokens=tokens, repetition_penalty=2.0),
        ],
    )
    assert after[:, [7, 9, 3]].tolist() == [[1.0, -0.5, 1.0], [0.5, 0.5, 1.0]]


def test_tokens_that_the_host_has_not_seen_count():
    rows = rows_of([admission(0, tokens=(1, 2), num_prompt=1, frequency_penalty=1.0)], VOCAB)
    # The device has appended two tokens since; the host knows at most that the row has grown.
    rows.history[0, 2:4] = torch.tensor([5, 5])
    rows.bounds[0] = 6
    after = adjust(torch.zeros(1, VOCAB), rows, np.array([0]), torch.tensor([4]))
    assert after[0, [1, 2, 5, VOCAB - 1]].tolist() == [0.0, -1.0, -2.0, 0.0]


def test_slices_change_nothing(monkeypatch):
    logits = logits_of(9)
    admissions = [admission(i, tokens=range(i + 1), num_prompt=1, frequency_penalty=0.5) for i in range(9)]
    whole = adjusted(logits, admissions)
    monkeypatch.setattr("octavo.worker.sampling.adjust._SLICE", 2 * VOCAB)
    assert torch.equal(adjusted(logits, admissions), whole)


def test_allowed_ids_leave_exactly_these():
    logits = logits_of(3)
    after = adjusted(
        logits, [admission(0, allowed_token_ids=[3, 9]), admission(1), admission(2, allowed_token_ids=[0])]
    )
    for row, allowed in ((0, [3, 9]), (2, [0])):
        assert np.flatnonzero(after[row].isfinite().numpy()).tolist() == allowed
        assert torch.equal(after[row, allowed], logits[row, allowed])
    assert torch.equal(after[1], logits[1])


def test_bias_is_added():
    logits = logits_of(2)
    after = adjusted(logits, [admission(0), admission(1, logit_bias={4: 2.5, "39": -100})])
    expected = logits.clone()
    expected[1, 4] += 2.5
    expected[1, 39] -= 100
    assert torch.equal(after, expected)


def test_the_order_is_masks_bias_penalties():
    row = admission(0, tokens=(3, 4), num_prompt=1, logit_bias={3: 2.0, 5: 9.0}, repetition_penalty=2.0)
    after = adjusted(torch.ones(1, VOCAB), [row])
    assert after[0, [3, 4, 5]].tolist() == [1.5, 0.5, 10.0]


WORDS = ((7,), (1, 2), (1, 3, 2), (4, 4), (9, 9, 9, 6))


@pytest.mark.parametrize(
    ("tokens", "forbidden"),
    [
        ((5,), {7}),
        ((5, 1), {7, 2}),
        ((5, 1, 3), {7, 2}),
        ((3,), {7}),
        ((1, 3, 2), {7}),
        ((4,), {7, 4}),
        ((4, 4), {7, 4}),
        ((9, 9), {7}),
        ((8, 9, 9, 9), {7, 6}),
        ((0, 0, 1), {7, 2}),
    ],
)
def test_bad_words_forbid_what_would_complete_them(tokens, forbidden):
    logits = logits_of(2)
    after = adjusted(logits, [admission(0), admission(1, tokens=tokens, bad_tokens=WORDS)])
    assert set(np.flatnonzero(~after[1].isfinite().numpy())) == forbidden
    assert torch.equal(after[0], logits[0])


def test_words_of_several_slots_do_not_mix():
    logits = logits_of(3)
    first, second = ((1, 2),), ((5,), (1, 1, 3))
    after = adjusted(
        logits,
        [
            admission(0, tokens=(1, 1), bad_tokens=first),
            admission(1, tokens=(1, 1), bad_tokens=second),
            admission(2, tokens=(1, 1), bad_tokens=(*first, *second)),
        ],
    )
    assert [set(np.flatnonzero(~row.isfinite().numpy())) for row in after] == [{2}, {5, 3}, {2, 5, 3}]


def test_the_same_as_transformers():
    tokens = [3, 8, 8, 1, 5, 9, 1]
    ids, logits = torch.tensor([tokens]), logits_of(1, seed=3)
    one = {"tokens": tokens, "num_prompt": 4}
    cases = [
        (RepetitionPenaltyLogitsProcessor(1.3), {"repetition_penalty": 1.3}),
        (NoBadWordsLogitsProcessor([[7], [1, 2], [9, 1, 4], [1, 1]], eos_token_id=0), {}),
        (SequenceBiasLogitsProcessor([[[4], 3.0], [[8], -1.5]]), {"logit_bias": {4: 3.0, 8: -1.5}}),
        (MinNewTokensLengthLogitsProcessor(4, 6, [11, 12]), {"min_tokens": 6, "stop_ids": (11, 12)}),
        (MinNewTokensLengthLogitsProcessor(4, 3, [11, 12]), {"min_tokens": 3, "stop_ids": (11, 12)}),
    ]
    for processor, asked in cases:
        words = ((7,), (1, 2), (9, 1, 4), (1, 1)) if isinstance(processor, NoBadWordsLogitsProcessor) else ()
        expected = processor(ids, logits.clone())
        torch.testing.assert_close(adjusted(logits, [admission(0, **one, bad_tokens=words, **asked)]), expected)


ALL = {
    "presence_penalty": 0.7,
    "frequency_penalty": 0.3,
    "repetition_penalty": 1.3,
    "logit_bias": {2: 1.0, 6: -2.0},
    "allowed_token_ids": list(range(1, 25)),
    "temperature": 1.4,
    "top_p": 0.9,
}


def test_frequencies_follow_the_reference_with_everything_on():
    draws, tokens = 20000, [2, 2, 3, 30, 2, 11]
    logits = logits_of(1, seed=1)[0] / 3
    row = admission(0, seed=17, tokens=tokens, num_prompt=2, bad_tokens=((11, 8), (4,)), **ALL)
    chosen = []
    for first in range(0, draws, 1000):
        copies = rows_of([admission(i, seed=first + i, **vars_of(row)) for i in range(1000)], VOCAB)
        got = sample_by(logits.expand(1000, VOCAB), copies, np.arange(1000), torch.full((1000,), 6))
        assert got.ok.all()
        chosen.append(got.ids.numpy())
    changed = logits.clone()
    changed[2] += 1.0
    changed[6] -= 2.0
    reference = penalized(changed, tokens, 2, presence=0.7, frequency=0.3, repetition=1.3)
    reference[[8, 4, 0, *range(25, VOCAB)]] = NEVER
    expected = reference_probs(reference, 1.4, 0, 0.9, 0.0) * draws
    observed = np.bincount(np.concatenate(chosen), minlength=VOCAB)
    assert (observed[expected == 0] == 0).all()
    common = expected >= 5
    statistic = ((observed - expected)[common] ** 2 / expected[common]).sum()
    freedom = int(common.sum()) - 1
    assert freedom >= 8
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5  # four deviations


def vars_of(row):
    return {"tokens": row.tokens.tolist(), "num_prompt": row.num_prompt, "bad_tokens": row.bad_tokens, **ALL}


def test_a_row_is_the_same_alone_and_among_others():
    kinds = [
        {"frequency_penalty": 1.0, "temperature": 0.9},
        {"logit_bias": {3: 5.0}, "temperature": 0.0},
        {"bad_tokens": ((1, 2), (7,)), "temperature": 1.5},
        {},
        {"allowed_token_ids": [2, 4, 6], "repetition_penalty": 1.5},
        {"min_tokens": 9, "stop_ids": (1, 2, 3)},
    ]
    rng, logits = np.random.default_rng(2), logits_of(30, seed=8)
    admissions = [
        admission(i, seed=i, tokens=rng.integers(0, 9, 3 + i % 7).tolist(), num_prompt=2, **kinds[i % len(kinds)])
        for i in range(30)
    ]
    places = [len(a.tokens) for a in admissions]
    together = draw(logits, admissions, places).ids.tolist()
    for row in range(30):
        assert draw(logits[row : row + 1], [admissions[row]], [places[row]]).ids.tolist() == together[row : row + 1]


def test_nothing_left_to_choose_fails_alone():
    logits = logits_of(2)
    nothing = admission(0, allowed_token_ids=[1, 2], bad_tokens=((1,), (2,)))
    result = draw(logits, [nothing, admission(1, temperature=0)], [1, 1])
    assert result.ok.tolist() == [False, True]
    assert int(result.ids[1]) == int(logits[1].argmax())


def test_released_slots_forget_and_rows_may_change_places():
    rows = rows_of([admission(0, logit_bias={1: 50.0}), admission(1, bad_tokens=((2,),)), admission(2)], VOCAB)
    logits = torch.zeros(3, VOCAB)

    def changed(slots):
        after = adjust(logits[: len(slots)], rows, np.array(slots), torch.ones(len(slots), dtype=torch.int64))
        return [(row, i) for row, i in (after != 0).nonzero().tolist()]

    assert changed([0, 1, 2]) == [(0, 1), (1, 2)]
    assert changed([0, 1, 2]) == [(0, 1), (1, 2)]
    assert changed([2, 1, 0]) == [(1, 2), (2, 1)]
    rows.release(np.array([0]))
    assert changed([2, 1, 0]) == [(1, 2)]
    rows.admit([admission(0, logit_bias={9: 1.0})])
    assert changed([2, 1, 0]) == [(1, 2), (2, 9)]
    rows.release(np.array([0, 1, 2]))
    assert changed([2, 1, 0]) == []


def test_nobody_asks_and_nothing_is_copied():
    rows = rows_of([admission(0, temperature=0), admission(1, temperature=0, logprobs=0)], VOCAB)
    logits = logits_of(2)
    assert adjust(logits, rows, np.array([0, 1]), torch.tensor([1, 1])) is logits
    assert rows.ending(np.array([0])) == "greedy"
    assert rows.ending(np.array([0, 1])) == "logits"


class Doubling:
    """Doubles the logits of slots whose request says so."""

    graph_safe = True

    def __init__(self, vocab_size, num_slots, device):
        self.factors = torch.ones(num_slots, device=device)

    def admit(self, admission):
        asked = (admission.sampling.extra_args or {}).get("factor")
        self.factors[admission.slot] = 1.0 if asked is None else asked
        return asked is not None

    def release(self, slot):
        self.factors[slot] = 1.0

    def apply(self, logits, slots, index, positions):
        return logits * self.factors[index, None]


def test_processors_of_the_engine_see_slots_come_and_go():
    processors = load_processors(["tests.worker.test_adjust:Doubling"], VOCAB, 2, CPU)
    rows = SamplingRows(torch.zeros((2, 8), dtype=torch.int32), np.ones(2, np.int64), VOCAB, processors)
    rows.admit([admission(0), admission(1, extra_args={"factor": 3.0}, logit_bias={5: 1.0})])
    logits, slots, places = logits_of(2), np.array([1, 0]), torch.ones(2, dtype=torch.int64)
    biased = logits.clone()
    biased[0, 5] += 1.0
    after = adjust(logits, rows, slots, places)
    assert torch.equal(after, torch.stack([biased[0] * 3.0, logits[1]]))
    rows.release(np.array([1]))
    rows.admit([admission(1)])
    assert adjust(logits, rows, slots, places) is logits


@pytest.mark.parametrize("path", ["tests.worker.test_adjust:nothing", "tests.worker.test_adjust:Silent"])
def test_what_is_no_processor_is_refused_at_start(path):
    with pytest.raises(PluginError, match=path.split(":")[1]):
        load_processors([path], VOCAB, 2, CPU)


class Silent(Doubling):
    """Does not say whether it is safe in a graph."""

    graph_safe = property()
    admit = None


def test_functions_of_a_request_see_prompt_and_output():
    seen = []

    def of_three(prompt, output, logits):
        seen.append((prompt, output))
        logits[5] = 99.0
        return logits

    def of_two(output, logits):
        seen.append(output)
        return logits * 2

    logits = logits_of(2)
    row = admission(1, tokens=(3, 4, 6), num_prompt=2, logits_processors=[of_three, of_two])
    after = adjusted(logits, [admission(0), row])
    assert seen == [([3, 4], [6]), [6]]
    expected = logits[1] * 2
    expected[5] = 198.0
    assert torch.equal(after, torch.stack([logits[0], expected]))


@pytest.mark.parametrize(
    "broken", [lambda output, logits: 1 / 0, lambda output, logits: logits[:3], lambda output, logits: None]
)
def test_a_function_that_fails_ends_its_own_row_only(broken, caplog):
    logits = logits_of(2)
    with caplog.at_level(logging.ERROR):
        result = draw(logits, [admission(0, temperature=0), admission(1, logits_processors=[broken])], [1, 1])
    assert result.ok.tolist() == [True, False]
    assert int(result.ids[0]) == int(logits[0].argmax())
