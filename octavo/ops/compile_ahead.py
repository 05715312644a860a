"""Triton's kernels compiled several at a time, before work launches one after the other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from octavo.device.host import host_cores

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


def compile_ahead(work: Callable[[], None]) -> None:
    """Do the work without launching any of Triton's kernels, and compile those that it would launch.

    Nothing that they would write is written: the work may not depend on it.
    """
    from triton.runtime._async_compile import AsyncCompileMode, active_mode
    from triton.runtime.jit import JITFunction

    if active_mode.get() is not None:
        work()
        return

    launch: Any = JITFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return launch(self, *args, **{**kwargs, "warmup": True})

    JITFunction.run = run  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with _Compilers(min(host_cores(), _MOST_THREADS)) as compilers, AsyncCompileMode(compilers):
            work()
    finally:
        JITFunction.run = launch
