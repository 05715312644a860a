"""What a steady decode step costs the host, counted and not timed: a rise shows here and has to be meant.

The engine's own loop on a fake device with graphs: plan, launch, collect, commit. Counted in a step in which nobody comes,
goes or fills a block: calls of Python functions, operations that write memory, and tensors that are made, beside the replay.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import octavo
from octavo.engine.core import EngineCore
from octavo.engine.schedule.limits import ScheduleLimits
from octavo.engine.schedule.scheduler import Scheduler
from octavo.ops.registry import bind
from octavo.protocol.arrays import int32
from octavo.protocol.request import Request
from octavo.protocol.sampling import SamplingParams
from octavo.worker.batch import make_batch, shape_of, void_rows
from octavo.worker.executors.inproc import InprocExecutor
from octavo.worker.slots import Slots
from octavo.worker.staging import Staging
from tests.fake_device import FakeGraph, fake_device
from tests.worker.toy import BLOCK, FlatToy, Loaded, flat_draw, geometry, toy_spec

# Raise one only for what a step cannot do without. Python calls: those of 3.11; later versions make fewer.
MOST_CALLS, MOST_OPERATIONS, MOST_TENSORS, MOST_RECORDED = 113, 4, 2, 55
PACKAGE = str(Path(octavo.__file__).parent)


class _Counted(TorchDispatchMode):
    """Counts operations that write memory, and those that make it, outside graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = False
        self.operations = Counter[str]()
        self.num_made = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.inside and isinstance(out, torch.Tensor):
            given = {one.untyped_storage().data_ptr() for one in args if isinstance(one, torch.Tensor)}
            made = out.untyped_storage().data_ptr() not in given
            self.num_made += made
            self.operations[str(func)] += made or func._schema.is_mutable
        return out


def steady_core(monkeypatch: pytest.MonkeyPatch, num_rows: int, temperature: float = 0.0) -> tuple[EngineCore, Any]:
    """Return an engine in the middle of decoding so many sequences, and its device."""
    device = fake_device(features=frozenset(("queue", "graphs")))
    monkeypatch.setattr("octavo.worker.runner.detect", lambda kind: device)
    kernels = replace(bind(device.facts, "float64"), draw=flat_draw)
    loaded = Loaded(model=FlatToy(), unrecordable=(), kernels=kernels)
    executor = InprocExecutor(toy_spec(max_num_seqs=num_rows, max_model_len=96), lambda checkpoint, **_: loaded)
    executor.load()
    executor.allocate(geometry(1), 80 * num_rows)
    limits = ScheduleLimits(max_num_seqs=num_rows, max_num_batched_tokens=64 * num_rows, max_model_len=96)
    core = EngineCore(Scheduler(geometry(1), 80 * num_rows, limits), executor)
    params = SamplingParams(temperature=temperature, top_p=0.9, max_tokens=80, ignore_eos=True)
    for key in range(num_rows):
        core.handle(Request(key=key, tokens=int32([1, 2, 3, key]), sampling=params, stop_ids=(), max_tokens=80, seed=0))
    while core.stats().generated_tokens < 40 * num_rows:
        core.step()
    return core, device


def counted_step(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> tuple[int, Counter[str], int]:
    """Return the fewest Python calls, the operations and the tensors made of any step of a block's length."""
    found = list[tuple[int, Counter[str], int]]()
    replay = FakeGraph.replay
    for _ in range(BLOCK):
        mode, calls = _Counted(), 0

        def quiet(graph: FakeGraph, mode: _Counted = mode) -> None:
            mode.inside = True
            replay(graph)
            mode.inside = False

        monkeypatch.setattr(FakeGraph, "replay", quiet)

        def count(frame: Any, event: str, argument: Any, mode: _Counted = mode) -> None:
            nonlocal calls
            calls += event == "call" and not mode.inside and frame.f_code.co_filename.startswith(PACKAGE)

        with mode:
            sys.setprofile(count)
            core.step()
            sys.setprofile(None)
        found.append((calls, mode.operations, mode.num_made))
    return min(found, key=lambda one: (one[0], one[2]))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_steady_step_costs_no_more_than_it_did(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    core, device = steady_core(monkeypatch, 4, temperature)
    before = device.num_replays
    calls, operations, num_made = counted_step(core, monkeypatch)
    assert device.num_replays - before == BLOCK, "one replay a step"
    assert calls <= MOST_CALLS
    assert operations.total() <= MOST_OPERATIONS, operations
    assert num_made <= MOST_TENSORS, operations


def test_a_step_costs_the_same_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (counted_step(steady_core(monkeypatch, rows)[0], monkeypatch) for rows in (2, 16))
    assert few == many


@torch.inference_mode()
def test_what_a_graph_does_besides_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    core, device = steady_core(monkeypatch, 1)
    runner: Any = core._executor._runner
    whole = device.graphs[0].num_operations
    rows = void_rows(1, 1, 96)
    shape = shape_of(rows, runner.slots, runner.pool)
    runner._staging.send(rows.numbers(shape, runner.slots.void))
    batch = make_batch(runner._staging.fixed[: shape.num_numbers], shape, runner.slots, runner.pool)
    model = device.capture(lambda: runner.model.compute_logits(runner.model.forward(batch.ids, batch.context)))
    assert whole - model.num_operations <= MOST_RECORDED


def _slower_advance(advance: Callable[..., None]) -> Callable[..., None]:
    def regression(self: Slots, slots: Any) -> None:
        for slot in slots.tolist():
            advance(self, slots[slots == slot])

    return regression


def _another_copy(send: Callable[..., Any]) -> Callable[..., Any]:
    def regression(self: Staging, fixed: Any, arrays: Any = ()) -> Any:
        parts = send(self, fixed, arrays)
        self.fixed.clone()
        return parts

    return regression


@pytest.mark.parametrize(
    ("owner", "name", "planted"), [(Slots, "advance", _slower_advance), (Staging, "send", _another_copy)]
)
def test_a_planted_regression_is_noticed(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, planted: Any) -> None:
    core, _ = steady_core(monkeypatch, 4)
    monkeypatch.setattr(owner, name, planted(getattr(owner, name)))
    calls, operations, num_made = counted_step(core, monkeypatch)
    assert calls > MOST_CALLS or operations.total() > MOST_OPERATIONS or num_made > MOST_TENSORS
