"""What a rank does with orders that came while it was busy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo.nn.parallel.mesh import Mesh
from octavo.protocol.arrays import int32
from octavo.protocol.step import Masks, StepPlan, StepResult
from octavo.worker.executors import orders, rank


class _Codec:
    """Leaves everything as it is."""

    def __init__(self, _: Any) -> None:
        self.encode = self.decode = lambda one: one

    def __class_getitem__(cls, _: Any) -> type[_Codec]:
        return cls


class _Line:
    """Orders that have all come already; what is awaited beyond them never comes."""

    def __init__(self, given: list[Any]) -> None:
        self.given, self.results = given, list[int]()

    def waiting(self) -> bool:
        return bool(self.given)

    def receive(self) -> Any:
        if not self.given:
            raise EOFError
        return self.given.pop(0)

    def send(self, answer: Any) -> None:
        if isinstance(answer, orders.Done):
            self.results.append(answer.result.plan)


class _Runner:
    """Gives every plan's result at once, or when its masks have come."""

    waits, mesh = False, Mesh()

    def load(self) -> Any:
        return SimpleNamespace(part=lambda geometry: geometry)

    def launch(self, plan: StepPlan) -> Any:
        self.waits = len(plan.masked) > 0
        return SimpleNamespace(ready_within=lambda _: True, result=lambda: StepResult(plan=plan.id))

    def learn(self, result: StepResult) -> None:
        pass

    def mask(self, masks: Masks) -> None:
        assert self.waits
        self.waits = False


def _follow(monkeypatch: pytest.MonkeyPatch, *given: Any) -> list[int]:
    """Return the plans whose results were told before more orders had to come."""
    device = SimpleNamespace(facts=SimpleNamespace(kind="cpu"))
    monkeypatch.setattr(rank, "detect", lambda *_: device)
    monkeypatch.setattr(rank, "take_threads", lambda _: None)
    monkeypatch.setattr(rank, "ModelRunner", lambda *_, **__: _Runner())
    monkeypatch.setattr(rank, "Codec", _Codec)
    monkeypatch.setattr(orders, "Found", lambda **_: None)
    monkeypatch.setattr(orders, "Loaded", lambda **_: None)
    spec: Any = SimpleNamespace(tensor=1, pipeline=1, spread_experts=False)
    line: Any = _Line([orders.Load(spec=spec), *given])
    start = orders.RankStart(device="cpu", rank=0, num_ranks=1, folder="")
    watch: Any = SimpleNamespace(in_flight=rank.deque())
    with pytest.raises(EOFError):
        rank._serve(start, line, watch)
    return line.results


def _plan(number: int, *masked: int) -> orders.Execute:
    return orders.Execute(plan=StepPlan(id=number, masked=int32(masked)))


def test_a_result_is_told_though_a_plan_waits_for_masks_and_another_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # The masks of plan 1 follow from what plan 0 gave.
    assert _follow(monkeypatch, _plan(0), _plan(1, 0), _plan(2)) == [0]


def test_plans_are_launched_in_their_order_once_masks_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = Masks(plan=1, rows=int32((0,)), positions=int32((0,)), bits=np.zeros((1, 4), np.uint8))
    assert _follow(monkeypatch, _plan(0), _plan(1, 0), _plan(2), masks) == [0, 1, 2]
