"""The worker on a thread: order, failures and the end."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from octavo.base.errors import CheckpointError, EngineDeadError
from octavo.checkpoint.open import open_checkpoint
from octavo.config.model import ModelConfig
from octavo.engine.kvcache.geometry import solve
from octavo.protocol.step import StepPlan
from octavo.worker.executors.inproc import InprocExecutor
from tests.fake_device import fake_device
from tests.models.oracle import make_oracle
from tests.models.witnesses import MOE
from tests.worker.toy import Host, Loaded, ToyModel, geometry, toy_spec

PROMPT = [5, 9, 2, 7, 1, 30]


class SlowModel(ToyModel):
    """Waits at a gate before every pass; fails when told to."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()
        self.failure: Exception | None = None
        self.threads: set[str] = set()

    def forward(self, ids, context):
        assert self.gate.wait(10)
        self.threads.add(threading.current_thread().name)
        if self.failure is not None:
            raise self.failure
        return super().forward(ids, context)


@pytest.fixture
def running():
    model = SlowModel()
    executor = InprocExecutor(toy_spec(threads=1), lambda checkpoint, **_: Loaded(model=model))
    report = executor.load()
    assert report.layers == Loaded().layers
    executor.allocate(geometry(1), 40)
    yield executor, Host(geometry(1), 40), model
    model.gate.set()
    executor.shutdown()


def test_plans_run_ahead_of_their_results(running):
    executor, host, model = running
    host.admit(0, PROMPT)
    host.chunk(0, 0, 6, True)
    executor.submit(host.plan())
    for length in (7, 8, 9):
        host.decode(0, length)
        executor.submit(host.plan())  # Long before the host sees the token that it continues from.
    assert executor.collect(0.0) is None
    assert executor.collect(0.02) is None
    model.gate.set()
    results = [executor.collect() for _ in range(4)]
    assert [result.plan for result in results] == [0, 1, 2, 3]
    assert [int(result.ids[0]) for result in results] == model.greedy(PROMPT, 4)
    assert model.threads == {"octavo-worker_0"}


def test_a_failure_surfaces_everywhere_and_stops_later_plans(running):
    executor, host, model = running
    model.failure = RuntimeError("kernel went wrong")
    host.admit(0, PROMPT)
    host.chunk(0, 0, 6, True)
    executor.submit(host.plan())
    host.decode(0, 7)
    executor.submit(host.plan())
    model.gate.set()
    with pytest.raises(EngineDeadError, match="RuntimeError: kernel went wrong") as caught:
        executor.collect()
    assert caught.value.__cause__ is model.failure
    with pytest.raises(EngineDeadError, match="kernel went wrong"):
        executor.submit(StepPlan(id=2))
    with pytest.raises(EngineDeadError, match="kernel went wrong"):
        executor.collect(0.0)
    assert model.num_tokens == []
    executor.shutdown()


def test_shutdown_joins_the_thread_and_may_be_repeated():
    executor = InprocExecutor(toy_spec(), lambda checkpoint, **_: Loaded())
    executor.load()
    executor.allocate(geometry(1), 40)
    before = threading.active_count()
    executor.submit(StepPlan(id=0))
    executor.shutdown()
    executor.shutdown()
    assert threading.active_count() == before - 1
    for use in (lambda: executor.submit(StepPlan(id=1)), lambda: executor.collect(0.0), executor.load):
        with pytest.raises(EngineDeadError, match="shut down"):
            use()


def test_memory_comes_back_at_once(tmp_path, monkeypatch):
    """A worker that waits for the garbage collector would keep a GPU full."""
    make_oracle("qwen3_moe", MOE).save_pretrained(tmp_path)
    checkpoint = open_checkpoint(ModelConfig(model=str(tmp_path), skip_tokenizer_init=True))
    device = fake_device(features=frozenset(("queue",)))
    monkeypatch.setattr("octavo.worker.runner.detect", lambda kind: device)
    executor = InprocExecutor(toy_spec(checkpoint=checkpoint, dtype="float32"))
    report = executor.load()
    executor.allocate(solve(report.layers), 40)
    runner = executor._runner
    held = [weakref.ref(one) for one in (runner, runner.model, runner.pool, runner.slots)]
    gc.collect()
    gc.disable()
    try:
        executor.shutdown()
        del runner
        assert [one() for one in held] == [None] * 4
    finally:
        gc.enable()
    assert device.num_released == 1


def test_what_loading_raises_is_raised_as_it_is():
    def broken(checkpoint, **_):
        raise CheckpointError("tensor x is missing")

    executor = InprocExecutor(toy_spec(), broken)
    with pytest.raises(CheckpointError, match="tensor x is missing"):
        executor.load()
    executor.shutdown()
