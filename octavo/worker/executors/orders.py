"""What an executor tells its ranks, and what they answer; msgpack on the wire."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.base.facts import DeviceFacts
from octavo.engine.executor import WorkerReport
from octavo.engine.kvcache.geometry import Geometry
from octavo.protocol.step import Masks, StepPlan, StepResult
from octavo.worker.spec import WorkerSpec


class RankStart(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank is told at its start. device: its kind. folder: a private one, where all ranks of the executor meet."""

    device: str
    rank: int
    num_ranks: int
    folder: str


class Load(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """Load this rank's part of the model."""

    spec: WorkerSpec


class Allocate(msgspec.Struct, frozen=True, kw_only=True, tag="allocate"):
    """Make the pool of pages, as `geometry` cuts it for all layers, and the slots."""

    geometry: Geometry
    num_pages: int


class Execute(msgspec.Struct, frozen=True, kw_only=True, tag="execute"):
    """Run a plan. known: what earlier plans gave, for stages that could not see it."""

    plan: StepPlan
    known: tuple[StepResult, ...] = ()


class Found(msgspec.Struct, frozen=True, kw_only=True, tag="found"):
    """A rank has found its device."""

    rank: int
    facts: DeviceFacts


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """A rank has loaded its part of the model."""

    rank: int
    report: WorkerReport


class Allocated(msgspec.Struct, frozen=True, kw_only=True, tag="allocated"):
    """A rank has made its pool."""

    rank: int


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """A rank's result of a plan. Ranks that do not sample send it only where the plan asked something of every rank."""

    rank: int
    result: StepResult


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """A rank's last words. kind: the error's class. lost: it only lost another rank, which is the one to blame."""

    rank: int
    kind: str
    message: str
    lost: bool = False


Order = Load | Allocate | Execute | Masks
Answer = Found | Loaded | Allocated | Done | Failed


def asks_every_rank(plan: StepPlan) -> bool:
    """Whether every rank has to answer for this plan."""
    return bool(plan.controls or plan.transfers)


class Pulse:
    """Signs of life, in a small shared file: float64 [ranks, 2] of (monotonic seconds, whether it waits for another rank)."""

    def __init__(self, folder: str, num_ranks: int) -> None:
        path = Path(folder, "pulse")
        if not path.exists():
            path.write_bytes(bytes(16 * num_ranks))
        self.beats: npt.NDArray[np.float64] = np.memmap(path, np.float64, "r+", shape=(num_ranks, 2))
