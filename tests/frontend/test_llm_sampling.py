"""Sampling parameters through `LLM` and `AsyncLLM`, on a tiny random model whose every token is a word."""

from __future__ import annotations

import asyncio

import pytest
import torch

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.base.errors import InvalidRequestError, UnsupportedError
from octavo.protocol.sampling import RequestOutputKind
from tests.equivalence.models import EOS, VOCAB, TinyModel, words
from tests.worker.test_adjust import Doubling, penalized

OPTIONS = {"max_model_len": 192, "max_num_seqs": 8, "dtype": "float32"}
PROMPT = words([5, 9, 5, 9, 5, 9, 7])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return TinyModel("llama", tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(model):
    with LLM(model.path, **OPTIONS) as loaded:
        yield loaded


def ask(llm, prompt=PROMPT, **fields):
    params = SamplingParams(**({"temperature": 0, "max_tokens": 8, "ignore_eos": True} | fields))
    return llm.generate(prompt, params, use_tqdm=False)[0]


def ids(output):
    return [choice.token_ids for choice in output.outputs]


def test_penalties_change_what_a_plain_loop_says(llm, model):
    asked = {"presence": 0.2, "frequency": 0.1, "repetition": 1.3}
    tokens = llm.get_tokenizer().encode(PROMPT)
    num_prompt = len(tokens)
    for _ in range(8):
        logits = model.last_logits(tokens)
        tokens.append(int(penalized(torch.from_numpy(logits), tokens, num_prompt, **asked).argmax()))
    (got,) = ids(ask(llm, **{f"{name}_penalty": value for name, value in asked.items()}))
    assert got == tokens[num_prompt:]
    assert got != ids(ask(llm))[0]


def test_penalties_survive_forks_the_cache_and_preemption(model):
    kinds = [{"frequency_penalty": 0.5}, {"repetition_penalty": 1.3}, {"presence_penalty": -0.5}, {}]
    params = [SamplingParams(temperature=0.7, seed=3, n=2, max_tokens=40, ignore_eos=True, **kind) for kind in kinds]
    prompts = [PROMPT, PROMPT, words(range(40)), words(range(41))]
    with LLM(model.path, **OPTIONS, async_scheduling=False, enable_prefix_caching=False) as plain:
        alone = [ids(plain.generate(p, q, use_tqdm=False)[0]) for p, q in zip(prompts, params, strict=True)]
    with LLM(model.path, **OPTIONS, num_pages=14, block_size=16) as small:
        for _ in range(2):
            assert [ids(output) for output in small.generate(prompts, params, use_tqdm=False)] == alone
        assert small.get_stats().num_preemptions > 0
    assert len({str(answer) for answer in alone}) == 4


def test_bad_words_do_not_come_into_being(llm):
    drawn = {"temperature": 1.0, "seed": 4, "max_tokens": 20}
    (plain,) = ids(ask(llm, **drawn))
    pair = words(plain[3:5])
    answer = ask(llm, **drawn, bad_words=[pair]).outputs[0]
    assert pair not in answer.text
    # What completes the word is the first to differ.
    assert answer.token_ids[:4] == plain[:4]
    assert answer.token_ids[4] != plain[4]
    many = ask(llm, **drawn, bad_words=[words([token]) for token in plain]).outputs[0]
    assert not set(many.token_ids) & set(plain)
    assert len(many.token_ids) == 20


def test_allowed_ids_and_bias(llm):
    drawn = ask(llm, allowed_token_ids=[7, 8, 9], temperature=1.0, seed=1, max_tokens=30).outputs[0]
    assert set(drawn.token_ids) <= {7, 8, 9}
    assert len(set(drawn.token_ids)) > 1
    assert ids(ask(llm, logit_bias={VOCAB - 1: 100})) == [[VOCAB - 1] * 8]
    nothing = ask(llm, allowed_token_ids=[7], bad_words=[words([7])])
    assert nothing.outputs[0].finish_reason == "error"
    assert "no token is left to choose from" in nothing.error


def test_min_tokens_hold_back_the_end(llm):
    assert ids(ask(llm, logit_bias={EOS: 100}, ignore_eos=False)) == [[EOS]]
    held = ask(llm, logit_bias={EOS: 100}, ignore_eos=False, min_tokens=5, max_tokens=20).outputs[0]
    assert (len(held.token_ids), held.token_ids[-1], held.finish_reason) == (6, EOS, "stop")


def test_functions_change_the_logits_of_their_request(llm):
    lengths = []

    def only_seven(output, logits):
        lengths.append(len(output))
        logits[7] = 1e9
        return logits

    params = [
        SamplingParams(temperature=0, max_tokens=4, logits_processors=[only_seven]),
        SamplingParams(temperature=0, max_tokens=4, ignore_eos=True),
    ]
    changed, plain = llm.generate([PROMPT, PROMPT], params, use_tqdm=False)
    assert ids(changed) == [[7, 7, 7, 7]]
    assert lengths[:4] == [0, 1, 2, 3]
    assert ids(plain) == ids(ask(llm, max_tokens=4))


def test_processors_of_the_engine_reach_the_model(model):
    with LLM(model.path, **OPTIONS, logits_processors=[Doubling]) as changed:
        # Twice the logits is half the temperature.
        doubled = ask(changed, temperature=1.0, seed=5, extra_args={"factor": 2.0})
        halved = ask(changed, temperature=0.5, seed=5)
        assert ids(doubled) == ids(halved) != ids(ask(changed, temperature=1.0, seed=5))


def test_a_request_may_leave_the_cache_alone(llm):
    prompt = words(range(3, 40))
    first, second, third = (ask(llm, prompt, skip_reading_prefix_cache=skip) for skip in (False, True, False))
    assert (second.num_cached_tokens, third.num_cached_tokens > 0) == (0, True)
    assert ids(first) == ids(second) == ids(third)


def test_the_engines_defaults_and_what_a_request_says(model):
    (model.path / "generation_config.json").write_text(
        '{"temperature": 0, "max_new_tokens": 3, "repetition_penalty": 1.3}'
    )
    with LLM(model.path, **OPTIONS, override_generation_config={"max_new_tokens": 5, "presence_penalty": 0.5}) as llm:
        own = llm.get_default_sampling_params()
        assert (own.temperature, own.max_tokens, own.repetition_penalty, own.presence_penalty) == (0.0, 5, 1.3, 0.5)
        silent = llm.generate(words([5, 9]), use_tqdm=False)[0]
        same = llm.generate(words([5, 9]), own, use_tqdm=False)[0]
        told = llm.generate(
            words([5, 9]), SamplingParams(temperature=0, max_tokens=2, ignore_eos=True), use_tqdm=False
        )[0]
    (model.path / "generation_config.json").unlink()
    assert ids(silent) == ids(same)
    assert len(ids(silent)[0]) == 5
    with LLM(model.path, **OPTIONS) as plain:
        assert ids(ask(plain, words([5, 9]), max_tokens=2)) == ids(told)


def test_streams_give_out_what_output_kind_says(model):
    engine = AsyncLLM(model.path, **OPTIONS)

    async def texts(kind, **fields):
        params = SamplingParams(temperature=0, max_tokens=8, output_kind=kind, ignore_eos=True, **fields)
        return [output.outputs[0].text async for output in engine.generate(PROMPT, params)]

    async def run():
        (whole,) = await texts(RequestOutputKind.FINAL_ONLY)
        cumulative, delta = await texts("cumulative"), await texts(RequestOutputKind.DELTA)
        assert cumulative[-1] == "".join(delta) == whole
        with pytest.raises(UnsupportedError, match="do not cross processes"):
            await texts("final", logits_processors=[lambda output, logits: logits])
        (seven,) = await texts("final", logit_bias={7: 100}, presence_penalty=0.5, bad_words=[words([8])])
        assert seven == words([7] * 8)

    try:
        asyncio.run(run())
    finally:
        engine.shutdown()


def test_lazy_sources_of_prompts_and_chats(llm):
    prompts = [words([3 + i % 7, 5]) for i in range(40)]
    params = [SamplingParams(temperature=0, max_tokens=1 + i % 4, ignore_eos=True) for i in range(40)]
    whole = llm.generate(prompts, params, use_tqdm=False)
    bars = []

    class Bar:
        def __init__(self, **options):
            bars.append(self)
            self.options, self.done, self.text, self.format_dict = options, 0, "", {"elapsed": 1.0}

        def set_postfix_str(self, text, refresh):
            self.text = text

        def update(self, count):
            self.done += count

        def close(self):
            self.closed = True

    lazy = llm.generate(iter(prompts), iter(params), use_tqdm=Bar)
    assert bars == [], "nothing runs before it is asked for"
    assert [ids(output) for output in lazy] == [ids(output) for output in whole]
    assert (bars[0].options["total"], bars[0].done, bars[0].closed) == (None, 40, True)
    assert bars[0].text == f"{sum(1 + i % 4 for i in range(40)):.1f} output tokens/s"
    turns = [[{"role": "user", "content": words([i])}] for i in range(3, 9)]
    one = SamplingParams(temperature=0, max_tokens=2)
    chats = llm.chat((turn for turn in turns), one, use_tqdm=False)
    assert [ids(output) for output in chats] == [ids(output) for output in llm.chat(turns, one, use_tqdm=False)]


def test_the_model_and_the_worker_can_be_called(llm):
    (count,) = llm.apply_model(lambda model: sum(p.numel() for p in model.parameters()))
    assert count > 1000
    assert llm.collective_rpc(
        lambda worker, a, b=0: (a, b, worker.slots.max_model_len), args=(1,), kwargs={"b": 2}
    ) == [(1, 2, 192)]
    (described,) = llm.collective_rpc("describe")
    assert described["num_pages"] > 0
    with pytest.raises(ZeroDivisionError):
        llm.collective_rpc(lambda worker: 1 / 0)
    with pytest.raises(InvalidRequestError, match="did you mean 'describe'"):
        llm.collective_rpc("discribe")
    assert len(ids(ask(llm))[0]) == 8


def test_metrics_and_times_on_the_object(model):
    with LLM(model.path, **OPTIONS) as llm:
        (output,) = llm.generate([PROMPT], SamplingParams(n=2, max_tokens=4, ignore_eos=True), use_tqdm=False)
        samples = {s.name: s.value for family in llm.get_metrics() for s in family.samples if "le" not in s.labels}
    times = output.metrics
    assert 0 < times.arrival <= times.first_scheduled <= times.first_token <= times.finished
    assert samples["octavo:prompt_tokens_total"] == 7
    assert samples["octavo:generation_tokens_total"] == 8
    assert samples["octavo:time_to_first_token_seconds_count"] == 1
    assert samples["octavo:e2e_request_latency_seconds_sum"] == pytest.approx(times.finished - times.arrival)
    assert samples["octavo:num_requests_running"] == 0
