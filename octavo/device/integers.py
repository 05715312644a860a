"""Operations on a few whole numbers as native calls: a recording has them between its kernels, and none needs Python then.

What is not known here is done by the tensor library again; so this is never more than quicker.
"""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
# As csrc/cpu/integers.cpp numbers them.
_KINDS = {
    _aten._to_copy.default: 0,
    _aten.to.dtype: 0,
    _aten.add.Tensor: 1,
    _aten.sub.Tensor: 2,
    _aten.mul.Tensor: 3,
    _aten.floor_divide.default: 4,
    _aten.remainder.Scalar: 5,
    _aten.clamp.default: 6,
    _aten.clamp_.default: 6,
    _aten.arange.default: 7,
}
# More of them are quicker by many threads.
_MOST = 2**16
_LEAST_INT, _MOST_INT = -(2**63), 2**63 - 1
_NOTHING = (0, 8, 0, 0)


def native_call(func: Any, args: Any, kwargs: Any, out: Tensor) -> tuple[str, bytes] | None:
    """Return the name of a native op that does the same, and its arguments, or None. out: what the operation gives."""
    if not _fits(out):
        return None
    if func is _aten.index.Tensor:
        return _gather(args[0], args[1], out)
    if func not in _KINDS or len(args) > 3 or not set(kwargs) <= {"dtype", "device", "pin_memory", "min", "max"}:
        return None
    kind, first, second, scalar, most = _KINDS[func], _NOTHING, _NOTHING, 0, _MOST_INT
    if kind != 7:
        if not _fits(args[0]):
            return None
        first = _numbers(args[0], out)
    if kind == 6:
        bounds = dict(zip(("min", "max"), args[1:], strict=False)) | kwargs
        scalar, most = (bounds.get(name) for name in ("min", "max"))
        scalar, most = _LEAST_INT if scalar is None else scalar, _MOST_INT if most is None else most
    elif 0 < kind < 6:
        if isinstance(args[1], Tensor):
            if not _fits(args[1]):
                return None
            second = _numbers(args[1], out)
        else:
            scalar = args[1]
    if not isinstance(scalar, int) or not isinstance(most, int):
        return None
    values = *_numbers(out, out), *first, *second, kind, *_rows(out), scalar, most
    return "integers", struct.pack("17q", *values)


def _gather(source: Tensor, indices: list[Tensor | None], out: Tensor) -> tuple[str, bytes] | None:
    known = [index for index in indices if index is not None and index.dtype == torch.int64]
    if len(known) != len(indices) or not _fits(source, most=_MOST_INT) or source.dim() == 0:
        return None
    if source.dim() == 1 and len(known) == 1:
        rows, places = _numbers(known[0], out), _NOTHING
        found = source.data_ptr(), source.itemsize, source.stride(0), 0
    elif source.dim() == 2 and (len(known) == 2 or known[0].dim() == 1):
        whole = known[0][:, None] if len(known) == 1 else known[0]
        rows, places = _numbers(whole, out), _numbers(known[1], out) if len(known) == 2 else _NOTHING
        found = source.data_ptr(), source.itemsize, *source.stride()
    else:
        return None
    values = *_numbers(out, out), *found, *rows, *places, *_rows(out), source.shape[0], source.shape[-1]
    return "gather", struct.pack("20q", *values)


def _fits(tensor: Any, most: int = _MOST) -> bool:
    known = isinstance(tensor, Tensor) and tensor.dtype in (torch.int32, torch.int64)
    return known and 0 < tensor.numel() <= most and tensor.dim() <= 2


def _rows(out: Tensor) -> tuple[int, int]:
    return (out.shape[0], out.shape[1]) if out.dim() == 2 else (1, out.numel())


def _numbers(tensor: Tensor, out: Tensor) -> tuple[int, int, int, int]:
    """Return address, bytes of a number, and strides, repeated to the shape of `out`."""
    row, column = (0, 0, *tensor.expand(out.shape).stride())[-2:]
    return tensor.data_ptr(), tensor.itemsize, row, column
