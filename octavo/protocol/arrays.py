"""Types and small constructors of the flat arrays that records carry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
Uint8Array = npt.NDArray[np.uint8]


def int32(values: Iterable[int] = ()) -> Int32Array:
    """Return a flat int32 array."""
    return np.array(values if isinstance(values, (list, tuple)) else list(values), dtype=np.int32)


def int64(values: Iterable[int] = ()) -> Int64Array:
    """Return a flat int64 array."""
    return np.array(values if isinstance(values, (list, tuple)) else list(values), dtype=np.int64)


def rows32(rows: list[tuple[int, ...]], width: int) -> Int32Array:
    """Return int32 `[len(rows), width]`, also when there are no rows."""
    return np.array(rows, dtype=np.int32).reshape(len(rows), width)


def plain(value: Any) -> Any:
    """Return numpy's numbers and arrays, also in a list or tuple, as Python's own; anything else as it is."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, (list, tuple)) and any(isinstance(one, (np.generic, np.ndarray)) for one in value):
        return [plain(one) for one in value]
    return value
