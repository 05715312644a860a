"""Who holds the device's memory."""

from __future__ import annotations

from octavo.device.base import Device


class Ledger:
    """Bytes by owner, each measured as what free memory lost while the owner took its own."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._owners = {"context": device.facts.total_memory - device.free_memory()}

    def charge(self, owner: str) -> None:
        """What was taken since the last call belongs to `owner`."""
        taken = self._used() - sum(self._owners.values())
        self._owners[owner] = self._owners.get(owner, 0) + taken

    def report(self) -> dict[str, int]:
        """Return bytes by owner; `free` are nobody's, and what steps took since the start is workspace. The sum is all memory."""
        self.charge("workspace")
        return {**self._owners, "free": self._device.facts.total_memory - self._used()}

    def _used(self) -> int:
        return self._device.facts.total_memory - self._device.free_memory()
