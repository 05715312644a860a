"""Ops in the library of the processor's kernels: how tensors become arguments, and who keeps calls to make them again."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode  # pyright: ignore[reportPrivateUsage]

from octavo.base.facts import DeviceFacts
from octavo.base.native import Function, library
from octavo.ops.candidate import Candidate

# As csrc/cpu/kernel.h numbers them.
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
Argument = Tensor | float | None


@runtime_checkable
class CallRecorder(Protocol):
    """A dispatch mode that keeps what is called under it, in order."""

    def keep_call(self, function: Function, arguments: bytes, tensors: tuple[Tensor, ...]) -> None:
        """Keep a call. tensors: whose memory it names."""
        ...


class NativeOp:
    """A function of the library: `octavo_<name>_<level>`.

    fields: of its Args, by letter, in order: p a pointer, q an integer, d a real number; blanks count nothing. Called with a
    tensor (its first element's address), None (a null pointer), or a number for each.
    """

    def __init__(self, name: str, fields: str) -> None:
        self.name = name
        self._pack = struct.Struct("".join(fields.split()).replace("p", "q")).pack

    def __call__(self, *values: Argument) -> None:
        """Make the call; what it names must live until it returns, and as long as a recording of it."""
        numbers = [value.data_ptr() if isinstance(value, Tensor) else value or 0 for value in values]
        arguments, found = self._pack(*numbers), library()
        assert not isinstance(found, str), found
        function = found.function(self.name)
        assert function is not None, f"{self.name} has no function at level {found.level}"
        recorder = _get_current_dispatch_mode()
        if isinstance(recorder, CallRecorder):
            tensors = tuple(value for value in values if isinstance(value, Tensor))
            recorder.keep_call(function, arguments, tensors)
        function.call(arguments)


def packed(x: Tensor) -> Tensor:
    """Return x with the elements of its last dimension side by side; a copy only where they are not."""
    return x if x.stride(-1) == 1 else x.contiguous()


def native_candidate(op: str, path: str, *names: str, check: Callable[[str], str | None] | None = None) -> Candidate:
    """Return the candidate of an op for processors. path: module:function. names: of the library's functions that it calls."""

    def refusal(_: DeviceFacts, dtype: str) -> str | None:
        found = library()
        if isinstance(found, str):
            return found
        missing = [name for name in names or (op,) if found.function(name) is None]
        if missing:
            return f"has no {', '.join(missing)} for {found.level}"
        return None if check is None else check(dtype)

    return Candidate(name="cpu", path=path, kinds=("cpu",), dtypes=("float32", "bfloat16", "float16"), check=refusal)
