"""The candidates of an op that this machine can run, and a way to call each with tensors of the processor's memory."""

from __future__ import annotations

import contextlib
import copy
import functools
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import fields, is_dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from octavo.base.native import LEVELS, library
from octavo.device.registry import detect
from octavo.ops.registry import bind, ops
from tests.fake_device import fake_device

NAN = float("nan")
# Largest error relative to the largest value, by dtype: rounding once, and sums in float32. A GPU approximates exponentials and
# roots, and multiplies float32 in three parts.
TOLERANCE = {"float32": 1e-5 if torch.cuda.is_available() else 2e-6, "bfloat16": 4e-3, "float16": 5e-4}  # noqa: TID251
_EMPTY = torch.empty
# A candidate on a GPU is called "NAME on cuda".
_ON_CUDA = " on cuda"
# Kernels in C++ are called "NAME at LEVEL" where a narrower instruction set than this machine's is taken.
_AT = " at "
_CUDA = fake_device(kind="cuda", arch="sm_90").facts


def cases(op: str, tokens: Sequence[int] = ()) -> list[Any]:
    """Return (candidate, dtype) of all that can run, for `parametrize`; (candidate, dtype, tokens) if there are tokens.

    Each candidate runs on the processor if it can, and on a GPU where there is one. Where there is none, Triton's kernels run
    in its interpreter: it is slow, so 16 tokens are the most, and it neither rounds to bfloat16 nor multiplies in it, so
    float16 stands in.
    """
    found = list[Any]()
    for name, dtype, interpreted in _runs(op):
        marks = [pytest.mark.gpu] if name.endswith(_ON_CUDA) else []
        sizes = [(size,) for size in tokens if size <= 16 or not interpreted] if tokens else [()]
        found += [pytest.param(name, dtype, *size, marks=marks) for size in sizes]
    return found


def candidates(op: str) -> list[Any]:
    """Return the names of all candidates that can run in float32, for `parametrize`."""
    names = [name for name, dtype, _ in _runs(op) if dtype == "float32"]
    return [pytest.param(name, marks=[pytest.mark.gpu] if name.endswith(_ON_CUDA) else []) for name in names]


def _runs(op: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (candidate, dtype, whether it is interpreted)."""
    here = detect("cpu").facts
    for candidate in ops()[op].candidates:
        name = candidate.name
        if name == "cpu" and not isinstance(library(), str):
            yield from ((name, dtype, False) for dtype in TOLERANCE)
            yield from (
                (name + _AT + level, dtype, False) for level in _narrower() for dtype in ("float32", "bfloat16")
            )
        elif candidate.refusal(here, "float32") is None:
            yield from ((name, dtype, False) for dtype in ("float32", "bfloat16"))
        elif name == "triton" and not torch.cuda.is_available():  # noqa: TID251
            yield from ((name, dtype, True) for dtype in ("float32", "float16"))
        yield from ((name + _ON_CUDA, dtype, False) for dtype in TOLERANCE if candidate.refusal(_CUDA, dtype) is None)


def _narrower() -> list[str]:
    """Return the instruction sets that this machine has beside its widest, and that have vectors of their own."""
    found = library()
    assert not isinstance(found, str)
    levels = list(LEVELS[platform.machine()])
    return [level for level in levels[: levels.index(found.level)] if level in ("scalar", "avx2")]


def kernel(op: str, candidate: str, dtype: str) -> Callable[..., Any]:
    """Return a bound kernel, which takes and changes tensors in the processor's memory wherever it runs.

    What it allocates holds NaN until it writes there.
    """
    on_cuda = candidate.endswith(_ON_CUDA)
    facts = _CUDA if on_cuda or candidate == "triton" else detect("cpu").facts
    candidate, _, level = candidate.removesuffix(_ON_CUDA).partition(_AT)
    bound = getattr(bind(facts, dtype, {op: candidate}), op)
    narrowed = mock.patch.object(library(), "level", level) if level else nullcontext()

    @functools.wraps(bound)
    def run(*args: Any, **kwargs: Any) -> Any:
        # The interpreter computes with numpy, which warns where exp overflows.
        overflows = np.errstate(over="ignore", divide="ignore")
        with poisoned(), narrowed, overflows:
            if not on_cuda:
                return bound(*args, **kwargs)
            there = _Copies()
            out = bound(*[there.of(value) for value in args], **{name: there.of(v) for name, v in kwargs.items()})
            there.bring_back()
        return out.cpu() if isinstance(out, Tensor) else out

    return run


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Let what is allocated hold NaN until somebody writes there."""
    with mock.patch.object(torch, "empty", _poisoned):
        yield


def _poisoned(*args: Any, **kwargs: Any) -> Tensor:
    found = _EMPTY(*args, **kwargs)
    if found.dtype == torch.bool:
        return found.fill_(True)
    return found.fill_(NAN if found.is_floating_point() else torch.iinfo(found.dtype).max)


class _Copies:
    """Tensors on the GPU with the strides of those here. Those that share memory here share it there."""

    def __init__(self) -> None:
        self._stored: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, value: Any) -> Any:
        """Return a value with its tensors on the GPU."""
        if isinstance(value, Tensor):
            here = torch.tensor([], dtype=torch.uint8).set_(value.untyped_storage())
            _, there = self._stored.setdefault(here.data_ptr(), (here, here.cuda()))
            flat = torch.tensor([], dtype=value.dtype, device="cuda").set_(there.untyped_storage())
            return flat.as_strided(value.shape, value.stride(), value.storage_offset())
        if isinstance(value, nn.Module):
            there = copy.deepcopy(value).cuda()
            there.finalize()
            return there
        if isinstance(value, tuple):
            return tuple(self.of(item) for item in value)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{field.name: self.of(getattr(value, field.name)) for field in fields(value)})
        return value

    def bring_back(self) -> None:
        """Copy what the kernel changed."""
        for here, there in self._stored.values():
            here.copy_(there)
