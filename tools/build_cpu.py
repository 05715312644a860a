"""Compile the processor's kernels (octavo/ops/csrc/cpu) into one library beside their sources: `python -m tools.build_cpu`.

Needs a C++17 compiler (CXX, else g++, clang++ or c++) and nothing else: no torch, no Python headers. A source is compiled once
for each instruction set in its line `// levels: ...`, or once if it has none; what has not changed is kept in build/cpu.
Options: --here compiles only what this machine would choose, in a third of the time; --target aarch64 (with
CXX=aarch64-linux-gnu-g++) cross-compiles; --output names another file.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from octavo.base.native import LEVELS, LIBRARY, SOURCES, best_level, sources_hash

ROOT = Path(__file__).resolve().parent.parent
# What GCC's own headers leave uninitialized on purpose, it warns of.
_WARNINGS = "-Wall -Wextra -Werror -Wno-psabi -Wno-uninitialized -Wno-maybe-uninitialized"
_OPTIONS = f"-std=c++17 -O3 -fPIC -fvisibility=hidden -fno-math-errno -pthread {_WARNINGS}"


class BuildError(Exception):
    """There is no compiler, or it refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    source: Path
    target: Path
    options: tuple[str, ...]


def build(output: Path = LIBRARY, target: str | None = None, *, here: bool = False) -> Path:
    """Compile what changed and link it. target: architecture, this machine's if not given. here: of each source only the
    instruction set that this machine chooses. Raises BuildError."""
    arch = target or platform.machine()
    if arch not in LEVELS:
        raise BuildError(f"no kernels are written for {arch}")
    compiler = _compiler()
    units = list(_units(compiler, arch, best_level() if here else None))
    missing = [unit for unit in units if not unit.target.exists()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda unit: _compile(compiler, unit), missing))
    output.parent.mkdir(parents=True, exist_ok=True)
    fresh = output.with_suffix(".new")
    _run([*compiler, "-shared", "-pthread", "-o", str(fresh), *(str(unit.target) for unit in units)])
    # In one go: a running engine keeps the file that it has opened.
    fresh.replace(output)
    output.with_suffix(".sources").write_text(sources_hash() + "\n")
    return output


def _units(compiler: list[str], arch: str, only: str | None) -> Iterator[_Unit]:
    folder = ROOT / "build/cpu"
    folder.mkdir(parents=True, exist_ok=True)
    headers = b"".join(path.read_bytes() for path in sorted(SOURCES.glob("*.h")))
    for source in sorted(SOURCES.glob("*.cpp")):
        text = source.read_text()
        lines = [line for line in text.splitlines() if line.startswith("// levels:")]
        levels = lines[0].removeprefix("// levels:").split() if lines else [""]
        unknown = [level for level in levels if level and all(level not in known for known in LEVELS.values())]
        if unknown:
            raise BuildError(f"{source.name}: unknown levels {', '.join(unknown)}")
        levels = [level for level in levels if not level or level in LEVELS[arch]]
        if only is not None:
            known = list(LEVELS[arch])
            levels = [level for level in levels if not level or known.index(level) <= known.index(only)][-1:]
        for level in levels:
            options = [*shlex.split(_OPTIONS), *([f"-DOCTAVO_LEVEL={level}"] if level else [])]
            options += [] if level == "scalar" else [_option(flag) for flag in LEVELS[arch].get(level, ())]
            options += ["-DOCTAVO_SCALAR"] if level == "scalar" else []
            key = hashlib.sha256("\0".join([*compiler, arch, *options, text]).encode() + headers).hexdigest()[:16]
            name = f"{source.stem}-{level or 'any'}-{key}.o"
            yield _Unit(source=source, target=folder / name, options=tuple(options))


def _option(flag: str) -> str:
    """Return the compiler's option for a processor's flag: avx512_vnni is -mavx512vnni, amx_tile is -mamx-tile."""
    return "-march=armv8-a" if flag == "asimd" else "-m" + flag.replace("avx512_", "avx512").replace("amx_", "amx-")


def _compiler() -> list[str]:
    named = os.environ.get("CXX")  # noqa: TID251
    for name in [named] if named else ["g++", "clang++", "c++"]:
        words = shlex.split(name)
        if words and shutil.which(words[0]):
            return words
    raise BuildError(f"{named or 'a C++ compiler'} is not installed")


def _compile(compiler: list[str], unit: _Unit) -> None:
    for old in unit.target.parent.glob(unit.target.name.rpartition("-")[0] + "-*.o"):
        old.unlink()
    fresh = unit.target.with_suffix(".new")
    _run([*compiler, *unit.options, "-c", str(unit.source), "-o", str(fresh)])
    fresh.replace(unit.target)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{shlex.join(command)}\n{done.stderr[:4000]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--here", action="store_true")
    parser.add_argument("--target", choices=LEVELS)
    parser.add_argument("--output", type=Path, default=LIBRARY)
    options = parser.parse_args()
    try:
        print(build(options.output, options.target, here=options.here))
    except BuildError as error:
        print(f"the processor's kernels are not built: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
