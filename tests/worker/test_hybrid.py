"""A whole engine on a model with states (Qwen3-Next): whatever is cached, cut, preempted or forked, the ids of `transformers`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.checkpoint.open import open_checkpoint
from octavo.config.model import ModelConfig
from octavo.engine.core import EngineCore
from octavo.engine.kvcache.geometry import Geometry, solve
from octavo.engine.schedule.limits import ScheduleLimits
from octavo.engine.schedule.scheduler import Scheduler
from octavo.protocol.arrays import int32
from octavo.protocol.output import EngineStats
from octavo.protocol.request import Request
from octavo.protocol.sampling import SamplingParams
from octavo.worker.executors.inproc import InprocExecutor
from octavo.worker.spec import WorkerSpec
from tests.models.oracle import random_tokens
from tests.models.witnesses import make_witness

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


class Engine:
    """Scheduler and worker on one model. num_pages: as many as `room` sequences of 96 tokens take."""

    def __init__(
        self, folder: Path, *, room: float = 8.0, budget: int = 64, reuse: bool = True, depth: int = 2
    ) -> None:
        checkpoint = open_checkpoint(ModelConfig(model=str(folder), skip_tokenizer_init=True))
        spec = WorkerSpec(checkpoint=checkpoint, dtype="float32", max_model_len=128, max_num_seqs=4, threads=1)
        self.executor = InprocExecutor(spec)
        self.geometry: Geometry = solve(self.executor.load().layers, None, INTERVAL)
        num_pages = int(room * self.geometry.pages_of(96))
        self.executor.allocate(self.geometry, num_pages)
        limits = ScheduleLimits(
            max_num_seqs=4,
            max_num_batched_tokens=budget,
            max_model_len=128,
            enable_prefix_caching=reuse,
            depth=depth,
        )
        self.core = EngineCore(Scheduler(self.geometry, num_pages, limits), self.executor)
        self.cached: dict[int, int] = {}
        self.ids: dict[tuple[int, int], list[int]] = {}

    def serve(self, prompts: list[list[int]], first: int = 0, n: int = 1, count: int = 12) -> EngineStats:
        """Serve prompts side by side to the end and compare every choice."""
        for key, prompt in enumerate(prompts, first):
            params = SamplingParams(temperature=0.0, max_tokens=count, n=n)
            request: dict[str, Any] = {"key": key, "tokens": int32(prompt), "sampling": params}
            self.core.handle(Request(**request, stop_ids=(), max_tokens=count, seed=0))
        while self.core.busy:
            delta = self.core.step()
            for row, key in enumerate(delta.keys.tolist() if delta is not None else ()):
                ids = delta.ids[delta.offsets[row] : delta.offsets[row + 1]].tolist()
                self.ids.setdefault((key, int(delta.choices[row])), []).extend(ids)
            for start in delta.starts if delta is not None else ():
                self.cached.setdefault(start.key, start.num_cached)
        for key, prompt in enumerate(prompts, first):
            for choice in range(n):
                assert self.ids[key, choice] == expected(tuple(prompt), count), (key, choice)
        return self.core.stats()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [9, 64])
def test_a_second_prompt_resumes_from_a_checkpoint(folder: Path, budget: int, depth: int) -> None:
    engine = Engine(folder, budget=budget, depth=depth)
    assert [group.is_state for group in engine.geometry.groups].count(True) == 1
    for number, prompt in enumerate([*PROMPTS, PROMPTS[0]]):
        engine.serve([prompt], number)
    assert [engine.cached[key] for key in range(5)] == [0, 64, 32, 0, 64]
    engine.executor.shutdown()


def test_side_by_side_and_again(folder: Path) -> None:
    engine = Engine(folder)
    engine.serve(PROMPTS)
    engine.serve(PROMPTS, 4)
    assert [engine.cached[key] for key in range(4, 8)] == [64, 64, 32, 32]
    engine.executor.shutdown()


@pytest.mark.parametrize("reuse", [True, False])
def test_too_few_pages_and_several_choices(folder: Path, reuse: bool) -> None:
    engine = Engine(folder, room=1.2, reuse=reuse)
    short = [prompt[-12:] for prompt in PROMPTS]
    assert engine.serve(short, count=40).num_preemptions > 0
    engine.serve(PROMPTS[1:2], 4, n=3)
    engine.executor.shutdown()
