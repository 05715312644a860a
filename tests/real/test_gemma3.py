"""Gemma-3-270M against transformers in float32: 64 greedy tokens on thirty prompts, four of them longer than its window.

It is a model of sliding and full layers, of seven ways to store numbers, and of a SentencePiece vocabulary.
"""

from __future__ import annotations

import pytest

from octavo import LLM
from octavo.checkpoint.open import open_checkpoint
from octavo.config.model import ModelConfig
from octavo.frontend.text.tokenizer import load_tokenizer
from tests.gemma import gemma_file
from tests.real.greedy import ask, check
from tests.real.make_oracle import NUM_TOKENS, answer, load_oracle
from tests.real.oracle import read_answers
from tests.real.prompts import GEMMA_PROMPTS
from tests.real.serving import check_texts, served_texts, serving

ANSWERS = read_answers("gemma3")
WINDOW = 512
# Short ones, and one past the window.
SOME = [ANSWERS[0], ANSWERS[13], ANSWERS[-2]]


@pytest.fixture(scope="module")
def model() -> str:
    return str(gemma_file())


def test_prompts_pass_the_window():
    assert len(ANSWERS) == 30
    assert sum(len(each.prompt_ids) > WINDOW for each in ANSWERS) >= 4
    assert sum(len(each.prompt_ids) > WINDOW for each in SOME) == 1
    assert sum(len(each.tokens) - each.num_certain for each in ANSWERS) < 0.1 * NUM_TOKENS * len(ANSWERS)


def test_tokenizer_gives_the_oracles_ids(model: str):
    checkpoint = open_checkpoint(ModelConfig(model=model))
    assert checkpoint.tokenizer is not None
    tokenizer = load_tokenizer(checkpoint.tokenizer)
    assert [tokenizer.encode(prompt) for prompt in GEMMA_PROMPTS] == [each.prompt_ids for each in ANSWERS]
    # SentencePiece takes the longest of the pieces that are runs of spaces: 31, then 9.
    assert tokenizer.encode(" " * 40 + "x", add_special_tokens=False) == [167, 145, tokenizer.token_id("x")]
    assert (
        tokenizer.decode(ANSWERS[0].tokens)
        == tokenizer.decode(ANSWERS[0].prompt_ids + ANSWERS[0].tokens)[len(GEMMA_PROMPTS[0]) :]
    )


def test_some_in_one_batch(model: str):
    with LLM(model, dtype="float32", max_num_batched_tokens=64, max_model_len=1024) as llm:
        check(ask(llm, SOME), SOME)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [16, 64, 512])
def test_one_batch_with_any_chunk_budget_cold_and_warm(model: str, budget: int):
    with LLM(model, dtype="float32", max_num_batched_tokens=budget, max_model_len=1024) as llm:
        check(ask(llm, ANSWERS), ANSWERS)
        if budget == 512:
            again = ask(llm, ANSWERS)
            check(again, ANSWERS)
            assert sum(output.num_cached_tokens for output in again) > 1000


@pytest.mark.slow
def test_a_pool_so_small_that_sequences_are_preempted(model: str):
    # A sequence of full length takes 229 pages: the longest prompts fit, but only alone.
    with LLM(model, dtype="float32", num_pages=240, max_model_len=1024) as llm:
        check(ask(llm, ANSWERS), ANSWERS)
        assert llm.get_stats().num_preemptions > 0


@pytest.mark.slow
def test_alone_and_without_a_cache(model: str):
    with LLM(model, dtype="float32", enable_prefix_caching=False, async_scheduling=False, max_model_len=1024) as llm:
        for each in SOME:
            check(ask(llm, [each]), [each])


@pytest.mark.slow
def test_served_streamed_and_not(model: str):
    checkpoint = open_checkpoint(ModelConfig(model=model))
    assert checkpoint.tokenizer is not None
    tokenizer = load_tokenizer(checkpoint.tokenizer)
    flags = (
        "--served-model-name",
        "gemma",
        "--max-model-len",
        "1024",
        "--max-num-batched-tokens",
        "64",
        "--dtype",
        "float32",
    )
    with serving(*flags, model=model) as url:
        check_texts(served_texts(url, "gemma", ANSWERS, stream=False), tokenizer, ANSWERS)
        check_texts(served_texts(url, "gemma", SOME, stream=True), tokenizer, SOME)


@pytest.mark.slow
def test_the_stored_answers_are_the_oracles(model: str):
    oracle, tokenizer = load_oracle(gemma_file())
    for prompt, stored in zip(GEMMA_PROMPTS, ANSWERS, strict=True):
        assert tokenizer(prompt)["input_ids"] == stored.prompt_ids
    for stored in SOME:
        assert stored.agrees(answer(oracle, stored.prompt_ids, NUM_TOKENS)["tokens"])
