"""Packed products by the processor's kernels: csrc/cpu/packed.h says how weights lie in memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.checkpoint.ggml_types import GGML_TYPES
from octavo.ops.native import DTYPES, NativeOp

_PACK = NativeOp("pack", "p qqq")
_ROWS = NativeOp("packed_rows", "ppp qqqqq")
_PRODUCT = NativeOp("packed_product", "pppp qqqq qq qqqq")
_NUMBERS = {kind.name: number for number, kind in GGML_TYPES.items()}
_BLOCKS = {kind.name: kind.block for kind in GGML_TYPES.values()}


@dataclass(frozen=True, slots=True)
class NativeProduct:
    """See `PackedProduct`. Blocks lie in panels of 16 rows."""

    pays: bool = True

    def pack(self, blocks: Tensor, kind: str) -> None:
        """See `PackedProduct`."""
        assert blocks.is_contiguous()
        _PACK(blocks, _NUMBERS[kind], *_sizes(blocks, kind))

    def rows(self, weight: Tensor, kind: str, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """See `PackedProduct`."""
        num_outs, num_ins = _sizes(weight, kind)
        out = torch.empty((len(ids), num_ins), dtype=dtype)
        assert ids.is_contiguous() and ids.dtype == torch.int64
        _ROWS(weight, ids, out, _NUMBERS[kind], num_outs, num_ins, len(ids), DTYPES[dtype])
        return out

    def product(
        self, x: Tensor, weight: Tensor, kind: str, bias: Tensor | None, dtype: torch.dtype, integers: bool
    ) -> Tensor:
        """See `PackedProduct`."""
        num_outs, num_ins = _sizes(weight, kind)
        out = torch.empty((len(x), num_outs), dtype=dtype)
        assert x.shape[1] == num_ins and x.stride(1) == 1
        dtypes = DTYPES[x.dtype], DTYPES[dtype], DTYPES[torch.float32 if bias is None else bias.dtype]
        sizes = len(x), num_ins, num_outs, x.stride(0), num_outs
        _PRODUCT(x, weight, bias, out, _NUMBERS[kind], *sizes, *dtypes, integers)
        return out


def _sizes(weight: Tensor, kind: str) -> tuple[int, int]:
    return weight.shape[0], weight.shape[1] * _BLOCKS[kind]


PRODUCT = NativeProduct()
