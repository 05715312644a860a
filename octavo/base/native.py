"""The library of the processor's kernels (octavo/ops/csrc/cpu): found, checked, and called through ctypes.

Every function takes one pointer to its arguments, fields of eight bytes each, so that a call can be kept and made again.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import platform
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from octavo.base.env import read_env
from octavo.base.errors import ConfigError
from octavo.base.naming import unknown_name

SOURCES = Path(__file__).resolve().parent.parent / "ops/csrc/cpu"
LIBRARY = SOURCES.parent / "liboctavo_cpu.so"
_AVX2 = ("avx2", "fma", "f16c", "bmi2")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq")
# By architecture, instruction sets, the widest last, and the flags of /proc/cpuinfo that each takes.
LEVELS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "scalar": (),
        "avx2": _AVX2,
        "avx512": _AVX512,
        "vnni": (*_AVX512, "avx512_vnni"),
        "bf16": (*_AVX512, "avx512_vnni", "avx512_bf16"),
        "amx": (*_AVX512, "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"),
    },
    "aarch64": {"scalar": (), "neon": ("asimd",)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of the library: `call(arguments)`, and its address."""

    call: Callable[[bytes], None]
    address: int


class NativeLibrary:
    """The library, opened. level: the widest instruction set whose kernels are taken; a test may lower it."""

    def __init__(self, path: Path, level: str) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.octavo_team_resize.argtypes = [ctypes.c_int64]
        self._library.octavo_replay.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        self._order = tuple(LEVELS[platform.machine()])
        self._functions: dict[tuple[str, str], Function] = {}
        self.level = level

    def resize(self, num_threads: int) -> None:
        """Let so many threads take part in every kernel."""
        self._library.octavo_team_resize(num_threads)

    def replay(self, calls: int, count: int) -> None:
        """Make calls one after another. calls: address of as many pairs (address of a function, address of its arguments)."""
        self._library.octavo_replay(calls, count)

    def function(self, name: str) -> Function | None:
        """Return the function of an op, of the widest level that has one, or None."""
        place = name, self.level
        if place not in self._functions:
            found = self._find(name)
            if found is None:
                return None
            self._functions[place] = found
        return self._functions[place]

    def _find(self, name: str) -> Function | None:
        for level in reversed(self._order[: self._order.index(self.level) + 1]):
            try:
                call = self._library[f"octavo_{name}_{level}"]
            except AttributeError:  # compiled for other levels only
                continue
            call.argtypes, call.restype = [ctypes.c_char_p], None
            return Function(call=call, address=ctypes.cast(call, ctypes.c_void_p).value or 0)
        return None


@functools.cache
def library() -> NativeLibrary | str:
    """Return the library, or in words why there is none; asked once a process."""
    if platform.machine() not in LEVELS:
        return f"has no kernels for {platform.machine()}"
    if not LIBRARY.exists():
        return "needs the compiled library: run `python -m tools.build_cpu`"
    # An installed package has no sources.
    if SOURCES.is_dir() and LIBRARY.with_suffix(".sources").read_text().strip() != sources_hash():
        return "needs the library of the sources as they are now: run `python -m tools.build_cpu`"
    return NativeLibrary(LIBRARY, best_level(most=read_env().cpu_level))


def best_level(flags: Collection[str] | None = None, most: str | None = None) -> str:
    """Return the widest level that a processor with these flags has, or this one; most: none beyond. Raises ConfigError."""
    flags = _flags() if flags is None else flags
    levels = LEVELS[platform.machine()]
    if most is not None and most not in levels:
        raise ConfigError(unknown_name("instruction set", most, levels), field="OCTAVO_CPU_LEVEL")
    names = list(levels)[: list(levels).index(most) + 1] if most else list(levels)
    return next(name for name in reversed(names) if all(flag in flags for flag in levels[name]))


def _flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    found = (line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(found, []))


def sources_hash() -> str:
    """Return a hash of all sources: a library of other sources may take other arguments."""
    found = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]
