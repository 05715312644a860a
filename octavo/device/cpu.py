"""The host's processor as a device."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import suppress

import torch

from octavo.base.facts import DeviceFacts
from octavo.base.native import library
from octavo.device.base import Graph
from octavo.device.host import host_arch, host_cores, host_memory
from octavo.device.recording import Arena, NoReads, Recorder


class Done:
    """An event of a device that queues nothing."""

    def done(self) -> bool:
        """Return True."""
        return True

    def wait(self) -> None:
        """Return at once."""


class CpuDevice:
    """A `Device` over the cores and the memory that this process may use."""

    def __init__(self) -> None:
        name, arch, features = host_arch()
        # No float16: processors have no fast product for it, and float32 holds all of its values.
        self.facts = DeviceFacts(
            kind="cpu",
            name=name,
            arch=arch,
            num_cores=host_cores(),
            total_memory=host_memory().total,
            dtypes=("float32", "bfloat16"),
            features=features | {"graphs"},
        )
        self.torch_device = torch.device("cpu")
        self._arena = Arena()

    def free_memory(self) -> int:
        """Bytes that can be taken now, within the limits of this process's control groups."""
        return host_memory().free

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Return uninitialized uint8 `[num_bytes]`; its pages take memory once they are written."""
        return torch.frombuffer(large_pages(num_bytes), dtype=torch.uint8)

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """Return uninitialized uint8 `[num_bytes]`: all memory is the host's."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def peak(self, work: Callable[[], None]) -> int:
        """Do the work and return 0: nobody counts what a host's allocator hands out."""
        work()
        return 0

    def record(self) -> Done:
        """Return an event that is done."""
        return Done()

    def capture(self, work: Callable[[], None]) -> Graph:
        """Record work, which is done too. Raises UnrecordableError where it reads a tensor's values."""
        found = library()
        recorder = Recorder(self._arena, None if isinstance(found, str) else found)
        with NoReads(), recorder:
            work()
        return recorder.graph()

    def release(self) -> None:
        """Return at once: the allocator knows best."""


def large_pages(num_bytes: int) -> mmap.mmap:
    """Return private memory, zeros, in large pages where the system has them: what is read from end to end, as weights are by
    every step of one row, comes from them at twice the rate."""
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # a system, or a kernel, without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def find(index: int) -> CpuDevice | None:
    """Return the device; there always is one, which all ranks share."""
    return CpuDevice()
