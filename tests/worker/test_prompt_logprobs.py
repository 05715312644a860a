"""Log-probabilities of prompts through `LLM`: chunks, a warm cache, preemption, several at once; and the modes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.base.errors import InvalidRequestError
from octavo.ops.draw.reference import draw as reference
from octavo.worker.sampling.logprobs import prompt_logprobs, sampled_logprobs
from octavo.worker.sampling.sampler import sample
from tests.equivalence.models import PROMPTS, VOCAB, TinyModel
from tests.worker.test_adjust import penalized
from tests.worker.test_sampling import admission, batch_of, rows_of

OPTIONS = {"max_model_len": 192, "max_num_seqs": 8, "dtype": "float32"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return TinyModel("llama", tmp_path_factory.mktemp("tiny"))


def expected(model, tokens):
    """Return float64 log-probabilities of all tokens behind each prefix, [len(tokens) - 1, V]."""
    with torch.inference_mode():
        logits = model._oracle(torch.tensor([tokens]), use_cache=False).logits[0, :-1]
    return torch.log_softmax(logits.double(), -1).numpy()


def check(output, tokens, model, top):
    assert output.prompt_token_ids == tokens
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(tokens)
    for place, row in enumerate(expected(model, tokens), 1):
        entries = output.prompt_logprobs[place]
        assert next(iter(entries)) == tokens[place]
        assert entries[tokens[place]].rank == 1 + int((row > row[tokens[place]]).sum())
        assert top <= len(entries) <= top + 1
        for token, one in entries.items():
            assert one.logprob == pytest.approx(row[token], abs=1e-3)
        assert sum(one.rank <= top for one in entries.values()) == top


@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 7}, {"async_scheduling": False}])
def test_prompts_have_the_log_probabilities_of_transformers(model, options):
    prompts = [list(PROMPTS[i]) for i in (2, 0, 3, 10, 11, 12, 13, 14)]
    params = [SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=i % 4, n=1 + i % 2) for i in range(8)]
    plain = [SamplingParams(temperature=0, max_tokens=3) for _ in prompts]
    with LLM(model.path, **OPTIONS, **options) as llm:
        answers = llm.generate(prompts, plain, use_tqdm=False)
        assert all(output.prompt_logprobs is None for output in answers)
        # Everything lies in the cache now, and is not read.
        for _ in range(2):
            outputs = llm.generate(prompts, params, use_tqdm=False)
            for index, (output, tokens) in enumerate(zip(outputs, prompts, strict=True)):
                check(output, tokens, model, index % 4)
                assert output.num_cached_tokens == 0
                assert {tuple(c.token_ids) for c in output.outputs} == {tuple(answers[index].outputs[0].token_ids)}
        # What such requests computed is there for others.
        assert llm.generate(prompts[:1], plain[:1], use_tqdm=False)[0].num_cached_tokens > 0


def test_a_small_pool_and_all_of_the_vocabulary(model):
    prompts = [list(PROMPTS[i]) for i in (0, 1, 2, 3)]
    params = [SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, prompt_logprobs=k) for k in (-1, 1, 0, 2)]
    with LLM(model.path, **OPTIONS, num_pages=12, block_size=16, max_num_batched_tokens=16) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert llm.get_stats().num_preemptions > 0
    for output, tokens, top in zip(outputs, prompts, (VOCAB, 1, 0, 2), strict=True):
        check(output, tokens, model, top)


def test_a_limit_holds_for_prompts_too(model):
    with LLM(model.path, **OPTIONS) as llm:
        with pytest.raises(InvalidRequestError, match=f"prompt_logprobs must be at most {VOCAB}, not 1000") as caught:
            llm.generate([[1, 2]], SamplingParams(prompt_logprobs=1000), use_tqdm=False)
        assert caught.value.field == "prompt_logprobs"
        (alone,) = llm.generate([[5]], SamplingParams(prompt_logprobs=1, max_tokens=1), use_tqdm=False)
        assert alone.prompt_logprobs == [None]


def test_slices_of_a_prompt_are_joined(monkeypatch):
    hidden = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    head = torch.randn(5, 30, generator=torch.Generator().manual_seed(1))
    ids, num_top = np.arange(9, dtype=np.int32), np.array([1, 1, 3, -1, -1, 0, 2, -1, 5])

    def run():
        return prompt_logprobs(lambda h: h @ head, hidden, ids, num_top, norm=True, vocab_size=30)

    whole = run()
    for size in (1, 2, 4):
        monkeypatch.setattr("octavo.worker.sampling.logprobs._SLICE", 30 * size)
        for name in ("wanted", "chosen", "ranks", "top_ids", "top"):
            np.testing.assert_allclose(getattr(run(), name), getattr(whole, name), atol=1e-6)


def test_named_tokens_are_reported_in_place_of_the_likeliest(model):
    prompt = list(PROMPTS[0])
    params = [
        SamplingParams(temperature=1.0, seed=1, max_tokens=2, ignore_eos=True, logprob_token_ids=[5, 140, 7]),
        SamplingParams(temperature=1.0, seed=1, max_tokens=2, ignore_eos=True, logprobs=5),
        SamplingParams(temperature=1.0, seed=1, max_tokens=2, ignore_eos=True),
    ]
    with LLM(model.path, **OPTIONS) as llm:
        named, likeliest, plain = llm.generate([prompt] * 3, params, use_tqdm=False)
    first = named.outputs[0]
    assert first.token_ids == likeliest.outputs[0].token_ids == plain.outputs[0].token_ids
    assert plain.outputs[0].logprobs is None
    for place, token in enumerate(first.token_ids):
        logits = model.last_logits([*prompt, *first.token_ids[:place]])
        want, entries = logits - np.logaddexp.reduce(logits), first.logprobs[place]
        assert set(entries) == {token, 5, 140, 7}
        assert {i: one.logprob for i, one in entries.items()} == pytest.approx({i: want[i] for i in entries}, abs=1e-3)
        assert entries[token].rank == 1 + int((logits > logits[token]).sum())
        assert {one.rank for i, one in entries.items() if i != token} == {None}
        assert len(likeliest.outputs[0].logprobs[place]) >= 5


def test_a_trace_is_replayed_with_the_models_log_probabilities(model):
    prompt, trace = list(PROMPTS[0]), [9, 9, 140, 2, 30]
    params = SamplingParams(temperature=0, max_tokens=7, ignore_eos=True, trace_decode_token_ids=trace, logprobs=0)
    with LLM(model.path, **OPTIONS) as llm:
        (replayed,) = llm.generate([prompt], params, use_tqdm=False)
        (whole,) = llm.generate([prompt + trace], SamplingParams(prompt_logprobs=0, max_tokens=1), use_tqdm=False)
    choice = replayed.outputs[0]
    assert choice.token_ids[:5] == trace
    assert len(choice.token_ids) == 7
    for place, token in enumerate(trace):
        known = whole.prompt_logprobs[len(prompt) + place][token].logprob
        assert choice.logprobs[place][token].logprob == pytest.approx(known, abs=1e-3)


MODES = ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_reports_what_it_says(mode):
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(6)) * 3
    asked = {"logprobs": 40, "tokens": (3, 3, 5), "num_prompt": 1, "frequency_penalty": 1.5, "logit_bias": {9: 2.0}}
    admissions = [
        admission(0, **asked, temperature=0.7, top_k=6, seed=1),
        admission(1, **asked, temperature=0),
        admission(2, temperature=2.0, seed=3),
    ]
    rows, slots = rows_of(admissions, 40), np.arange(3)
    batch = batch_of(slots, torch.full((3,), 3))
    sampled = sample(logits, rows, batch, reference)
    got = sampled_logprobs(logits, sampled, rows, batch, mode, lambda tensor: tensor)(np.array([True, True, True]))
    assert got.wanted.tolist() == [True, True, False]
    for row, temperature in ((0, 0.7), (1, 1.0)):
        want = logits[row].double().numpy()
        if mode.startswith("processed"):
            biased = logits[row].clone()
            biased[9] += 2.0
            want = penalized(biased, [3, 3, 5], 1, frequency=1.5) / temperature
            if row == 0:
                want[np.argsort(-want)[6:]] = -np.inf
        if mode.endswith("logprobs"):
            want = want - np.logaddexp.reduce(want)
        order = got.top_ids[row]
        assert sorted(order) == list(range(40))
        np.testing.assert_allclose(got.top[row], want[order], rtol=1e-5, atol=1e-5)
        assert got.chosen[row] == pytest.approx(want[int(sampled.ids[row])], rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_the_mode_is_an_option_of_the_engine(model, mode):
    tokens = list(PROMPTS[0])
    params = SamplingParams(temperature=0.5, seed=2, max_tokens=1, logprobs=0, prompt_logprobs=0)
    with LLM(model.path, **OPTIONS, logprobs_mode=mode) as llm:
        (output,) = llm.generate([tokens], params, use_tqdm=False)
    (chosen,) = output.outputs[0].token_ids
    logits = model.last_logits(tokens)
    want = logits / 0.5 if mode.startswith("processed") else logits
    want = want - np.logaddexp.reduce(want) if mode.endswith("logprobs") else want
    assert output.outputs[0].logprobs[0][chosen].logprob == pytest.approx(want[chosen], abs=1e-3)
    raw = output.prompt_logprobs[-1][tokens[-1]].logprob
    before = model.last_logits(tokens[:-1])
    before = before - np.logaddexp.reduce(before) if mode.endswith("logprobs") else before
    assert raw == pytest.approx(before[tokens[-1]], abs=1e-3)
