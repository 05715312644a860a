"""Kernels in CUDA C++, compiled ahead (`python -m tools.build_cuda`) and launched through the driver.

Launches go to the tensor library's current stream, so a graph that is being captured records them. Where the device can do
that, a kernel begins while the one before it still runs (programmatic dependent launch).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo.base.facts import DeviceFacts

FOLDER = Path(__file__).parent / "csrc" / "cuda"
# What they are compiled for; later devices of a family run it too. What Hopper alone has runs on no other.
_ARCHS, _FAMILIES = ("80", "89", "90", "100"), ("sm_8", "sm_9", "sm_10")
MODULES = {"products": _ARCHS[2:], "attention": _ARCHS[2:], "sums": _ARCHS, "prefill": ("90a",)}
# The driver's numbers for what we ask of it, and of dtypes.
_CORES, _MAJOR, _MOST_SHARED, _CLUSTER, _DEPENDENT = 16, 75, 8, 4, 6
_SWIZZLE_128, _PROMOTE_256, _DTYPES = 3, 3, {torch.float16: 6, torch.bfloat16: 9}
# Bytes of shared memory that a block has without asking, less what the kernels have beside those of a launch.
_UNASKED = 38 * 1024


# How a tensor's boxes are copied on Hopper.
TensorMap = ctypes.c_uint64 * 16


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("num_attributes", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a kernel is launched. shared: bytes of memory of a block. cluster: blocks along the grid's first axis that meet."""

    grid: tuple[int, int, int]
    threads: int
    shared: int = 0
    cluster: int = 1


class CudaModule:
    """The kernels of one file. num_cores: multiprocessors. clusters: whether blocks can form clusters."""

    def __init__(self, path: Path) -> None:
        self._driver, self._handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(self._handle), path.read_bytes())
        self._functions: dict[str, ctypes.c_void_p] = {}
        self.num_cores, self.clusters = self._device(_CORES), self._device(_MAJOR) >= 9

    def launch(self, kernel: str, parameters: ctypes.Structure, launch: Launch) -> None:
        """Queue a kernel, which takes its parameters in one structure. Raises RuntimeError if the driver refuses."""
        function = self._functions.get(kernel)
        if function is None:
            function = self._functions[kernel] = ctypes.c_void_p()
            self.call("cuModuleGetFunction", ctypes.byref(function), self._handle, kernel.encode())
        if launch.shared > _UNASKED:
            self.call("cuFuncSetAttribute", function, _MOST_SHARED, launch.shared)
        attributes = (_Attribute * 2)()
        attributes[0].id, attributes[0].value[0] = _DEPENDENT, 1
        attributes[1].id, attributes[1].value[:3] = _CLUSTER, (launch.cluster, 1, 1)
        config = _Config(
            grid=launch.grid,
            block=(launch.threads, 1, 1),
            shared=launch.shared,
            stream=current_stream(),
            attributes=attributes,
            num_attributes=2 if launch.cluster > 1 else int(self.clusters),
        )
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(parameters))
        self.call("cuLaunchKernelEx", ctypes.byref(config), function, arguments, None)

    def _device(self, attribute: int) -> int:
        device, found = ctypes.c_int(), ctypes.c_int()
        self.call("cuCtxGetDevice", ctypes.byref(device))
        self.call("cuDeviceGetAttribute", ctypes.byref(found), attribute, device)
        return found.value

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver. Raises RuntimeError with what it says if it fails."""
        error = self._driver[name](*arguments)
        if error:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(error, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'unknown error').decode()}")


def current_stream() -> int:
    """Return the queue of this thread's device that the tensor library uses now."""
    from triton.runtime import driver

    active: Any = driver.active
    return active.get_current_stream(active.get_current_device())


@functools.cache
def module(name: str) -> CudaModule:
    """Return the kernels of a file, loaded once."""
    return CudaModule(_path(name))


def address(tensor: Tensor | None) -> int | None:
    """Return where a tensor's first element lies."""
    return None if tensor is None else tensor.data_ptr()


def tensor_map(tensor: Tensor, box: tuple[int, ...]) -> ctypes.Array[ctypes.c_uint64]:
    """Describe copies of boxes of a tensor, whose last 64 elements lie permuted in shared memory (the 128-byte swizzle)."""
    return _tensor_map(tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), box)


@functools.lru_cache(maxsize=4096)
def _tensor_map(
    at: int, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], box: Sequence[int]
) -> ctypes.Array[ctypes.c_uint64]:
    rank, memory = len(shape), (ctypes.c_uint64 * 24)()
    # The driver writes where 64 divides the address.
    first = -ctypes.addressof(memory) % 64 // 8
    error = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        ctypes.byref(memory, first * 8),
        _DTYPES[dtype],
        rank,
        ctypes.c_void_p(at),
        (ctypes.c_uint64 * rank)(*reversed(shape)),
        (ctypes.c_uint64 * rank)(*(stride * dtype.itemsize for stride in reversed(strides[:-1]))),
        (ctypes.c_uint32 * rank)(*reversed(box)),
        (ctypes.c_uint32 * rank)(*(1 for _ in box)),
        0,
        _SWIZZLE_128,
        _PROMOTE_256,
        0,
    )
    assert not error, f"cuTensorMapEncodeTiled: error {error} for {shape} by {strides} in boxes of {box}"
    return TensorMap(*memory[first : first + 16])


def refusal(facts: DeviceFacts, dtype: str) -> str | None:
    """Return why the kernels cannot run on a device, or None if they can."""
    if not facts.arch.startswith(_FAMILIES):
        return f"is compiled for sm_80 to sm_103, not {facts.arch}"
    return None if all(map(compiled, MODULES)) else "is not compiled: python -m tools.build_cuda does that"


def compiled(name: str) -> bool:
    """Return whether the kernels of a file are there."""
    return _path(name).exists()


def _path(name: str) -> Path:
    return FOLDER / f"{name}.fatbin"
