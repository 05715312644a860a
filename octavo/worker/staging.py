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

    def send(self, fixed: np.ndarray, arrays: Sequence[np.ndarray] = ()) -> tuple[Tensor, list[Tensor]]:
        """Return whole numbers as int64 tensors on the device, good for this step. fixed: those that graphs read there."""
        sizes = [len(fixed), *(array.size for array in arrays)]
        total = sum(sizes)
        fits = total <= len(self.fixed)
        # Without a queue nothing reads the numbers of a step once the next are sent.
        in_place = fits and not self._queues
        host = self.fixed[:total] if in_place else self.device.pinned(8 * total).view(torch.int64)
        flat, first = host.numpy(), 0
        for array in (fixed, *arrays):
            flat[first : first + array.size] = array.reshape(-1)
            first += array.size
        if in_place:
            placed = host
        elif fits:
            placed = self.fixed[:total].copy_(host, non_blocking=True)
        else:
            placed = torch.empty(total, dtype=torch.int64, device=self.device.torch_device)
            placed.copy_(host, non_blocking=True)
            self.fixed[: len(fixed)].copy_(placed[: len(fixed)])
        numbers, *parts = placed.split(sizes)
        return numbers, [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]

    def fetch(self, tensor: Tensor) -> Tensor:
        """Return a tensor's copy on the host, good once the device has come to the end of its queue."""
        if not self._queues:
            # A replay overwrites what the one before gave, perhaps before anybody reads this.
            return tensor.clone() if self._records else tensor
        size = tensor.numel() * tensor.itemsize
        host = self.device.pinned(size).view(tensor.dtype).view(tensor.shape)
        return host.copy_(tensor, non_blocking=True)
