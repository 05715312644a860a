"""Triton's kernels compiled several at a time, before work launches one after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch import Tensor

from octavo.base.kernel_cache import note_kernels
from octavo.base.logging import get_logger

_log = get_logger(__name__)

# While one thread compiles, another engine of this process may launch, but not compile ahead.
_ALONE = threading.Lock()
# A kernel takes a second or less: more threads than kernels are of no use.
_MOST_THREADS = 16


class _Compilers(ThreadPoolExecutor):
    """Threads that compile a kernel and, where Triton wants one, the C stub that launches it."""

    def submit(self, compile_one: Callable[[], Any], /) -> Future[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Compile a kernel."""
        from triton.runtime import driver

        def compile_both() -> Any:
            kernel = compile_one()
            active: Any = driver.active
            active.launcher_cls(kernel.src, kernel.metadata)
            return kernel

        return super().submit(compile_both)


def _kind(value: Any) -> Any:
    """Return what a kernel may depend on of an argument that is not named as its constants are."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16
    if isinstance(value, int) and not isinstance(value, bool):
        return value == 1, value % 16 == 0, value.bit_length() > 31
    return value


def compile_ahead(work: Callable[[], None], num_cores: int) -> None:
    """Do the work without launching any of Triton's kernels from this thread, and compile those that it would launch.

    num_cores: of this process. Nothing that the kernels would write is written: the work may not depend on it. How many were
    found compiled is noted for `octavo doctor`.
    """
    from triton import knobs
    from triton.runtime._async_compile import AsyncCompileMode, active_mode
    from triton.runtime.jit import JITFunction

    if active_mode.get() is not None:
        work()
        return

    compilation: Any = knobs.compilation
    began, hits, seen, owner = time.perf_counter(), list[bool](), set[Any](), threading.get_ident()
    with _ALONE:
        launch, listener = JITFunction.run, compilation.listener

        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != owner:
                return launch(self, *args, **kwargs)
            kind = (
                id(self),
                *map(_kind, args),
                *(item for item in kwargs.items() if item[0] not in ("grid", "warmup")),
            )
            # What Triton does before it knows that it has a kernel takes a while, and every layer launches the same.
            if kind not in seen:
                seen.add(kind)
                launch(self, *args, **{**kwargs, "warmup": True})

        JITFunction.run = run  # pyright: ignore[reportAttributeAccessIssue]
        compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
        try:
            with _Compilers(min(num_cores, _MOST_THREADS)) as compilers, AsyncCompileMode(compilers):
                work()
        finally:
            JITFunction.run, compilation.listener = launch, listener
    seconds = time.perf_counter() - began
    _log.info("kernels: %d of %d found compiled, the others compiled in %.1f s", sum(hits), len(hits), seconds)
    note_kernels(sum(hits), len(hits))
