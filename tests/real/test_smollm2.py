"""SmolLM2 against transformers in float32: 64 greedy tokens on thirty prompts, whatever the engine does meanwhile."""

from __future__ import annotations

import pytest

from octavo import LLM
from octavo.checkpoint.open import open_checkpoint
from octavo.config.model import ModelConfig
from octavo.frontend.text.tokenizer import load_tokenizer
from tests.real.greedy import ask, check
from tests.real.make_oracle import NUM_TOKENS, answer, load_oracle
from tests.real.oracle import read_answers
from tests.real.prompts import PROMPTS

ANSWERS = read_answers()


def test_ties_are_rare():
    assert sum(len(each.tokens) - each.num_certain for each in ANSWERS) < 0.1 * sum(
        len(each.tokens) for each in ANSWERS
    )


def test_tokenizer_gives_the_oracles_ids():
    checkpoint = open_checkpoint(ModelConfig(model="demo"))
    assert checkpoint.tokenizer is not None
    tokenizer = load_tokenizer(checkpoint.tokenizer)
    assert [tokenizer.encode(prompt) for prompt in PROMPTS] == [each.prompt_ids for each in ANSWERS]


@pytest.mark.parametrize("budget", [16, 64, 512])
def test_one_batch_with_any_chunk_budget_cold_and_warm(budget):
    with LLM("demo", dtype="float32", max_num_batched_tokens=budget, max_model_len=1024) as llm:
        check(ask(llm, ANSWERS), ANSWERS)
        if budget == 512:
            again = ask(llm, ANSWERS)
            check(again, ANSWERS)
            assert sum(output.num_cached_tokens for output in again) > 1000


def test_a_pool_so_small_that_sequences_are_preempted():
    with LLM("demo", dtype="float32", num_pages=64, max_model_len=1024) as llm:
        check(ask(llm, ANSWERS), ANSWERS)
        assert llm.get_stats().num_preemptions > 0


def test_alone_and_without_a_cache():
    some = ANSWERS[:6] + ANSWERS[16:18]
    with LLM("demo", dtype="float32", enable_prefix_caching=False, async_scheduling=False, max_model_len=1024) as llm:
        for each in some:
            check(ask(llm, [each]), [each])


@pytest.mark.slow
def test_every_prompt_alone():
    with LLM("demo", dtype="float32", max_model_len=1024) as llm:
        for each in ANSWERS:
            check(ask(llm, [each]), [each])


@pytest.mark.slow
def test_the_stored_answers_are_the_oracles(demo_gguf):
    model, tokenizer = load_oracle(demo_gguf)
    for prompt, stored in zip(PROMPTS, ANSWERS, strict=True):
        assert tokenizer(prompt)["input_ids"] == stored.prompt_ids
        fresh = answer(model, stored.prompt_ids, NUM_TOKENS)
        assert stored.agrees(fresh["tokens"])
