"""What a device must offer. The protocol stays at 12 members or fewer; everything else is decided from its facts."""

from __future__ import annotations

from typing import Protocol

import torch

from octavo.base.facts import DeviceFacts


class Device(Protocol):
    """One device of this worker. All sizes in bytes."""

    @property
    def facts(self) -> DeviceFacts:
        """What the device is, measured once."""
        ...

    @property
    def torch_device(self) -> torch.device:
        """Where its tensors live."""
        ...

    def free_memory(self) -> int:
        """Bytes that can be taken now without pushing anybody out."""
        ...

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Return uninitialized uint8 `[num_bytes]`; on a host, pages take memory once they are written."""
        ...

    def synchronize(self) -> None:
        """Wait until everything queued on the device is done."""
        ...
