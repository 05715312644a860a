"""Groups of ranks over gloo, which runs everywhere, through loopback. No global state: every group is an object.

Ranks find each other through a file in a private folder, and their ports are the kernel's choice, so engines that start
together cannot collide. Gloo's own time limit is out of reach: who executes the ranks sees one that is dead or hangs, says
which, and ends them all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed
from torch import Tensor

from octavo.nn.parallel.mesh import Axis, Mesh, coordinates
from octavo.nn.parallel.nccl import NcclGroup

# Torch's stubs leave out much of what is used here.
_dist: Any = torch.distributed
_NEVER = timedelta(days=1)
# Sent tensors that are kept until they have left; the ranks that receive are never further behind.
_KEPT = 8


class PeerLostError(Exception):
    """Another rank of this one's group is gone."""


class GlooGroup:
    """A `Group` of CPU tensors. waits: see `Group`."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        options = _dist.ProcessGroupGloo._Options()
        options._devices = [_dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = _NEVER
        self.waits, self.how, self.peers = False, "gloo, through loopback", None
        self._sent: deque[tuple[Any, Tensor]] = deque()
        try:
            self._gloo = _dist.ProcessGroupGloo(store, rank, size, options)
        except RuntimeError as error:
            raise PeerLostError(str(error)) from error

    def all_reduce(self, x: Tensor) -> None:
        """See `Group`."""
        self._wait(lambda: self._gloo.allreduce([x]))

    def all_gather(self, parts: Sequence[Tensor], x: Tensor) -> None:
        """See `Group`."""
        self._wait(lambda: self._gloo.allgather([list(parts)], [x]))

    def broadcast(self, x: Tensor, source: int) -> None:
        """See `Group`."""
        self._wait(lambda: self._gloo.broadcast(x, source))

    def send(self, x: Tensor, to: int) -> None:
        """See `Group`."""
        while len(self._sent) >= _KEPT:
            work, _ = self._sent.popleft()
            self._wait(lambda work=work: work)
        try:
            self._sent.append((self._gloo.send([x], to, 0), x))
        except RuntimeError as error:
            raise PeerLostError(str(error)) from error

    def receive(self, x: Tensor, source: int) -> None:
        """See `Group`."""
        self._wait(lambda: self._gloo.recv([x], source, 0))

    def _wait(self, start: Callable[[], Any]) -> None:
        """Wait for what `start` begins; a rank that is gone may show in its beginning or in its end."""
        self.waits = True
        try:
            start().wait()
        except RuntimeError as error:
            raise PeerLostError(str(error)) from error
        self.waits = False


def connect(rank: int, *, tensor: int, pipeline: int, spread_experts: bool, folder: str, on_gpus: bool) -> Mesh:
    """Return the mesh of a rank among `tensor` * `pipeline`, once all of them are here. Raises PeerLostError.

    spread_experts: whole experts are spread over the tensor axis. folder: a private one, the same for all, where nobody has
    met before. on_gpus: each rank has its own, over NCCL.
    """
    store = _dist.FileStore(str(Path(folder, "ranks")), tensor * pipeline)
    on_tensor, on_pipeline = coordinates(rank, tensor)

    def axis(name: str, size: int, place: int) -> Axis:
        if size == 1:
            return Axis()
        make = NcclGroup if on_gpus else GlooGroup
        return Axis(size=size, rank=place, group=make(_dist.PrefixStore(name, store), place, size))

    within = axis(f"tensor {on_pipeline}", tensor, on_tensor)
    return Mesh(
        tensor=within,
        expert=within if spread_experts else Axis(),
        pipeline=axis(f"pipeline {on_tensor}", pipeline, on_pipeline),
    )
