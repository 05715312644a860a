"""Beam search against `transformers`, and what ends a beam."""

from __future__ import annotations

import asyncio
import itertools

import pytest
import torch
from httpx import AsyncClient

from octavo import LLM, AsyncLLM, BeamSearchParams, SamplingParams
from octavo.base.errors import InvalidRequestError, UnsupportedError
from octavo.config.serve import ServeConfig
from tests.equivalence.models import EOS, PROMPTS, VOCAB, TinyModel, words
from tests.server.harness import loopback

OPTIONS = {"max_model_len": 192, "max_num_seqs": 8, "dtype": "float32"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return TinyModel("llama", tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(model):
    with LLM(model.path, **OPTIONS) as loaded:
        yield loaded


def oracle(model, prompt, width, count, ends=None, **fields):
    """Return what transformers finds: output ids, without the end, of the best beams."""
    found = model._oracle.generate(
        torch.tensor([prompt]),
        num_beams=width,
        num_return_sequences=width,
        do_sample=False,
        max_new_tokens=count,
        eos_token_id=ends,
        pad_token_id=VOCAB - 1 if ends is None else ends,
        early_stopping="never",
        **fields,
    )
    # What comes behind an end is padding.
    return [list(itertools.takewhile(lambda token: token != ends, row[len(prompt) :])) for row in found.tolist()]


@pytest.mark.parametrize("width", [1, 2, 5])
def test_the_beams_of_transformers(llm, model, width):
    prompts = [list(PROMPTS[i]) for i in (0, 2, 10, 13)]
    found = llm.beam_search(prompts, BeamSearchParams(beam_width=width, max_tokens=7, ignore_eos=True))
    for prompt, output in zip(prompts, found, strict=True):
        assert [s.tokens[len(prompt) :] for s in output.sequences] == oracle(model, prompt, width, 7)
        assert all(s.tokens[: len(prompt)] == prompt and s.finish_reason == "length" for s in output.sequences)
        scores = [s.cum_logprob for s in output.sequences]
        assert scores == sorted(scores, reverse=True)
        for one in output.sequences:
            assert one.text == words(one.tokens)
            assert one.output_text == words(one.tokens[len(prompt) :])
            own = [e[t].logprob for t, e in zip(one.tokens[len(prompt) :], one.logprobs, strict=True)]
            assert sum(own) == pytest.approx(one.cum_logprob, abs=1e-4)


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 0.5, 1.0, 2.5])
def test_the_length_penalty_ranks_as_in_transformers(llm, model, penalty):
    prompt = list(PROMPTS[3])
    # A token that is likely enough to end some beams and not others.
    plain = llm.beam_search([prompt], BeamSearchParams(beam_width=4, max_tokens=6, ignore_eos=True))[0]
    end = plain.sequences[1].tokens[-2]
    params = BeamSearchParams(beam_width=4, max_tokens=8, ignore_eos=True, stop_token_ids=[end], length_penalty=penalty)
    (output,) = llm.beam_search([prompt], params)
    assert [s.tokens[len(prompt) :] for s in output.sequences] == oracle(
        model, prompt, 4, 8, end, length_penalty=penalty
    )
    # Long ones come first where length is favoured, and those that ended where it is not.
    assert output.sequences[0].finish_reason == ("stop" if penalty <= 0.5 else "length")
    assert all(s.stop_reason == end for s in output.sequences if s.finish_reason == "stop")


def test_stop_strings_end_a_beam(llm):
    prompt = list(PROMPTS[0])
    plain = llm.beam_search([prompt], BeamSearchParams(beam_width=2, max_tokens=6, ignore_eos=True))[0].sequences[0]
    third = words(plain.tokens[len(prompt) + 2 : len(prompt) + 3])
    for include in (False, True):
        params = BeamSearchParams(
            beam_width=2, max_tokens=6, ignore_eos=True, stop=(third,), include_stop_str_in_output=include
        )
        found = llm.beam_search([prompt], params)[0].sequences
        stopped = [one for one in found if one.stop_reason == third]
        assert stopped
        assert all(one.output_text.endswith(third) if include else third not in one.output_text for one in stopped)


def test_the_models_own_end_ends_a_beam(llm):
    prompt = list(PROMPTS[0])
    params = BeamSearchParams(beam_width=VOCAB, max_tokens=1)
    found = llm.beam_search(prompt, params)[0].sequences
    assert [one.finish_reason for one in found].count("stop") == 1
    (ended,) = [one for one in found if one.finish_reason == "stop"]
    assert ended.tokens == prompt
    kept = BeamSearchParams(beam_width=VOCAB, max_tokens=1, include_stop_str_in_output=True)
    assert [*prompt, EOS] in [one.tokens for one in llm.beam_search(prompt, kept)[0].sequences]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 257}, "beam_width"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"length_penalty": float("nan")}, "length_penalty"),
        ({"temperature": -1.0}, "temperature"),
        ({"structured_outputs": {}}, "structured_outputs"),
    ],
)
def test_out_of_range_names_the_field(fields, field):
    with pytest.raises(InvalidRequestError) as caught:
        BeamSearchParams(**({"beam_width": 2, "max_tokens": 2} | fields))
    assert caught.value.field == field


def test_logits_cannot_be_searched(model):
    params = BeamSearchParams(beam_width=2, max_tokens=2)
    with (
        LLM(model.path, **OPTIONS, logprobs_mode="raw_logits") as llm,
        pytest.raises(UnsupportedError, match="needs log-probabilities"),
    ):
        llm.beam_search([[1]], params)


def test_the_same_by_every_face(model, llm):
    prompts = [list(PROMPTS[i]) for i in (0, 13)]
    # More alternatives than a server gives to users.
    params = BeamSearchParams(beam_width=12, max_tokens=4, ignore_eos=True)
    expected = llm.beam_search(prompts, params, concurrency_limit=1)
    engine = AsyncLLM(model.path, **OPTIONS)

    async def run():
        answers = [await engine.beam_search(prompt, params) for prompt in prompts]
        body = {"prompt": prompts, "n": 12, "max_tokens": 4, "ignore_eos": True, "use_beam_search": True}
        async with (
            loopback(await engine._service(), ServeConfig(max_logprobs=5)) as url,
            AsyncClient(base_url=url, timeout=60) as http,
        ):
            served = await http.post("/v1/completions", json=body | {"logprobs": 2})
            refused = await http.post("/v1/completions", json=body | {"presence_penalty": 1})
            chat = {"messages": [{"role": "user", "content": "x"}], "use_beam_search": True, "n": 2, "max_tokens": 3}
            talk = await http.post("/v1/chat/completions", json=chat)
            echo = {"prompt": prompts[0], "echo": True, "logprobs": 1, "max_tokens": 0}
            echoed = [await http.post("/v1/completions", json=echo) for _ in range(2)]
        return answers, served, refused, talk, [one.json()["choices"][0]["logprobs"] for one in echoed]

    try:
        answers, served, refused, talk, echoed = asyncio.run(run())
    finally:
        engine.shutdown()
    for one, other in zip(answers, expected, strict=True):
        assert [s.tokens for s in one.sequences] == [s.tokens for s in other.sequences]
    assert served.status_code == 200, served.text
    choices = served.json()["choices"]
    assert [c["index"] for c in choices] == list(range(24))
    assert [c["text"] for c in choices] == [s.output_text for output in expected for s in output.sequences]
    assert all(len(c["logprobs"]["tokens"]) == 4 and len(c["logprobs"]["top_logprobs"][0]) <= 3 for c in choices)
    assert served.json()["usage"]["completion_tokens"] == 96
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "presence_penalty")
    assert talk.status_code == 200, talk.text
    assert len(talk.json()["choices"]) == 2
    (scores,) = llm.generate([prompts[0]], SamplingParams(prompt_logprobs=1, max_tokens=1), use_tqdm=False)
    for column in echoed:
        assert len(column["tokens"]) == len(prompts[0])
        pairs = zip(column["token_logprobs"], scores.prompt_logprobs, prompts[0], strict=True)
        for got, want, token in itertools.islice(pairs, 1, None):
            assert got == pytest.approx(want[token].logprob, abs=1e-4)
