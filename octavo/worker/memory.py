"""Who holds the device's memory, and how many bytes the page pool may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.base.errors import ConfigError
from octavo.device.base import Device
from octavo.engine.kvcache.geometry import solve
from octavo.protocol.kept import KeptLayer
from octavo.worker.spec import WorkerSpec

# On a host other programs want memory too, and so do activations.
_HOST_SHARE = 0.5


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


def check_pool(num_pages: int, page_bytes: int, *, free: int, others: Mapping[str, int]) -> None:
    """Raise ConfigError if so many pages do not fit into what is free, in bytes, and `others` leave of it."""
    left = free - sum(others.values())
    if num_pages * page_bytes > left:
        taken = "".join(f", less {_mib(size)} for {owner}" for owner, size in others.items())
        raise ConfigError(
            f"num_pages must be at most {max(left, 0) // page_bytes}, not {num_pages}, which take "
            f"{_mib(num_pages * page_bytes)} ({page_bytes} bytes each; {_mib(free)} free{taken})",
            field="num_pages",
        )


def pool_bytes(
    spec: WorkerSpec, layers: Sequence[KeptLayer], *, kind: str, free: int, total: int, others: Mapping[str, int]
) -> tuple[int, tuple[str, ...]]:
    """Return the bytes that the pool may take, and the arithmetic in words.

    kind: of the device ("cpu", "cuda"). free, total: its memory in bytes, measured with the weights loaded; the ranks of a host
    share it. others: what else will be taken, by owner. Raises ConfigError when `kv_cache_memory` is more than is left, or
    nothing is.
    """
    if kind == "cpu":
        free //= spec.num_ranks
    left = free - sum(others.values())
    taken = "".join(f", less {_mib(size)} for {owner}" for owner, size in others.items())
    if spec.kv_cache_memory is not None:
        if spec.kv_cache_memory > left:
            raise ConfigError(
                f"kv_cache_memory must be at most the {_mib(max(left, 0))} that are left once the weights are loaded "
                f"({_mib(free)} free{taken}), not {_mib(spec.kv_cache_memory)}",
                field="kv_cache_memory",
            )
        return spec.kv_cache_memory, (f"page pool {_mib(spec.kv_cache_memory)}: asked for",)
    share = spec.memory_utilization
    if kind == "cpu":
        allowed = int(free * _HOST_SHARE * share)
        reason = f"{_HOST_SHARE:g} of {_mib(free)} free, times utilization {share:g}"
    else:
        allowed = int(left - (1.0 - share) * total)
        reason = f"{_mib(free)} free{taken}, less {1.0 - share:.2g} of {_mib(total)} kept back"
    if allowed <= 0:
        raise ConfigError(f"no memory is left for the page pool: {reason}", field="gpu_memory_utilization")
    if kind != "cpu":
        return allowed, (f"page pool {_mib(allowed)}: {reason}",)
    geometry = solve(layers, spec.block_size)
    useful = spec.max_num_seqs * geometry.pages_of(spec.max_model_len) * geometry.page_bytes
    needed = f"{spec.max_num_seqs} sequences of {spec.max_model_len} tokens take {_mib(useful)}"
    return min(allowed, useful), (
        f"page pool {_mib(min(allowed, useful))}: the lesser of {_mib(allowed)} ({reason}) and what {needed}",
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
