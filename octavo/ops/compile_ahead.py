"""Triton's kernels compiled several at a time, while other work goes on: a launch waits for its own kernel only."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, thread, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from octavo.base.kernel_cache import note_kernels
from octavo.base.logging import get_logger

_log = get_logger(__name__)

# Only one thread at a time does without launches; another engine of this process may launch meanwhile.
_ALONE = threading.RLock()
# Threads take the interpreter from each other while they read a kernel's source, a tenth of their time.
_MOST_THREADS, _MOST_BEHIND = 8, 2
# Behind a start, they begin after so many seconds: when the first answers are given. Whoever gives answers meanwhile gets the
# interpreter back after this long, not after 5 milliseconds each time.
_DELAY, _TURN = 1.0, 0.0002


class _Coming:
    """Stands for a kernel until it is compiled: who wants something of it waits, or compiles it if nobody has begun."""

    def __init__(self, future: Future[Any], compile_one: Callable[[], Any]) -> None:
        self._future, self._compile_one = future, compile_one

    def result(self) -> Any:
        """Return it."""
        return self._compile_one() if self._future.cancel() else self._future.result()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.result(), name)


class _Compilers:
    """What Triton calls a mode: threads that compile kernels and, where Triton wants one, the C stub that launches each."""

    def __init__(self, num_threads: int, delay: float) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="octavo-compile")
        self._began, self._num_found = time.time(), 0
        # Of several that compile behind a start, the one that shortened the turns makes them long again.
        self._turn = sys.getswitchinterval() if delay else 0.0
        if self._turn > _TURN:
            sys.setswitchinterval(_TURN)
        self._delays = [delay] * num_threads
        self._coming, self._futures = dict[str, _Coming](), list[Future[Any]]()

    def submit(self, key: str, compile_one: Callable[[], Any], keep: Callable[[Any], None], *_cleanup: object) -> Any:
        """Compile a kernel; who launches it finds from now on what stands for it."""
        while self._delays:
            self._threads.submit(time.sleep, self._delays.pop())
        if key not in self._coming:
            compile_it = functools.partial(self._compile, compile_one, keep)
            self._futures.append(self._threads.submit(compile_it))
            self._coming[key] = _Coming(self._futures[-1], compile_it)
        keep(self._coming[key])
        return self._coming[key]

    def end(self) -> Callable[[], None]:
        """No more will come: say how many there were, when they are compiled. Returns what waits for that."""
        reported = self._threads.submit(self._report)
        self._threads.shutdown(wait=False)
        return reported.result

    def _compile(self, compile_one: Callable[[], Any], keep: Callable[[Any], None]) -> Any:
        from triton.runtime import driver

        # A process that ends does not wait for kernels that nobody will launch. Its main thread counts as alive until it has
        # waited for these, so the pools of threads are asked.
        if thread._shutdown:  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
            raise RuntimeError("the process ends")
        active: Any = driver.active
        kernel = compile_one()
        active.launcher_cls(kernel.src, kernel.metadata)
        keep(kernel)
        made = next(Path(path) for name, path in kernel.metadata_group.items() if name.endswith(".json"))
        self._num_found += made.stat().st_mtime < self._began
        return kernel

    def _report(self) -> None:
        wait(self._futures)
        if self._turn > _TURN:
            sys.setswitchinterval(self._turn)
        found, wanted, seconds = self._num_found, len(self._coming), time.time() - self._began
        if wanted:
            _log.info("kernels: %d of %d found compiled, the others compiled in %.1f s", found, wanted, seconds)
            note_kernels(found, wanted)


@contextmanager
def without_launches() -> Generator[None]:
    """Launch none of Triton's kernels from this thread; where there is a mode of compiling, they are compiled instead.

    Nothing that the kernels would write is written: what is done meanwhile may not depend on it.
    """
    from triton.runtime._async_compile import active_mode
    from triton.runtime.jit import JITFunction

    with _ALONE:
        launch, owner = JITFunction.run, threading.get_ident()

        def run(self: Any, *args: Any, **kwargs: Any) -> None:
            if threading.get_ident() != owner:
                launch(self, *args, **kwargs)
            elif active_mode.get() is not None:
                launch(self, *args, **{**kwargs, "warmup": True})

        JITFunction.run = run  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        finally:
            JITFunction.run = launch


def compile_ahead(work: Callable[[], None], num_cores: int, *, behind: bool = False) -> Callable[[], None]:
    """Do the work `without_launches`, and compile the kernels that it would launch.

    num_cores: of this process. Threads go on compiling when this returns, in the order of the work. behind: they begin later, and
    are few. Returns what waits for all. How many were found compiled is noted for `octavo doctor`.
    """
    from triton.runtime._async_compile import active_mode

    if active_mode.get() is not None:
        work()
        return lambda: None
    num_threads, delay = (_MOST_BEHIND, _DELAY) if behind else (_MOST_THREADS, 0.0)
    compilers: Any = _Compilers(min(num_cores, num_threads), delay)
    mode = active_mode.set(compilers)
    try:
        with without_launches():
            work()
    finally:
        active_mode.reset(mode)
        waiting = compilers.end()
    return waiting
