"""Steps that draw tokens and report log-probabilities: the host waits for the device nowhere inside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo import LLM, SamplingParams
from tests.models.families import FAMILIES
from tests.models.oracle import random_tokens

pytestmark = pytest.mark.gpu

KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.2, "top_k": 7, "min_p": 0.01},
]


@pytest.fixture
def waiting_is_an_error() -> Iterator[Any]:
    yield lambda: torch.cuda.set_sync_debug_mode("error")  # noqa: TID251
    torch.cuda.set_sync_debug_mode("default")  # noqa: TID251


@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("mode", [None, "raw_logprobs", "processed_logprobs"])
def test_nothing_is_waited_for(tmp_path: Path, waiting_is_an_error: Any, mode: Any, eager: bool) -> None:
    FAMILIES["LlamaForCausalLM"].write(tmp_path)
    asked = {} if mode is None else {"logprobs": 3}
    params = [SamplingParams(**kind, **asked, max_tokens=30, ignore_eos=True, seed=3) for kind in KINDS]
    prompts: list[Any] = [{"prompt_token_ids": random_tokens(9 + row, seed=row)} for row in range(len(KINDS))]
    options: dict[str, Any] = {"enforce_eager": eager, "logprobs_mode": mode or "raw_logprobs", "max_num_seqs": 8}
    with LLM(tmp_path, skip_tokenizer_init=True, device="cuda", dtype="float32", num_pages=500, **options) as llm:
        before = llm.generate(prompts, params, use_tqdm=False)
        llm.reset_prefix_cache()
        waiting_is_an_error()
        after = llm.generate(prompts, params, use_tqdm=False)
    for one, other in zip(before, after, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        assert len(set(one.outputs[0].token_ids)) > 3
