"""Sampling parameters of every slot: written at admission, gathered by slot in every step.

What kernels read lies on the device; what only decides which kernels run (host flags) lies in numpy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.protocol.step import Admission

SlotArray = npt.NDArray[np.int64]


class SamplingRows:
    """Per-slot parameters; N slots.

    reals: float64 [N, 3] of (temperature, top_p, min_p). wholes: int64 [N, 5] of (top_k, seed, choice, num_prompt,
    min_tokens); top_k 0 is off. Host flags, [N]: greedy (the likeliest token is always taken), filtered (top_k or top_p
    is on), has_min_p, num_logprobs (-1 for none asked).
    """

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.reals = torch.zeros((num_slots, 3), dtype=torch.float64, device=device)
        self.wholes = torch.zeros((num_slots, 5), dtype=torch.int64, device=device)
        self.greedy = np.ones(num_slots, np.bool_)
        self.filtered = np.zeros(num_slots, np.bool_)
        self.has_min_p = np.zeros(num_slots, np.bool_)
        self.num_logprobs = np.full(num_slots, -1, np.int64)
        # Few requests ask for min_tokens: a side table, only for them.
        self._stop_ids: dict[int, npt.NDArray[np.int64]] = {}

    def admit(self, admissions: Sequence[Admission]) -> None:
        """Write the rows of newly taken slots."""
        reals, wholes = list[tuple[float, ...]](), list[tuple[int, ...]]()
        for admission in admissions:
            params, slot = admission.sampling, admission.slot
            top_k = params.top_k if 0 < params.top_k < self.vocab_size else 0
            reals.append((params.temperature, params.top_p, params.min_p))
            wholes.append((top_k, admission.seed, admission.choice, admission.num_prompt, params.min_tokens))
            self.greedy[slot] = params.greedy
            self.filtered[slot] = top_k > 0 or params.top_p < 1.0
            self.has_min_p[slot] = params.min_p > 0.0
            self.num_logprobs[slot] = self._num_logprobs(params.logprobs)
            if params.min_tokens > 0:
                ids = np.array(admission.stop_ids, np.int64)
                self._stop_ids[slot] = ids[ids < self.vocab_size]
        # Without waiting: a step may be running.
        device = self.reals.device
        slots = torch.tensor([admission.slot for admission in admissions]).to(device, non_blocking=True)
        self.reals[slots] = torch.tensor(reals, dtype=torch.float64).to(device, non_blocking=True)
        self.wholes[slots] = torch.tensor(wholes, dtype=torch.int64).to(device, non_blocking=True)

    def release(self, slots: SlotArray) -> None:
        """Forget what the slots' owners asked for."""
        self.greedy[slots] = True
        self.num_logprobs[slots] = -1
        for slot in slots.tolist():
            self._stop_ids.pop(slot, None)

    def plain(self, slots: SlotArray) -> bool:
        """Whether these slots ask for nothing but their likeliest tokens."""
        return bool(self.greedy[slots].all() and (self.num_logprobs[slots] < 0).all() and self.stops(slots) is None)

    def stops(self, slots: SlotArray) -> tuple[Tensor, Tensor] | None:
        """Return (row, stop id), int64 each, of rows that may have to wait for min_tokens; None if there are none."""
        if not self._stop_ids:
            return None
        found = [(row, self._stop_ids[slot]) for row, slot in enumerate(slots.tolist()) if slot in self._stop_ids]
        if not found:
            return None
        rows = np.repeat([row for row, _ in found], [len(ids) for _, ids in found])
        ids = np.concatenate([ids for _, ids in found])
        device = self.reals.device
        return torch.from_numpy(rows.astype(np.int64)).to(device), torch.from_numpy(ids).to(device)

    def _num_logprobs(self, asked: int | None) -> int:
        if asked is None:
            return -1
        return self.vocab_size if asked < 0 else min(asked, self.vocab_size)
