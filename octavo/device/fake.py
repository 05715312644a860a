"""A device for tests: invented facts and memory, and the host's arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from octavo.base.facts import DeviceFacts

_FACTS = DeviceFacts(
    kind="fake", name="fake", arch="fake_1", num_cores=4, total_memory=8 * 2**30, dtypes=("float32", "bfloat16")
)


@dataclass(slots=True, kw_only=True)
class FakeDevice:
    """A `Device` that is whatever `facts` say. allocated: bytes handed out, which are no longer free."""

    facts: DeviceFacts = _FACTS
    allocated: int = 0
    num_synchronized: int = 0
    torch_device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def free_memory(self) -> int:
        """Bytes of the invented memory that nobody took."""
        return self.facts.total_memory - self.allocated

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Return uint8 `[num_bytes]` full of 255, which is NaN in every floating dtype; raises MemoryError beyond `facts`."""
        if num_bytes > self.free_memory():
            raise MemoryError(f"{num_bytes} bytes asked for, {self.free_memory()} free")
        self.allocated += num_bytes
        return torch.full((num_bytes,), 255, dtype=torch.uint8)

    def synchronize(self) -> None:
        """Count the call."""
        self.num_synchronized += 1


def fake_device(**facts: object) -> FakeDevice:
    """Return a fake device with some facts replaced: `fake_device(kind="cuda", arch="sm_90")`."""
    return FakeDevice(facts=replace(_FACTS, **facts))  # pyright: ignore[reportArgumentType]
