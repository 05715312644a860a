"""`LLM` and `AsyncLLM` on the embedded model."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.base.errors import CheckpointError, ConfigError, EngineDeadError, InvalidRequestError, UnsupportedError

OPTIONS = {"max_model_len": 256, "max_num_seqs": 8}
PROMPTS = ["The capital of France is", "Once upon a time", "水是"]
GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(scope="module")
def llm(demo_gguf):
    with LLM(demo_gguf, **OPTIONS) as loaded:
        yield loaded


def texts(outputs):
    return [output.outputs[0].text for output in outputs]


def test_a_batch_gives_what_each_prompt_gives_alone(llm):
    batch = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    alone = [llm.generate(prompt, GREEDY, use_tqdm=False)[0] for prompt in PROMPTS]
    assert [o.outputs[0].token_ids for o in batch] == [o.outputs[0].token_ids for o in alone]
    assert [o.prompt for o in batch] == PROMPTS
    assert "Paris" in batch[0].outputs[0].text
    assert all(len(o.outputs[0].token_ids) == 8 and o.outputs[0].finish_reason == "length" for o in batch)
    tokenizer = llm.get_tokenizer()
    assert [tokenizer.decode(o.outputs[0].token_ids) for o in batch] == texts(batch)


def test_a_chat_is_answered_and_ids_are_taken(llm):
    question = [{"role": "user", "content": "What is the capital of France?"}]
    answer = llm.chat(question, SamplingParams(temperature=0, max_tokens=40), use_tqdm=False)[0]
    assert answer.outputs[0].text == "The capital of France is Paris."
    assert (answer.outputs[0].finish_reason, answer.outputs[0].stop_reason) == ("stop", None)
    again = llm.generate({"prompt_token_ids": answer.prompt_token_ids}, SamplingParams(temperature=0, max_tokens=40))[0]
    assert again.outputs[0].token_ids == answer.outputs[0].token_ids
    assert again.num_cached_tokens > 0
    two = llm.chat([question, question], GREEDY, use_tqdm=False)
    assert texts(two) == ["The capital of France is Paris."] * 2


def test_a_model_without_generation_config_has_our_defaults(llm):
    assert llm.get_default_sampling_params() == SamplingParams()


def test_one_parameter_record_per_prompt(llm):
    params = [SamplingParams(temperature=0, max_tokens=count) for count in (1, 5, 3)]
    outputs = llm.generate(prompts=PROMPTS[:3], sampling_params=params, use_tqdm=False)
    assert [len(o.outputs[0].token_ids) for o in outputs] == [1, 5, 3]
    with pytest.raises(InvalidRequestError, match="one for each of the 3 prompts") as caught:
        llm.generate(PROMPTS[:3], params[:2])
    assert caught.value.field == "sampling_params"
    assert llm.generate([], GREEDY) == []


def test_a_bad_prompt_leaves_nothing_queued(llm):
    with pytest.raises(InvalidRequestError, match=r"prompt 1: the prompt has 300 tokens.*256"):
        llm.generate(["ok", [5] * 300, "ok"], GREEDY, use_tqdm=False)
    outputs = llm.generate(["The capital of France is"], GREEDY, use_tqdm=False)
    assert len(outputs) == 1
    assert "Paris" in outputs[0].outputs[0].text


def test_choices_are_distinct_and_reproducible(llm):
    params = SamplingParams(temperature=1.0, seed=7, n=3, max_tokens=6)
    first, second = (llm.generate("Once upon a time", params, use_tqdm=False)[0] for _ in range(2))
    assert [c.index for c in first.outputs] == [0, 1, 2]
    assert [c.token_ids for c in first.outputs] == [c.token_ids for c in second.outputs]
    assert len({tuple(c.token_ids) for c in first.outputs}) == 3
    beside = llm.generate(
        ["Once upon a time", "noise"], [params, SamplingParams(temperature=1.0, max_tokens=6)], use_tqdm=False
    )[0]
    assert [c.token_ids for c in beside.outputs] == [c.token_ids for c in first.outputs]


def test_unseeded_requests_differ_and_global_generators_are_untouched(llm):
    import torch

    before = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()
    params = SamplingParams(temperature=1.5, max_tokens=12)
    assert len(set(texts(llm.generate(["Once upon a time"] * 4, params, use_tqdm=False)))) == 4
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist())


def test_stop_strings_and_logprobs(llm):
    plain = llm.generate("1 2 3 4 5", GREEDY, use_tqdm=False)[0].outputs[0]
    stop = plain.text[4:7]
    params = SamplingParams(temperature=0, max_tokens=8, stop=stop, logprobs=2)
    cut = llm.generate("1 2 3 4 5", params, use_tqdm=False)[0].outputs[0]
    assert cut.text == plain.text[: plain.text.index(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    assert cut.token_ids == plain.token_ids[: len(cut.token_ids)]
    assert len(cut.logprobs) == len(cut.token_ids)
    for token, position in zip(cut.token_ids, cut.logprobs, strict=True):
        chosen = position[token]
        assert next(iter(position)) == token
        assert chosen.rank == 1
        assert chosen.logprob == max(entry.logprob for entry in position.values())
    assert cut.cumulative_logprob == pytest.approx(
        sum(p[t].logprob for t, p in zip(cut.token_ids, cut.logprobs, strict=True))
    )


def test_the_prefix_cache_can_be_forgotten(llm):
    prompt = (
        "A long prompt that fills more than one block of sixteen tokens, so that it can be found again later on. " * 2
    )
    cold, warm = (llm.generate(prompt, GREEDY, use_tqdm=False)[0] for _ in range(2))
    assert warm.num_cached_tokens >= 16
    assert llm.reset_prefix_cache() is True
    again = llm.generate(prompt, GREEDY, use_tqdm=False)[0]
    assert again.num_cached_tokens == 0
    assert cold.outputs[0].token_ids == warm.outputs[0].token_ids == again.outputs[0].token_ids


def test_the_bar_counts_prompts(llm):
    from tqdm import tqdm

    bars = []

    def make_bar(**fields):
        bars.append(tqdm(**fields, file=open(os.devnull, "w")))  # noqa: SIM115
        return bars[0]

    llm.generate(PROMPTS[:3], GREEDY, use_tqdm=make_bar)
    assert (bars[0].n, bars[0].total) == (3, 3)
    bars[0].fp.close()


def test_wrong_options_name_the_right_ones():
    with pytest.raises(ConfigError, match="did you mean 'max_model_len'"):
        LLM("demo", max_model_length=3)
    with pytest.raises(ConfigError, match="max_num_seqs must be between 1"):
        AsyncLLM("demo", max_num_seqs=0)


@pytest.mark.parametrize("messages", [None, "hello", {"role": "user", "content": "a"}, 3, ["hello"], [None]])
def test_what_is_no_conversation_is_refused(llm, messages):
    with pytest.raises(InvalidRequestError, match="messages") as caught:
        llm.chat(messages, GREEDY, use_tqdm=False)
    assert caught.value.field.startswith("messages")


def test_prompts_of_numpy_are_prompts(llm):
    ids = llm.get_tokenizer().encode("The capital of France is")
    forms = ([ids, ids], np.array([ids, ids]), [np.array(ids), [np.int64(i) for i in ids]])
    params = SamplingParams(temperature=np.float32(0), max_tokens=np.int64(2))
    answers = [[o.outputs[0].token_ids for o in llm.generate(form, params, use_tqdm=False)] for form in forms]
    assert answers[0] == answers[1] == answers[2]
    assert len(llm.generate(np.array(ids), params, use_tqdm=False, priority=np.int64(1))) == 1


def test_what_is_not_supported_says_so(llm):
    with pytest.raises(UnsupportedError, match="continue_final_message"):
        llm.chat([{"role": "user", "content": "a"}], continue_final_message=True)


def test_a_prompt_that_can_never_fit_its_pages_fails_alone_and_a_shut_engine_says_so(demo_gguf):
    small = LLM(demo_gguf, max_model_len=512, max_num_seqs=4, num_pages=8)
    outputs = small.generate(["The capital of France is", [5] * 200], GREEDY, use_tqdm=False)
    assert "Paris" in outputs[0].outputs[0].text
    assert (outputs[1].outputs[0].finish_reason, outputs[1].outputs[0].token_ids) == ("error", [])
    assert "pages" in outputs[1].error
    small.shutdown()
    small.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        small.generate("a", GREEDY)
    del small
    gc.collect()


def test_streams_aborts_and_the_end_of_an_async_engine(demo_gguf, llm):
    expected = texts(llm.generate(PROMPTS, GREEDY, use_tqdm=False))
    engine = AsyncLLM(demo_gguf, **OPTIONS)
    pid, folder = engine._process.pid, engine._process.home

    async def answer(prompt: str) -> str:
        last, shown = None, []
        async for output in engine.generate(prompt, GREEDY, request_id=prompt):
            last = output
            shown.append(output.outputs[0].text)
        assert last.finished
        assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(shown))
        return last.outputs[0].text

    async def endless(request_id: str) -> str:
        params = SamplingParams(max_tokens=250, ignore_eos=True)
        reasons = [o.outputs[0].finish_reason async for o in engine.generate("Hello", params, request_id)]
        return reasons[-1]

    async def run() -> None:
        assert await asyncio.gather(*map(answer, PROMPTS)) == expected
        running = asyncio.create_task(endless("long"))
        async for _ in engine.generate("Hello", SamplingParams(max_tokens=250, ignore_eos=True)):
            break
        await engine.abort("long")
        assert await running == "abort"
        service = await engine._service()
        deadline = time.monotonic() + 5
        while service.stats().num_running or service.stats().used_pages or service.stats().used_slots:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert await engine.reset_prefix_cache()
        with pytest.raises(InvalidRequestError):
            await anext(engine.generate("", GREEDY))
        engine.shutdown()
        with pytest.raises(EngineDeadError):
            await anext(engine.generate("a", GREEDY))

    asyncio.run(run())
    assert not Path(f"/proc/{pid}").exists()
    assert not os.path.exists(folder)


def test_an_async_engine_of_a_model_that_is_not_there():
    async def run() -> None:
        engine = AsyncLLM("/nowhere/at-all")
        for _ in range(2):
            with pytest.raises(CheckpointError, match="nowhere"):
                await anext(engine.generate("a", GREEDY))
        engine.shutdown()

    asyncio.run(run())


_SCRIPT = """
import asyncio, sys
from octavo import AsyncLLM, SamplingParams
llm = AsyncLLM(sys.argv[1], max_model_len=256, max_num_seqs=4)
async def main():
    async for output in llm.generate("Hello", SamplingParams(max_tokens=250, ignore_eos=True)):
        print(llm._process.pid, "torch" in sys.modules, flush=True)
asyncio.run(main())
"""


def test_a_terminated_front_takes_its_engine_along_and_never_loads_torch(demo_gguf):
    front = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(demo_gguf)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert front.stdout is not None
    pid, has_torch = front.stdout.readline().split()
    assert has_torch == "False"
    front.send_signal(signal.SIGTERM)
    front.wait()
    front.stdout.close()
    deadline = time.monotonic() + 8
    while (
        Path(f"/proc/{pid}/stat").exists()
        and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)
