"""Sums of small tensors over GPUs that reach each other's memory: one kernel (csrc/cuda/sums.cu) where NCCL takes longer."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from octavo.base.intmath import ceil_div
from octavo.ops.cuda_module import CudaModule, Launch, compiled, module

# Bytes of the largest message, and of the largest whose words carry the number of the call; beyond, NCCL is quicker.
MOST_BYTES, MOST_SMALL = 8 * 2**20, 512 * 1024
_MOST_RANKS = 8
# As in csrc/cuda/sums.cu: threads of a block, and pieces of 16 bytes that each moves.
_SMALL, _LARGE = (128, 1), (256, 4)
_SUFFIX = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32", torch.int32: "i32"}
# The driver's word for reaching another card's memory as soon as it is opened.
_REACH = 1


class _Handle(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char * 64),)


class _Sum(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "out")),
        *((name, ctypes.c_void_p * _MOST_RANKS) for name in ("memories", "numbers")),
        ("calls", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("rank", "ranks", "pieces", "most_pieces", "most_blocks")),
    )


class PeerSum:
    """Adds up messages of at most MOST_BYTES through the ranks' `memories`. All ranks make the same calls."""

    def __init__(self, sums: CudaModule, memories: Sequence[int], rank: int) -> None:
        self._sums, self._rank, self._zeros = sums, rank, dict[torch.dtype, Tensor]()
        self._calls = torch.zeros((2, _most_blocks()), dtype=torch.int32, device="cuda")
        self._kinds, first = list[_Sum](), 0
        for kind, most in enumerate((MOST_SMALL // 16, MOST_BYTES // 16)):
            size = 2 * len(memories) * most * (16 if kind else 32)
            at = ctypes.c_void_p * _MOST_RANKS
            self._kinds.append(
                _Sum(
                    memories=at(*(memory + first for memory in memories)),
                    numbers=at(*(memory + first + size for memory in memories)),
                    calls=self._calls[kind].data_ptr(),
                    rank=rank,
                    ranks=len(memories),
                    most_pieces=most,
                    most_blocks=_most_blocks(),
                )
            )
            first += size

    def part_of(self, total: Tensor) -> Tensor:
        """Return where to add a part of what `sum(part, total)` brings to every rank: the total itself on one, else zeros."""
        if self._rank == 0:
            return total
        if total.dtype not in self._zeros:
            self._zeros[total.dtype] = torch.zeros(MOST_SMALL // total.itemsize, dtype=total.dtype, device=total.device)
        return self._zeros[total.dtype][: total.numel()].view(total.shape)

    def takes(self, x: Tensor) -> bool:
        """Whether x is small enough, and of whole pieces."""
        size = x.numel() * x.itemsize
        return 0 < size <= MOST_BYTES and size % 16 == 0 and x.data_ptr() % 16 == 0 and x.dtype in _SUFFIX

    def sum(self, x: Tensor, out: Tensor | None = None) -> None:
        """Queue the sum of every rank's x, which overwrites it, or else `out`: x is zero then."""
        assert x.is_contiguous()
        size, target = x.numel() * x.itemsize, x if out is None else out
        large = size > MOST_SMALL
        (threads, each), parameters = (_LARGE if large else _SMALL), self._kinds[large]
        parameters.x, parameters.out, parameters.pieces = x.data_ptr(), target.data_ptr(), size // 16
        launch = Launch(grid=(ceil_div(size // 16, threads * each), 1, 1), threads=threads)
        self._sums.launch(f"sum_{'large_' * large}{_SUFFIX[x.dtype]}", parameters, launch)


def _most_blocks() -> int:
    return max(ceil_div(MOST_SMALL, 16 * _SMALL[0]), ceil_div(MOST_BYTES, 16 * _LARGE[0] * _LARGE[1]))


def meet(store: Any, rank: int, size: int) -> PeerSum | str:
    """Open every rank's memory to all; returns in words why not, on every rank, if it cannot be done on one of them.

    store: of the group, where nobody has done this yet.
    """
    if size > _MOST_RANKS or not compiled("sums"):
        return f"more than {_MOST_RANKS} ranks" if size > _MOST_RANKS else "the kernel is not compiled"
    opened, outcome = None, "opened"
    try:
        opened = _open(store, rank, size)
    except RuntimeError as error:
        outcome = str(error)
    store.set(f"outcome {rank}", outcome)
    outcomes = [store.get(f"outcome {other}").decode() for other in range(size)]
    failed = next((other for other in outcomes if other != "opened"), None)
    return PeerSum(*opened, rank) if opened is not None and failed is None else str(failed)


def _open(store: Any, rank: int, size: int) -> tuple[CudaModule, list[int]]:
    """Take memory of our own, full of zeros, and return the kernels and where that of each rank lies for this one."""
    num_bytes = 2 * size * (2 * MOST_SMALL + MOST_BYTES) + 4 * size * _most_blocks()
    places, handle = [ctypes.c_uint64() for _ in range(size)], _Handle()
    try:
        sums = module("sums")
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
    return sums, [place.value for place in places]
