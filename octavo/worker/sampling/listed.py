"""Lists of numbers that few slots bring (biases, masks, bad words), joined for the rows of a step.

A steady step has the rows of the last one: what was joined for those is kept, and nothing is done on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.protocol.arrays import Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The entries of some rows, m in all. rows: int64 [m], each entry's row. owners: int64, the rows that have entries.

    numbers: float64 [m, w]; shorter entries have -1 in front. ids: int64 [m], their last numbers.
    """

    rows: Tensor
    owners: Tensor
    numbers: Tensor
    ids: Tensor


class Listed:
    """Entries by slot. An entry is a few numbers, exact in float64, of which the last is a token id."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._entries: dict[int, npt.NDArray[np.float64]] = {}
        self._rows: Int64Array | None = None
        self._joined: Joined | None = None

    def put(self, slot: int, entries: Sequence[Sequence[float]]) -> None:
        """Give a slot its entries; none is as good as not asking."""
        if entries:
            width = max(map(len, entries))
            self._entries[slot] = np.array([[*[-1.0] * (width - len(one)), *one] for one in entries])
            self._rows = None

    def drop(self, slot: int) -> None:
        """Forget a slot's entries."""
        if self._entries.pop(slot, None) is not None:
            self._rows = None

    def join(self, slots: Int64Array) -> Joined | None:
        """Return the entries of a step's rows, None if they have none. slots: int64 [S]."""
        if not self._entries:
            return None
        if self._rows is None or not np.array_equal(self._rows, slots):
            self._rows, self._joined = slots.copy(), self._join(slots)
        return self._joined

    def _join(self, slots: Int64Array) -> Joined | None:
        found = [(row, self._entries[slot]) for row, slot in enumerate(slots.tolist()) if slot in self._entries]
        if not found:
            return None
        owners = np.array([row for row, _ in found], np.int64)
        width = max(entries.shape[1] for _, entries in found)
        numbers = torch.from_numpy(
            np.concatenate(
                [np.pad(entries, ((0, 0), (width - entries.shape[1], 0)), constant_values=-1.0) for _, entries in found]
            )
        ).to(self._device)
        rows = np.repeat(owners, [len(entries) for _, entries in found])
        return Joined(
            rows=torch.from_numpy(rows).to(self._device),
            owners=torch.from_numpy(owners).to(self._device),
            numbers=numbers,
            ids=numbers[:, -1].long(),
        )
