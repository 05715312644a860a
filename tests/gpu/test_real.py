"""Real models on the GPU, in float32: the stored answers of the oracle, all prompts in one batch, cold and from the cache."""

from __future__ import annotations

import pytest

from octavo import LLM
from tests.gemma import gemma_file
from tests.real.greedy import ask, check
from tests.real.oracle import read_answers

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_the_oracles_answers(name: str, eager: bool) -> None:
    answers = read_answers(name)
    model = "demo" if name == "smollm2" else str(gemma_file())
    with LLM(
        model,
        device="cuda",
        dtype="float32",
        max_model_len=1024,
        max_num_batched_tokens=512,
        enforce_eager=eager,
        kv_cache_memory=2 * 2**30,
    ) as llm:
        check(ask(llm, answers), answers)
        again = ask(llm, answers)
    check(again, answers)
    assert sum(output.num_cached_tokens for output in again) > 1000
