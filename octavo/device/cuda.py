"""An NVIDIA GPU: the only home of torch.cuda.

Everything runs on the current stream, in order; only the recording of graphs has a stream of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import cuda  # noqa: TID251

from octavo.base.env import prepare_kernel_caches
from octavo.base.errors import ConfigError
from octavo.base.facts import DeviceFacts


class CudaEvent:
    """An event without timing."""

    def __init__(self) -> None:
        self._event = cuda.Event()
        self._event.record()

    def done(self) -> bool:
        """Whether everything queued before it is done."""
        return self._event.query()

    def wait(self) -> None:
        """Spin until everything queued before it is done; other threads of this process run meanwhile."""
        self._event.synchronize()


class CudaDevice:
    """A `Device` over one GPU. index: its number among those that the process sees."""

    def __init__(self, index: int = 0) -> None:
        self.torch_device = torch.device("cuda", index)
        cuda.set_device(self.torch_device)
        properties = cuda.get_device_properties(self.torch_device)
        major, minor = properties.major, properties.minor
        wide = ("float32", "bfloat16", "float16") if major >= 8 else ("float32", "float16")
        self.facts = DeviceFacts(
            kind="cuda",
            name=properties.name,
            arch=f"sm_{major}{minor}",
            num_cores=properties.multi_processor_count,
            total_memory=cuda.mem_get_info(self.torch_device)[1],
            dtypes=wide,
            features=frozenset(("queue", "graphs")),
        )
        self._stream = cuda.Stream(self.torch_device)
        self._pool = cuda.graph_pool_handle()

    def free_memory(self) -> int:
        """Bytes that the driver can hand out, once the tensor library has given back what it keeps for later."""
        self.release()
        return cuda.mem_get_info(self.torch_device)[0]

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Return uninitialized uint8 `[num_bytes]`."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.torch_device)

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """Return page-locked uint8 `[num_bytes]`; it is handed out again only when the copies from and to it are done."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def peak(self, work: Callable[[], None]) -> int:
        """Do the work and return the most bytes that tensors held at once, beyond those held before."""
        cuda.synchronize(self.torch_device)
        before = cuda.memory_allocated(self.torch_device)
        cuda.reset_peak_memory_stats(self.torch_device)
        work()
        cuda.synchronize(self.torch_device)
        return cuda.max_memory_allocated(self.torch_device) - before

    def record(self) -> CudaEvent:
        """Return the place behind everything that is queued now."""
        return CudaEvent()

    def capture(self, work: Callable[[], None]) -> cuda.CUDAGraph:
        """Record work that has run before; all graphs share one pool of memory."""
        graph = cuda.CUDAGraph()
        cuda.synchronize(self.torch_device)
        with cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return graph

    def release(self) -> None:
        """Give the driver back what the tensor library keeps for later."""
        cuda.synchronize(self.torch_device)
        cuda.empty_cache()


def find(index: int) -> CudaDevice | None:
    """Return a GPU that this process sees, by number, or None if it sees none. Raises ConfigError if it sees fewer."""
    if not torch.version.cuda or not cuda.is_available():
        return None
    count = cuda.device_count()
    if index >= count:
        raise ConfigError(f"rank {index} has no GPU of its own: there are {count}", field="tensor_parallel_size")
    prepare_kernel_caches()
    return CudaDevice(index)
