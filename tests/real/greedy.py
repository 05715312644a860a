"""Asks a model for greedy tokens and holds them against the oracle's."""

from __future__ import annotations

import pytest

from octavo import LLM, SamplingParams
from tests.real.make_oracle import NUM_TOKENS
from tests.real.oracle import Answer

GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)


def ask(llm: LLM, answers: list[Answer]) -> list:
    """Return the outputs to the oracle's prompts, asked in one batch."""
    return llm.generate([{"prompt_token_ids": each.prompt_ids} for each in answers], GREEDY, use_tqdm=False)


def check(outputs: list, answers: list[Answer]) -> None:
    """Assert that tokens are the oracle's up to its first tie, and their log-probabilities close to its."""
    wrong = [i for i, each in enumerate(answers) if not each.agrees(outputs[i].outputs[0].token_ids)]
    assert wrong == []
    for output, each in zip(outputs, answers, strict=True):
        ours = [next(iter(entry.values())).logprob for entry in output.outputs[0].logprobs]
        certain = each.num_certain
        assert ours[:certain] == pytest.approx(each.logprobs[:certain], abs=1e-3)
