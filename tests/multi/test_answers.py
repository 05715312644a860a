"""Whatever the ranks, the answers are one rank's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.base.errors import CheckpointError, ConfigError
from octavo.protocol.output import Logprob, RequestOutput
from octavo.protocol.sampling import SamplingParams
from tests.multi.models import MODELS, PROMPTS, answer, assert_same, gone, open_llm, rank_processes, save_model
from tests.real.serving import serving

MESHES: dict[str, list[tuple[int, int, dict[str, Any]]]] = {
    "llama-tied": [(2, 1, {}), (1, 2, {}), (2, 2, {})],
    "qwen3": [(2, 2, {})],
    "mistral": [(1, 2, {})],
    "qwen3-moe": [(2, 2, {"enable_expert_parallel": True})],
    "qwen3-some-slide": [(1, 2, {})],
}


@pytest.mark.parametrize("name", MODELS)
def test_answers_equal_those_of_one_rank(tmp_path: Path, name: str) -> None:
    save_model(name, tmp_path)
    with open_llm(tmp_path) as alone:
        expected = answer(alone)
    for tensor, pipeline, options in MESHES[name]:
        with open_llm(tmp_path, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, **options) as llm:
            pids = rank_processes(os.getpid())
            assert len(pids) == tensor * pipeline
            assert_same(answer(llm), expected)
            # Now from the prefix cache, and in another order.
            assert_same(answer(llm, PROMPTS[::-1]), expected[::-1])
            assert llm.get_stats().prefix_hits > 0
        assert gone(pids, 5)


def test_preemption_seeds_and_few_pages_under_both(tmp_path: Path) -> None:
    """Slots change hands while earlier stages have not learnt all tokens yet; random draws are the same on any mesh."""
    save_model("qwen3-some-slide", tmp_path)
    params = [
        SamplingParams(
            temperature=0.9,
            top_p=0.9,
            seed=seed,
            max_tokens=20,
            ignore_eos=True,
            n=1 + seed % 2,
            frequency_penalty=0.25 * (seed % 3),
            prompt_logprobs=1 if seed > 3 else None,
        )
        for seed in range(6)
    ]
    prompts = [{"prompt_token_ids": prompt} for prompt in (*PROMPTS[:3], *PROMPTS[:3])]
    texts: list[list[list[int]]] = []
    scores: list[list[float]] = []
    for options in ({"num_pages": 60}, {"num_pages": 16, "tensor_parallel_size": 2, "pipeline_parallel_size": 2}):
        with open_llm(tmp_path, block_size=16, max_model_len=112, **options) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            texts.append([[list(choice.token_ids) for choice in output.outputs] for output in outputs])
            scores.append([entry[t].logprob for o in outputs[4:] for t, entry in scored(o)])
            preemptions = llm.get_stats().num_preemptions
            described = llm.collective_rpc("describe")
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)
    assert len(scores[0]) == sum(len(prompts[seed]["prompt_token_ids"]) - 1 for seed in (4, 5))
    assert len(described) == 4
    assert preemptions > 0
    same = sum(one == other for one, other in zip(*texts, strict=True))
    # A draw may fall on the other side of a rounding difference, once in thousands.
    assert same >= 5


def scored(output: RequestOutput) -> list[tuple[int, dict[int, Logprob]]]:
    """Return the prompt's tokens but the first, each with what is said of its place."""
    assert output.prompt_logprobs is not None
    pairs = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
    return [(token, entry) for token, entry in pairs if entry is not None]


def test_what_cannot_be_spread_is_said_before_a_process_starts(tmp_path: Path) -> None:
    save_model("qwen3", tmp_path)
    for options, says in (
        ({"tensor_parallel_size": 4}, r"tensor_parallel_size must divide the model's 6 attention heads, 4 does not"),
        ({"pipeline_parallel_size": 4}, "pipeline_parallel_size must be at most the model's 3 layers, not 4"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size must be between 1 and 1024, not 0"),
    ):
        with pytest.raises(ConfigError, match=says):
            open_llm(tmp_path, **options)
    assert rank_processes(os.getpid()) == ()


def test_what_a_rank_cannot_load_is_raised_as_itself(tmp_path: Path) -> None:
    save_model("qwen3", tmp_path)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"vocab_size": 199', '"vocab_size": 201'))
    with pytest.raises(CheckpointError, match=r"is \[199, 48\], but the config asks for \[201, 48\]"):
        open_llm(tmp_path, pipeline_parallel_size=2)
    assert gone(rank_processes(os.getpid()), 5)


def test_a_served_model_answers_alike(tmp_path: Path) -> None:
    save_model("mistral", tmp_path)
    with open_llm(tmp_path) as alone:
        expected = answer(alone, PROMPTS[:2])
    flags = ["-tp", "2", "-pp", "2", "--skip-tokenizer-init", "--dtype=float32", "--max-model-len=128"]
    with serving(*flags, "--kv-cache-memory=1MiB", model=str(tmp_path)) as url:
        body = {"model": str(tmp_path), "prompt": PROMPTS[:2], "max_tokens": 16, "temperature": 0, "logprobs": 0}
        answered = httpx.post(f"{url}/v1/completions", json={**body, "ignore_eos": True}, timeout=60).json()
    for choice, one in zip(answered["choices"], expected, strict=True):
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(one.chosen, abs=1e-3)
