"""What this process may use of its machine: cores and memory, as limited by affinity and control groups (v1 and v2).

`root` is where the file system of the machine begins; tests give a made-up one.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from octavo.base.intmath import ceil_div

_ROOT = Path("/")
# Instruction sets that kernels ask for, by their name in /proc/cpuinfo.
_FEATURES = frozenset(
    [
        "avx2",
        "avx512f",
        "avx512_bf16",
        "avx512_fp16",
        "avx512_vnni",
        "amx_tile",
        "amx_bf16",
        "amx_int8",
        "asimd",
        "bf16",
    ]
)
# Architectures, the widest first: a flag of /proc/cpuinfo and the name it gives.
_ARCHS = (("amx_tile", "amx"), ("avx512f", "avx512"), ("avx2", "avx2"), ("asimd", "neon"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Bytes that this process may use in all, and those that are free now."""

    total: int
    free: int


def host_memory(root: Path = _ROOT) -> HostMemory:
    """Return the machine's memory, or less where a control group of this process allows less."""
    total, free = _machine_memory(root)
    for limit, used in _memory_groups(root):
        total, free = min(total, limit), min(free, max(limit - used, 0))
    return HostMemory(total=total, free=free)


def host_cores(root: Path = _ROOT) -> int:
    """Return how many cores this process may keep busy, at least 1."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cores = os.cpu_count() or 1
    for quota, period in _cpu_groups(root):
        cores = min(cores, ceil_div(quota, period))
    return max(cores, 1)


def host_arch(root: Path = _ROOT) -> tuple[str, str, frozenset[str]]:
    """Return (name of the processor, its widest architecture, the instruction sets that kernels may ask for)."""
    fields = _fields(root / "proc/cpuinfo")
    flags = _FEATURES.intersection((fields.get("flags") or fields.get("Features") or "").split())
    arch = next((name for flag, name in _ARCHS if flag in flags), platform.machine())
    return fields.get("model name") or platform.machine(), arch, flags


def _machine_memory(root: Path) -> tuple[int, int]:
    fields = _fields(root / "proc/meminfo")
    if "MemTotal" in fields:
        total, free = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
        return total, free
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    return total, total // 2  # no way to ask what is free: take half, which an explicit size overrides


def _memory_groups(root: Path) -> Iterator[tuple[int, int]]:
    """Yield (limit, bytes in use that cannot be reclaimed) of every control group that bounds this process."""
    for group in _groups(root, "memory"):
        limit = _number(group / "memory.max") or _number(group / "memory.limit_in_bytes")
        used = _number(group / "memory.current") or _number(group / "memory.usage_in_bytes")
        if limit is not None and used is not None:
            cached = _words(group / "memory.stat").get("total_inactive_file") or _words(group / "memory.stat").get(
                "inactive_file", 0
            )
            yield limit, max(used - cached, 0)


def _cpu_groups(root: Path) -> Iterator[tuple[int, int]]:
    """Yield (quota, period) in microseconds of every control group that bounds this process."""
    for group in _groups(root, "cpu"):
        both = (_text(group / "cpu.max") or "").split()
        if len(both) == 2 and both[0] != "max":
            yield int(both[0]), int(both[1])
        quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            yield quota, period


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups, each with its parents.

    Inside a container the path in /proc/self/cgroup may be the host's; the mount's own top is then the container's group,
    and it is always among the parents.
    """
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / controller
        else:
            continue
        group = mount / path.lstrip("/")
        yield from (place for place in (group, *group.parents) if place.is_relative_to(mount))


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = (_text(path) or "").strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _fields(path: Path) -> dict[str, str]:
    """Read `name : value` lines; the first of a name counts."""
    found: dict[str, str] = {}
    for line in (_text(path) or "").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def _words(path: Path) -> dict[str, int]:
    """Read `name number` lines."""
    pairs = (line.split() for line in (_text(path) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
