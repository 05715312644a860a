"""What a step brings to the device and back: page-locked memory, and copies that nobody waits for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from octavo.device.base import Device

# Numbers beside the fixed ones that go along in the same copy: what most steps change in page tables.
_SPARE = 8192


class Staging:
    """The way to and from a device. fixed: int64, its first `num_fixed` stay in place, so that graphs can read them there."""

    def __init__(self, device: Device, num_fixed: int) -> None:
        self.device = device
        self._queues = "queue" in device.facts.features
        self._records = "graphs" in device.facts.features
        self.fixed = torch.zeros(num_fixed + _SPARE, dtype=torch.int64, device=device.torch_device)
        self._flat = np.zeros(0, np.int64) if self._queues else self.fixed.numpy()
        self._none = torch.zeros(0, dtype=torch.int64)

    def send(self, fixed: np.ndarray, arrays: Sequence[np.ndarray] = ()) -> list[Tensor]:
        """Put whole numbers to the beginning of `fixed`; return others as int64 tensors on the device, good for this step."""
        sizes = [len(fixed), *(array.size for array in arrays)]
        total = sum(sizes)
        fits = total <= len(self.fixed)
        # Without a queue nothing reads the numbers of a step once the next are sent.
        in_place = fits and not self._queues
        host = None if in_place else self.device.pinned(8 * total).view(torch.int64)
        flat, first = self._flat if host is None else host.numpy(), 0
        for array in (fixed, *arrays):
            flat[first : first + array.size] = array.reshape(-1)
            first += array.size
        if host is None:
            # No operation for what is empty: one lets the engine's thread in, and a step would wait for it to plan the next.
            if total == len(fixed):
                return [self._none] * len(arrays)
            placed = self.fixed[:total]
        elif fits:
            placed = self.fixed[:total].copy_(host, non_blocking=True)
        else:
            placed = torch.empty(total, dtype=torch.int64, device=self.device.torch_device)
            placed.copy_(host, non_blocking=True)
            self.fixed[: len(fixed)].copy_(placed[: len(fixed)])
        parts = placed.split(sizes)[1:]
        return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]

    def bring(self, array: np.ndarray) -> Tensor:
        """Return a tensor with these bytes on the device, whatever lies in `fixed`."""
        host = self.device.pinned(array.size).view(array.shape)
        host.numpy()[...] = array
        return host.to(self.device.torch_device, non_blocking=True)

    def fetch(self, tensor: Tensor) -> Tensor:
        """Return a tensor's copy on the host, good once the device has come to the end of its queue."""
        if not self._queues:
            # A replay overwrites what the one before gave, perhaps before anybody reads this.
            return tensor.clone() if self._records else tensor
        size = tensor.numel() * tensor.itemsize
        host = self.device.pinned(size).view(tensor.dtype).view(tensor.shape)
        return host.copy_(tensor, non_blocking=True)
