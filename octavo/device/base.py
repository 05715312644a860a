"""What a device must offer. The protocol stays at 12 members or fewer; everything else is decided from its facts.

Features that a worker asks facts for: "queue" (work is queued: a call returns before it is done) and "graphs" (`capture`
works). A device without "queue" has done everything when a call returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from octavo.base.facts import DeviceFacts


class Event(Protocol):
    """A place in the device's queue."""

    def done(self) -> bool:
        """Whether everything queued before it is done."""
        ...

    def wait(self) -> None:
        """Return once everything queued before it is done."""
        ...


class Graph(Protocol):
    """Recorded work: the same kernels on the same memory, as one thing to queue."""

    def replay(self) -> None:
        """Queue the work again."""
        ...


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

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """Return uninitialized uint8 `[num_bytes]` on the host, from and to which the device copies by itself."""
        ...

    def peak(self, work: Callable[[], None]) -> int:
        """Do the work and return the most bytes that it held at once, beyond those held before."""
        ...

    def record(self) -> Event:
        """Return the place behind everything that is queued now."""
        ...

    def capture(self, work: Callable[[], None]) -> Graph:
        """Record work that has run before, which may read no tensor on the host. Where work is queued, nothing of it happens.

        What it allocates belongs to the graphs of this device together: outputs of one are good until another is replayed.
        """
        ...

    def release(self) -> None:
        """Give back what nobody holds any more: other processes may want it."""
        ...
