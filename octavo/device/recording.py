"""Work recorded on the host's processor: native calls as a tape, what else happens between them as the same operations again.

A recorder is a dispatch mode: every operation of the tensor library passes through it while the work is done once, and native
calls report themselves. Memory that the work allocates comes from an arena, goes back to it when nobody holds it, and is taken
again by what comes later: a replay does the same in the same order. Shapes and scalars that the host decided stay decided, so
work that reads a tensor's values is refused.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from ctypes import c_char
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from octavo.base.native import Function, NativeLibrary
from octavo.device.integers import native_call

# What recorded work cannot do: reading values on the host, and shapes that depend on them.
_READS = frozenset(
    (
        *(Tensor.tolist, Tensor.item, Tensor.numpy, Tensor.cpu, torch.from_numpy),
        *(Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__),
    )
)
_aten = torch.ops.aten
_SHAPED_BY_VALUES = frozenset(
    (
        *(_aten._local_scalar_dense.default, _aten.nonzero.default, _aten.masked_select.default),
        *(_aten._unique2.default, _aten.unique_consecutive.default, _aten.repeat_interleave.Tensor),
    )
)
_INDEXED = frozenset((_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default))
# Nothing to do again: whoever allocates writes before anybody reads.
_EMPTY = frozenset(
    (
        *(_aten.empty.memory_format, _aten.empty_like.default, _aten.new_empty.default),
        *(_aten.empty_strided.default, _aten.new_empty_strided.default),
    )
)
_ALIGNMENT, _LEAST_BLOCK = 64, 2**20


class UnrecordableError(RuntimeError):
    """Work that cannot be done again without the host's decisions. Its message says what it did."""


class NoReads(TorchFunctionMode):
    """Refuses what no operation shows: reading a tensor's memory on the host, and making a tensor of the host's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS:
            raise refused(func)
        return func(*args, **(kwargs or {}))


def refused(func: Any) -> UnrecordableError:
    """Return the error of work that calls what cannot be recorded."""
    return UnrecordableError(f"{func.__name__} is not permitted while work is recorded")


def refuse_reads(func: Any, args: Any) -> None:
    """Raise UnrecordableError for an operation that waits for values, or whose result's shape depends on them."""
    masks = func in _INDEXED and any(index is not None and index.dtype == torch.bool for index in args[1])
    if masks or func in _SHAPED_BY_VALUES:
        raise refused(func)


def tensors_of(value: Any) -> list[Tensor]:
    """Return the tensors in nested tuples, lists and dicts, in order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


class Arena:
    """Memory that recordings share. What a tensor made here takes is free again once nothing holds its storage."""

    def __init__(self) -> None:
        # By address.
        self._blocks: dict[int, Tensor] = {}
        self._free: dict[int, int] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks."""
        return sum(len(block) for block in self._blocks.values())

    def make(self, like: Tensor) -> Tensor:
        """Return an uninitialized tensor of the same dtype, shape and strides."""
        size = -(-like.untyped_storage().nbytes() // _ALIGNMENT) * _ALIGNMENT
        if size == 0:
            return like
        address = self._take(size)
        memory = (c_char * size).from_address(address)
        weakref.finalize(memory, self._give, address, size).atexit = False
        flat = torch.frombuffer(memory, dtype=like.dtype)
        return flat.as_strided(like.shape, like.stride(), like.storage_offset())

    def unowned(self, tensor: Tensor) -> Tensor:
        """Return the same memory, if it is the arena's, without holding it; other tensors as they are."""
        address = tensor.data_ptr()
        for start, block in self._blocks.items():
            if start <= address < start + len(block):
                flat = block[address - start :]
                flat = flat[: len(flat) // tensor.itemsize * tensor.itemsize].view(tensor.dtype)
                return flat.as_strided(tensor.shape, tensor.stride())
        return tensor

    def _take(self, size: int) -> int:
        for address, free in self._free.items():
            if free >= size:
                del self._free[address]
                if free > size:
                    self._free[address + size] = free - size
                return address
        block = torch.empty(max(size, _LEAST_BLOCK) + _ALIGNMENT, dtype=torch.uint8)
        start = -(-block.data_ptr() // _ALIGNMENT) * _ALIGNMENT
        self._blocks[block.data_ptr()] = block
        self._free[start] = max(size, _LEAST_BLOCK)
        return self._take(size)

    def _give(self, address: int, size: int) -> None:
        after = self._free.pop(address + size, 0)
        before = next((start for start, free in self._free.items() if start + free == address), None)
        if before is None:
            self._free[address] = size + after
        else:
            self._free[before] += size + after


class HostGraph:
    """Recorded work. runs: what a replay calls, one after another. kept: what they name and do not hold themselves."""

    def __init__(self, runs: Iterable[Callable[[], object]], kept: object) -> None:
        self._runs = tuple(runs)
        self._kept = kept

    def __len__(self) -> int:
        return len(self._runs)

    def replay(self) -> None:
        """Do the work again."""
        for run in self._runs:
            run()


class Recorder(TorchDispatchMode):
    """Keeps what is done under it. library: whose calls report themselves, if there is one."""

    def __init__(self, arena: Arena, library: NativeLibrary | None) -> None:
        super().__init__()
        self._arena = arena
        self._library = library
        self._steps: list[Callable[[], object] | tuple[int, bytes]] = []
        self._held: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        refuse_reads(func, args)
        given = {tensor.untyped_storage().data_ptr() for tensor in tensors_of((args, kwargs))}
        out = func(*args, **kwargs)
        if func in _EMPTY:
            return self._arena.make(out)
        fresh = [tensor.untyped_storage().data_ptr() not in given for tensor in tensors_of(out)]
        if any(fresh):
            assert all(fresh), f"{func} gives views and new tensors at once"
            out = tree_map_only(Tensor, self._copied, out)
        if any(fresh) or func._schema.is_mutable:
            if self._is_native(func, args, kwargs, out):
                return out
            args, kwargs = tree_map_only(Tensor, self._arena.unowned, (args, kwargs))
            made = [self._arena.unowned(tensor) for tensor in tensors_of(out)] if any(fresh) else []
            self._steps.append(_again(func, args, kwargs, made))
        return out

    def keep_call(self, function: Function, arguments: bytes, tensors: tuple[Tensor, ...]) -> None:
        """Keep a native call; see `CallRecorder`."""
        self._held += [self._arena.unowned(tensor) for tensor in tensors]
        self._steps.append((function.address, arguments))

    def _is_native(self, func: Any, args: Any, kwargs: Any, out: Any) -> bool:
        """Keep a native call in an operation's place, if there is one that does the same."""
        call = None if self._library is None else native_call(func, args, kwargs, out)
        function = None if call is None or self._library is None else self._library.function(call[0])
        if call is None or function is None:
            return False
        self.keep_call(function, call[1], tuple(tensors_of((args, kwargs, out))))
        return True

    def graph(self) -> HostGraph:
        """Return what was kept."""
        runs, kept, calls = list[Callable[[], object]](), list[object](), list[tuple[int, bytes]]()
        for step in (*self._steps, None):
            if isinstance(step, tuple):
                calls.append(step)
                continue
            if calls:
                tape, memory = self._tape(calls)
                runs.append(tape)
                kept.append(memory)
                calls = []
            runs += [] if step is None else [step]
        return HostGraph(runs, (kept, self._held))

    def _copied(self, tensor: Tensor) -> Tensor:
        made = self._arena.make(tensor)
        return made if made is tensor else made.copy_(tensor)

    def _tape(self, calls: list[tuple[int, bytes]]) -> tuple[Callable[[], object], object]:
        """Return one call that makes many, and the memory that it reads."""
        assert self._library is not None
        arguments = np.frombuffer(b"".join(given for _, given in calls), np.int64).copy()
        sizes = np.array([len(given) for _, given in calls], np.int64)
        places = arguments.ctypes.data + sizes.cumsum() - sizes
        pairs = np.stack([np.array([function for function, _ in calls], np.int64), places], 1)
        return functools.partial(self._library.replay, pairs.ctypes.data, len(calls)), (arguments, pairs)


def _again(func: Any, args: Any, kwargs: Any, made: list[Tensor]) -> Callable[[], object]:
    """Return what does an operation again. made: the tensors that its results go to, none if it only changes others."""
    if not made:
        return functools.partial(func, *args, **kwargs)
    into = _into(func) if len(made) == 1 else None
    if into is not None:
        return functools.partial(into, *args, **kwargs, out=made[0])

    def again() -> None:
        for old, new in zip(made, tensors_of(func(*args, **kwargs)), strict=True):
            old.copy_(new)

    return again


@functools.cache
def _into(func: Any) -> Any:
    """Return the variant of an operation that writes into a given tensor `out`, or None."""
    packet, asked = func.overloadpacket, [(arg.name, str(arg.type)) for arg in func._schema.arguments]
    for name in packet.overloads():
        found = getattr(packet, name)
        if [(arg.name, str(arg.type)) for arg in found._schema.arguments] == [*asked, ("out", "Tensor")]:
            return found
    return None
