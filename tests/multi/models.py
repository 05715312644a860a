"""Tiny models with random weights on disk, and engines over one rank or several that answer the same prompts."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.llm import LLM
from octavo.protocol.sampling import SamplingParams
from tests.models.oracle import make_oracle, random_tokens

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-tied": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "qwen3": ("qwen3", {"tie_word_embeddings": False}),
    "mistral": ("mistral", {"sliding_window": 21, "tie_word_embeddings": False}),
    "qwen3-moe": ("qwen3_moe", {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}),
    # Two groups of layers, the second stage has only one of them.
    "qwen3-some-slide": ("qwen3", {"use_sliding_window": True, "sliding_window": 13, "max_window_layers": 2}),
}
# Several chunks, more than a window, one token.
PROMPTS = [random_tokens(count, seed=count) for count in (5, 75, 40, 1)]
# Where the likeliest two tokens are nearer than this, either may be chosen.
CLOSE = 1e-3
_OPTIONS: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "max_model_len": 128,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
}


@dataclass
class Answer:
    ids: list[int]
    chosen: list[float]
    gaps: list[float]


def save_model(name: str, folder: Path) -> Path:
    model_type, options = MODELS[name]
    make_oracle(model_type, options).save_pretrained(folder)
    return folder


def open_llm(folder: Path, **options: Any) -> LLM:
    pool = {} if "num_pages" in options else {"kv_cache_memory": 2**20}
    return LLM(folder, **(_OPTIONS | pool | options))


def answer(llm: LLM, prompts: list[list[int]] = PROMPTS, num_tokens: int = 16) -> list[Answer]:
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, logprobs=2)
    answers: list[Answer] = []
    for output in llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False):
        (choice,) = output.outputs
        assert choice.logprobs is not None
        best = [sorted((found.logprob for found in step.values()), reverse=True) for step in choice.logprobs]
        answers.append(
            Answer(
                ids=list(choice.token_ids),
                chosen=[step[token].logprob for step, token in zip(choice.logprobs, choice.token_ids, strict=True)],
                gaps=[first - second for first, second, *_ in best],
            )
        )
    return answers


def assert_same(found: list[Answer], expected: list[Answer]) -> None:
    """Equal ids and near log-probabilities, up to a position at which the expected choice was close."""
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert len(mine.ids) == len(theirs.ids)
        first_close = next((i for i, gap in enumerate(theirs.gaps) if gap < CLOSE), len(theirs.ids))
        assert first_close >= len(theirs.ids) // 2, "choices so close prove nothing"
        assert mine.ids[:first_close] == theirs.ids[:first_close]
        for one, other in zip(mine.chosen[:first_close], theirs.chosen[:first_close], strict=True):
            assert abs(one - other) < 1e-3


def gone(pids: tuple[int, ...], seconds: float) -> bool:
    """Whether all processes end within the time."""
    until = time.monotonic() + seconds
    while any(_alive(pid) for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def rank_processes(parent: int) -> tuple[int, ...]:
    """Return the children of a process that are ranks, by process id."""
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            ours = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1] == str(parent)
            is_rank = b"octavo.worker.executors.rank" in Path(f"/proc/{entry}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if ours and is_rank:
            found.append(int(entry))
    return tuple(sorted(found))
