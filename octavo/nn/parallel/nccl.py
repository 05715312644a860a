"""Groups of ranks over NCCL, one GPU each: everything is queued on the current stream, so that graphs record it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from octavo.base.env import prepare_nccl
from octavo.base.errors import UnsupportedError
from octavo.nn.parallel.peers import meet
from octavo.ops.cuda_module import current_stream

# As nccl.h numbers them.
_TYPES = {torch.int64: 4, torch.float16: 6, torch.float32: 7, torch.bfloat16: 9}
_SUM = 0


class _Id(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char * 128),)


class NcclGroup:
    """A `Group` of tensors on this process's GPU. store: where all ranks of the group find each other. waits: never, on the host.

    Small sums take a way of their own, if the cards reach each other's memory.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        prepare_nccl()
        self.waits, self._rank = False, rank
        try:
            self._nccl = ctypes.CDLL("libnccl.so.2")
        except OSError as error:
            raise UnsupportedError(f"several GPUs need NCCL: {error}", field="tensor_parallel_size") from error
        self._nccl.ncclGetErrorString.restype = ctypes.c_char_p
        unique = _Id()
        if rank == 0:
            self._call("GetUniqueId", ctypes.byref(unique))
            store.set("nccl", bytes(unique))
        unique = _Id.from_buffer_copy(store.get("nccl"))
        self._comm = ctypes.c_void_p()
        self._call("CommInitRank", ctypes.byref(self._comm), size, unique, rank)
        peers = meet(store, rank, size)
        self.peers = None if isinstance(peers, str) else peers
        self.how = (
            f"NCCL, small sums too: {peers}" if isinstance(peers, str) else "NCCL, small sums through peer memory"
        )
        # What it makes when it is first used is its own.
        for size in (4, 2**20):
            self._queue("AllReduce", warm := torch.zeros(size, device="cuda"), warm.data_ptr(), _SUM)
            warm.sum().item()

    def all_reduce(self, x: Tensor) -> None:
        """See `Group`."""
        if self.peers is not None and self.peers.takes(x):
            self.peers.sum(x)
        else:
            self._queue("AllReduce", x, x.data_ptr(), _SUM)

    def all_gather(self, parts: Sequence[Tensor], x: Tensor) -> None:
        """See `Group`."""
        self._queue("AllGather", x, parts[0].data_ptr())

    def broadcast(self, x: Tensor, source: int) -> None:
        """See `Group`."""
        bits = x.view(torch.int32)
        if self.peers is not None and self.peers.takes(bits):
            self.peers.sum(bits if self._rank == source else bits.zero_())
        else:
            self._queue("Broadcast", x, x.data_ptr(), source)

    def send(self, x: Tensor, to: int) -> None:
        """See `Group`."""
        self._queue("Send", x, None, to)

    def receive(self, x: Tensor, source: int) -> None:
        """See `Group`."""
        self._queue("Recv", x, None, source)

    def _queue(self, name: str, x: Tensor, out: int | None, *how: int) -> None:
        """Queue what is done with x. out: where the result goes, if that is said. how: operation or rank."""
        assert x.is_contiguous()
        places = [ctypes.c_void_p(place) for place in (x.data_ptr(), out) if place is not None]
        size, stream = ctypes.c_size_t(x.numel()), ctypes.c_void_p(current_stream())
        self._call(name, *places, size, _TYPES[x.dtype], *how, self._comm, stream)

    def _call(self, name: str, *arguments: object) -> None:
        error = self._nccl[f"nccl{name}"](*arguments)
        if error:
            raise RuntimeError(f"NCCL {name}: {self._nccl.ncclGetErrorString(error).decode()}")
