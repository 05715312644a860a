"""Sums of small tensors over GPUs that reach each other's memory: one kernel (csrc/cuda/sums.cu) where NCCL takes longer."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from octavo.base.intmath import ceil_div
from octavo.ops.cuda_module import CudaModule, Launch, compiled, module

# Bytes of the largest message; with larger ones NCCL, which sends every byte once, is quicker.
MOST_BYTES = 512 * 1024
_MOST_RANKS, _THREADS = 8, 128
_SUFFIX = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
# The driver's word for reaching another card's memory as soon as it is opened.
_REACH = 1


class _Handle(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char * 64),)


class _Sum(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "out")),
        ("memories", ctypes.c_void_p * _MOST_RANKS),
        ("calls", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("rank", "ranks", "pieces", "most_pieces")),
    )


class PeerSum:
    """Adds up messages of at most `most` bytes through the ranks' memories. All ranks make the same calls."""

    def __init__(self, sums: CudaModule, memories: Sequence[int], rank: int, most: int) -> None:
        self._sums, self._most = sums, most
        self._calls = torch.zeros(ceil_div(most, 16 * _THREADS), dtype=torch.int32, device="cuda")
        self._fixed = {"calls": self._calls.data_ptr(), "rank": rank, "ranks": len(memories), "most_pieces": most // 16}
        self._memories = (ctypes.c_void_p * _MOST_RANKS)(*memories)
        self._rank, self._zeros = rank, dict[torch.dtype, Tensor]()

    def part_of(self, total: Tensor) -> Tensor:
        """Return where to add a part of what `sum(part, total)` brings to every rank: the total itself on one, else zeros."""
        if self._rank == 0:
            return total
        if total.dtype not in self._zeros:
            self._zeros[total.dtype] = torch.zeros(self._most // total.itemsize, dtype=total.dtype, device=total.device)
        return self._zeros[total.dtype][: total.numel()].view(total.shape)

    def takes(self, x: Tensor) -> bool:
        """Whether x is small enough, and of whole pieces."""
        size = x.numel() * x.itemsize
        return 0 < size <= self._most and size % 16 == 0 and x.data_ptr() % 16 == 0 and x.dtype in _SUFFIX

    def sum(self, x: Tensor, out: Tensor | None = None) -> None:
        """Queue the sum of every rank's x, which overwrites it, or else `out`: x is zero then."""
        assert x.is_contiguous()
        pieces = x.numel() * x.itemsize // 16
        parameters = _Sum(
            x=x.data_ptr(),
            out=(x if out is None else out).data_ptr(),
            memories=self._memories,
            pieces=pieces,
            **self._fixed,
        )
        launch = Launch(grid=(ceil_div(pieces, _THREADS), 1, 1), threads=_THREADS)
        self._sums.launch(f"sum_{_SUFFIX[x.dtype]}", parameters, launch)


def meet(store: Any, rank: int, size: int) -> PeerSum | str:
    """Open every rank's memory to all; returns in words why not, on every rank, if it cannot be done on one of them.

    store: of the group, where nobody has done this yet.
    """
    if size > _MOST_RANKS or not compiled("sums"):
        return f"more than {_MOST_RANKS} ranks" if size > _MOST_RANKS else "the kernel is not compiled"
    sums, memories, outcome = module("sums"), list[int](), "opened"
    try:
        memories = _open(store, sums, rank, size, 2 * size * 2 * MOST_BYTES)
    except RuntimeError as error:
        outcome = str(error)
    store.set(f"outcome {rank}", outcome)
    outcomes = [store.get(f"outcome {other}").decode() for other in range(size)]
    failed = next((other for other in outcomes if other != "opened"), None)
    return failed or PeerSum(sums, memories, rank, MOST_BYTES)


def _open(store: Any, sums: CudaModule, rank: int, size: int, num_bytes: int) -> list[int]:
    """Take memory of our own, full of zeros, and return where that of each rank lies for this one."""
    places, handle = [ctypes.c_uint64() for _ in range(size)], _Handle()
    try:
        sums.call("cuMemAlloc_v2", ctypes.byref(places[rank]), ctypes.c_size_t(num_bytes))
        sums.call("cuMemsetD8_v2", places[rank], 0, ctypes.c_size_t(num_bytes))
        sums.call("cuCtxSynchronize")
        sums.call("cuIpcGetMemHandle", ctypes.byref(handle), places[rank])
    finally:
        # The others wait for it: without a handle they fail too.
        store.set(f"memory {rank}", bytes(handle))
    for other, place in enumerate(places):
        if other != rank:
            handle = _Handle.from_buffer_copy(store.get(f"memory {other}"))
            sums.call("cuIpcOpenMemHandle_v2", ctypes.byref(place), handle, _REACH)
    return [place.value for place in places]
