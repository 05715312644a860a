"""A device for tests: invented facts and memory, the host's arithmetic, and graphs that replay as a GPU's do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from octavo.base.facts import DeviceFacts
from octavo.device.recording import NoReads, UnrecordableError, refuse_reads, tensors_of

_FACTS = DeviceFacts(
    kind="fake", name="fake", arch="fake_1", num_cores=4, total_memory=8 * 2**30, dtypes=("float32", "bfloat16")
)


class FakeEvent:
    """An event that is done once somebody waited for it, or for one after it."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self._number = device.num_recorded

    def done(self) -> bool:
        """Whether it, or one after it, was waited for."""
        return self._device.num_done >= self._number

    def wait(self) -> None:
        """Note that everything before it is done."""
        self._device.num_done = max(self._device.num_done, self._number)


class FakeGraph(TorchDispatchMode):
    """Operations on the very tensors that they were recorded with: what the host decided meanwhile stays decided."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self._device = device
        # Function, arguments, what it gave, and which of that is memory of its own.
        self._steps: list[tuple[Any, Any, Any, Any, list[bool]]] = []

    @property
    def num_operations(self) -> int:
        """Operations of one replay."""
        return len(self._steps)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        refuse_reads(func, args)
        out = func(*args, **(kwargs or {}))
        given = {tensor.untyped_storage().data_ptr() for tensor in tensors_of((args, kwargs))}
        made = [tensor.untyped_storage().data_ptr() not in given for tensor in tensors_of(out)]
        self._steps.append((func, args, kwargs or {}, out, made))
        return out

    def replay(self) -> None:
        """Do the operations again; what they made is overwritten."""
        self._device.num_replays += 1
        for func, args, kwargs, out, made in self._steps:
            again = func(*args, **kwargs)
            for old, new, is_own in zip(tensors_of(out), tensors_of(again), made, strict=True):
                if is_own:
                    old.copy_(new)


@dataclass(slots=True, kw_only=True)
class FakeDevice:
    """A `Device` that is whatever `facts` say. allocated: bytes handed out, which are no longer free.

    peak_bytes: what every piece of work is said to hold at once. num_*: calls so far; num_done: events that are done.
    """

    facts: DeviceFacts = _FACTS
    allocated: int = 0
    peak_bytes: int = 0
    num_recorded: int = 0
    num_done: int = 0
    num_replays: int = 0
    num_released: int = 0
    torch_device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    graphs: list[FakeGraph] = field(default_factory=list[FakeGraph])

    def free_memory(self) -> int:
        """Bytes of the invented memory that nobody took."""
        return self.facts.total_memory - self.allocated

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Return uint8 `[num_bytes]` full of 255, which is NaN in every floating dtype; raises MemoryError beyond `facts`."""
        if num_bytes > self.free_memory():
            raise MemoryError(f"{num_bytes} bytes asked for, {self.free_memory()} free")
        self.allocated += num_bytes
        return torch.full((num_bytes,), 255, dtype=torch.uint8)

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """Return uint8 `[num_bytes]`, full of 255."""
        return torch.full((num_bytes,), 255, dtype=torch.uint8)

    def peak(self, work: Callable[[], None]) -> int:
        """Do the work and return `peak_bytes`."""
        work()
        return self.peak_bytes

    def record(self) -> FakeEvent:
        """Return an event that is done once it was waited for."""
        self.num_recorded += 1
        return FakeEvent(self)

    def capture(self, work: Callable[[], None]) -> FakeGraph:
        """Record the operations of `work`, which are done too; raises RuntimeError if it reads a tensor on the host."""
        graph = FakeGraph(self)
        try:
            with NoReads(), graph:
                work()
        except UnrecordableError as error:
            # A GPU's worker knows before which kernels it cannot record: it does not expect this.
            raise RuntimeError(str(error)) from None
        self.graphs.append(graph)
        return graph

    def release(self) -> None:
        """Count the call."""
        self.num_released += 1


def fake_device(**facts: object) -> FakeDevice:
    """Return a fake device with some facts replaced: `fake_device(kind="cuda", arch="sm_90")`."""
    return FakeDevice(facts=replace(_FACTS, **facts))  # pyright: ignore[reportArgumentType]
