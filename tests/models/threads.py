"""Ranks as threads of one process: what a model computes on a mesh, without processes and sockets."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from octavo.nn.parallel.mesh import Axis, Mesh, coordinates

_T = TypeVar("_T")
_SECONDS = 30.0


class Meeting:
    """Where the threads of one axis meet."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size)
        self.brought: list[Tensor | None] = [None] * size
        self.sent = {(source, to): queue.Queue[Tensor]() for source in range(size) for to in range(size)}


class ThreadGroup:
    """One thread's way to the others."""

    waits, how, peers = False, "threads", None

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting = meeting
        self._rank = rank

    def _exchange(self, x: Tensor) -> list[Tensor]:
        meeting = self._meeting
        meeting.brought[self._rank] = x.clone()
        meeting.barrier.wait(_SECONDS)
        brought = [tensor for tensor in meeting.brought if tensor is not None]
        meeting.barrier.wait(_SECONDS)
        assert len({tensor.shape for tensor in brought}) == 1
        return brought

    def all_reduce(self, x: Tensor) -> None:
        parts = self._exchange(x)
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        x.copy_(total)

    def all_gather(self, parts: Sequence[Tensor], x: Tensor) -> None:
        for part, brought in zip(parts, self._exchange(x), strict=True):
            part.copy_(brought)

    def broadcast(self, x: Tensor, source: int) -> None:
        x.copy_(self._exchange(x)[source])

    def send(self, x: Tensor, to: int) -> None:
        self._meeting.sent[self._rank, to].put(x.clone())

    def receive(self, x: Tensor, source: int) -> None:
        x.copy_(self._meeting.sent[source, self._rank].get(timeout=_SECONDS))


class PeerThreads(ThreadGroup):
    """One that has a quicker way, as cards that reach each other's memory."""

    @property
    def peers(self) -> PeerThreads:
        return self

    def part_of(self, total: Tensor) -> Tensor:
        return total if self._rank == 0 else torch.zeros_like(total)

    def sum(self, x: Tensor, out: Tensor) -> None:
        out.copy_(sum(self._exchange(x)))
        if x is not out:
            x.zero_()


def on_ranks(
    tensor: int, pipeline: int, work: Callable[[Mesh], _T], group: type[ThreadGroup] = ThreadGroup
) -> list[_T]:
    """Run `work` on every rank of a mesh at the same time; returns what each returned, by rank."""
    stages = [Meeting(tensor) for _ in range(pipeline)]
    lines = [Meeting(pipeline) for _ in range(tensor)]

    def axis(meeting: Meeting, rank: int) -> Axis:
        return Axis(size=meeting.size, rank=rank, group=group(meeting, rank))

    def run(rank: int) -> _T:
        on_tensor, on_pipeline = coordinates(rank, tensor)
        mesh = Mesh(tensor=axis(stages[on_pipeline], on_tensor), pipeline=axis(lines[on_tensor], on_pipeline))
        try:
            return work(mesh)
        except BaseException:
            for meeting in (*stages, *lines):
                meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(tensor * pipeline) as pool:
        return [future.result() for future in [pool.submit(run, rank) for rank in range(tensor * pipeline)]]
