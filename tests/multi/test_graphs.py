"""Two ranks whose steps are replayed as graphs answer as one: on fake devices, whose graphs record how ranks meet too.

A rank is a thread here. What it does with the other is an operation of torch, so that a graph replays it.
"""

from __future__ import annotations

import queue
from collections import defaultdict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from octavo import launch
from octavo.config.resolve import resolve
from octavo.nn.parallel.mesh import Axis, Mesh
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.step import StepResult
from octavo.worker.executors.multiproc import merge_reports
from octavo.worker.runner import ModelRunner
from tests.equivalence.test_graphs import dense_attention
from tests.fake_device import FakeDevice, fake_device
from tests.multi.models import PROMPTS, answer, assert_same, open_llm, save_model

# (sender, receiver) -> what is on its way.
WAYS: defaultdict[tuple[int, int], queue.Queue[torch.Tensor]] = defaultdict(queue.Queue)


@torch.library.custom_op("octavo_tests::put", mutates_args=())
def put(x: torch.Tensor, rank: int) -> None:
    WAYS[rank, 1 - rank].put(x.clone())


@torch.library.custom_op("octavo_tests::take", mutates_args=("x",))
def take(x: torch.Tensor, rank: int) -> None:
    found = WAYS[1 - rank, rank].get(timeout=20)
    assert found.shape == x.shape
    x.copy_(found)


class TwoThreads:
    """A `Group` of two."""

    waits, how, peers = False, "threads", None

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def all_gather(self, parts, x):
        parts[self.rank].copy_(x)
        put(x, self.rank)
        take(parts[1 - self.rank], self.rank)

    def all_reduce(self, x):
        both = torch.empty((2, *x.shape), dtype=x.dtype)
        self.all_gather(both.unbind(), x)
        x.copy_(both[0] + both[1])

    def broadcast(self, x, source):
        (put if self.rank == source else take)(x, self.rank)

    def send(self, x, to):
        put(x, self.rank)

    def receive(self, x, source):
        take(x, self.rank)


class Threads:
    """An `Executor` of two ranks."""

    def __init__(self, spec, devices: list[FakeDevice]) -> None:
        along = "tensor" if spec.tensor == 2 else "pipeline"
        self.pools = [ThreadPoolExecutor(1) for _ in range(2)]
        self.runners = [
            ModelRunner(
                spec,
                device=devices[rank],
                meet=lambda rank=rank: Mesh(**{along: Axis(size=2, rank=rank, group=TwoThreads(rank))}),
            )
            for rank in range(2)
        ]
        self.last = 1 if along == "pipeline" else 0
        self.in_flight: deque[Future[StepResult]] = deque()
        self.known: list[StepResult] = []

    def both(self, work) -> list:
        return [pool.submit(work, runner) for pool, runner in zip(self.pools, self.runners, strict=True)]

    def load(self):
        self.reports = [future.result() for future in self.both(lambda runner: runner.load())]
        return merge_reports(self.reports)

    def allocate(self, geometry, num_pages):
        reports = dict(zip(self.runners, self.reports, strict=True))
        futures = self.both(lambda runner: runner.allocate(reports[runner].part(geometry), num_pages))
        [future.result() for future in futures]

    def submit(self, plan):
        known, self.known = self.known, []

        def run(runner):
            for result in known:
                runner.learn(result)
            return runner.execute(plan)

        self.in_flight.append(self.both(run)[self.last])

    def collect(self, timeout=None):
        result = self.in_flight.popleft().result()
        if self.last == 1 and len(result.offsets) > 1:
            self.known.append(result)
        return result

    def check(self):
        pass

    def shutdown(self):
        for pool in self.pools:
            pool.shutdown()


@pytest.mark.parametrize("along", ["tensor_parallel_size", "pipeline_parallel_size"])
@pytest.mark.parametrize("name", ["llama-tied", "qwen3-some-slide"])
def test_answers_of_replayed_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, along: str) -> None:
    save_model(name, tmp_path)
    drawn = [SamplingParams(temperature=0.9, seed=s, max_tokens=20, ignore_eos=True) for s in range(len(PROMPTS))]
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]

    def draws(llm) -> list[list[int]]:
        found = llm.generate(prompts, drawn, use_tqdm=False)
        found += llm.generate(prompts, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True), use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in found]

    with open_llm(tmp_path) as alone:
        expected, expected_draws = answer(alone), draws(alone)
    devices = [fake_device(features=frozenset(("queue", "graphs"))) for _ in range(2)]

    def open_executor(config, checkpoint):
        resolved = resolve(config, checkpoint.facts, devices[0].facts)
        return Threads(launch._worker_spec(config, checkpoint, resolved, "fake"), devices), resolved

    monkeypatch.setattr(launch, "_open_executor", open_executor)
    monkeypatch.setattr("octavo.ops.paged_attention.reference.paged_attention", dense_attention)
    monkeypatch.setattr("octavo.worker.loader.assemble.called", lambda model, functions: ())
    with open_llm(tmp_path, **{along: 2}) as llm:
        assert_same(answer(llm), expected)
        assert_same(answer(llm, PROMPTS[::-1]), expected[::-1])
        same = sum(one == other for one, other in zip(draws(llm), expected_draws, strict=True))
    assert same >= len(expected_draws) - 1
    assert devices[0].num_replays == devices[1].num_replays > 60
    assert len(devices[0].graphs) == len(devices[1].graphs) > 3
    assert all(not way.qsize() for way in WAYS.values())
