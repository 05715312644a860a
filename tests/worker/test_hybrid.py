"""A whole engine on a model with states (Qwen3-Next): whatever is cached, cut, preempted or forked, the ids of `transformers`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from octavo.protocol.output import EngineStats
from tests.models.oracle import random_tokens
from tests.models.witnesses import make_witness
from tests.worker.engine import SmallEngine

INTERVAL = 32
BEGINNING = random_tokens(70, seed=9)
PROMPTS = [
    [*BEGINNING[:length], *random_tokens(tail, seed=tail)] for length, tail in ((70, 5), (70, 9), (40, 3), (0, 33))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hybrid")
    make_witness("qwen3-next").save_pretrained(path)
    return path


@cache
def expected(prompt: tuple[int, ...], count: int) -> list[int]:
    """Continue without any cache, as the oracle does."""
    oracle, tokens = make_witness("qwen3-next"), list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            best = oracle(torch.tensor([tokens]), use_cache=False).logits[0, -1].topk(2)
            assert best.values[0] - best.values[1] > 1e-3  # Nearer ones may differ by rounding.
            tokens.append(int(best.indices[0]))
    return tokens[len(prompt) :]


def serve(engine: SmallEngine, prompts: list[list[int]], first: int = 0, n: int = 1, count: int = 12) -> EngineStats:
    """Serve prompts side by side to the end and compare every choice."""
    for key, prompt in enumerate(prompts, first):
        engine.ask(key, prompt, count, n=n)
    stats = engine.run()
    for key, prompt in enumerate(prompts, first):
        for choice in range(n):
            assert engine.ids[key, choice] == expected(tuple(prompt), count), (key, choice)
    return stats


@pytest.mark.parametrize(("budget", "depth"), [(9, 2), (64, 1)])
def test_a_second_prompt_resumes_from_a_checkpoint(folder: Path, budget: int, depth: int) -> None:
    engine = SmallEngine(folder, interval=INTERVAL, budget=budget, depth=depth)
    assert [group.is_state for group in engine.geometry.groups].count(True) == 1
    for number, prompt in enumerate([*PROMPTS, PROMPTS[0]]):
        serve(engine, [prompt], number)
    assert [engine.cached[key] for key in range(5)] == [0, 64, 32, 0, 64]
    engine.close()


def test_side_by_side_and_again(folder: Path) -> None:
    engine = SmallEngine(folder, interval=INTERVAL)
    serve(engine, PROMPTS)
    serve(engine, PROMPTS, 4)
    assert [engine.cached[key] for key in range(4, 8)] == [64, 64, 32, 32]
    engine.close()


@pytest.mark.parametrize("reuse", [True, False])
def test_too_few_pages_and_several_choices(folder: Path, reuse: bool) -> None:
    engine = SmallEngine(folder, interval=INTERVAL, num_pages=18, enable_prefix_caching=reuse)
    short = [prompt[-12:] for prompt in PROMPTS]
    assert serve(engine, short, count=40).num_preemptions > 0
    serve(engine, PROMPTS[1:2], 4, n=3)
    engine.close()
