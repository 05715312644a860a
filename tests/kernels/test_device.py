"""Devices: what a host may use under control groups and affinity, detection, and the fake."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from octavo.base.errors import ConfigError
from octavo.device.base import Device
from octavo.device.host import host_arch, host_cores, host_memory
from octavo.device.registry import detect
from tests.fake_device import fake_device

GIB = 2**30
MEMINFO = "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n"


def machine(root: Path, files: dict[str, str]) -> Path:
    """Write the files of a made-up machine of 16 GiB, 8 of them free."""
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "total", "free"),
    [
        ({}, 16, 8),
        # Version 2: the nearest group has no limit, its parent has.
        (
            {
                "proc/self/cgroup": "0::/pod/one\n",
                "sys/fs/cgroup/pod/one/memory.max": "max\n",
                "sys/fs/cgroup/pod/one/memory.current": f"{GIB}\n",
                "sys/fs/cgroup/pod/memory.max": f"{4 * GIB}\n",
                "sys/fs/cgroup/pod/memory.current": f"{3 * GIB}\n",
                "sys/fs/cgroup/pod/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            },
            4,
            2,
        ),
        # A container: the path is the host's, the limit lies at the top of the mount.
        (
            {
                "proc/self/cgroup": "0::/docker/abc\n",
                "sys/fs/cgroup/memory.max": f"{6 * GIB}\n",
                "sys/fs/cgroup/memory.current": f"{5 * GIB}\n",
            },
            6,
            1,
        ),
        # Version 1, "no limit" is a huge number; more is in use than is allowed.
        (
            {
                "proc/self/cgroup": "4:memory:/job\n3:cpu,cpuacct:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{9 * GIB}\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{2 * GIB}\n",
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{3 * GIB}\n",
                "sys/fs/cgroup/memory/job/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB // 2}\n",
            },
            2,
            0,
        ),
        # The group allows more than the machine has.
        (
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": f"{64 * GIB}\n",
                "sys/fs/cgroup/memory.current": "0\n",
            },
            16,
            8,
        ),
    ],
    ids=["no group", "v2 parent", "v2 container", "v1 overdrawn", "v2 generous"],
)
def test_memory(tmp_path: Path, files: dict[str, str], total: int, free: int) -> None:
    found = host_memory(machine(tmp_path, files))
    assert (found.total, found.free) == (total * GIB, free * GIB)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 6),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "250000 100000\n"}, 3),
        (
            {
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/cpu.max": "max 100000\n",
                "sys/fs/cgroup/cpu.max": "50000 100000",
            },
            1,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu,cpuacct:/a\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
    ],
)
def test_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    assert host_cores(machine(tmp_path, files)) == cores


@pytest.mark.parametrize(
    ("cpuinfo", "arch", "features"),
    [
        ("model name\t: X\nflags\t\t: fpu avx2 avx512f avx512_vnni\n", "avx512", {"avx2", "avx512f", "avx512_vnni"}),
        ("flags : avx2 avx512f amx_tile amx_bf16\n", "amx", {"avx2", "avx512f", "amx_tile", "amx_bf16"}),
        ("flags : sse2 avx2\n", "avx2", {"avx2"}),
        ("Features : fp asimd bf16\n", "neon", {"asimd", "bf16"}),
    ],
)
def test_arch(tmp_path: Path, cpuinfo: str, arch: str, features: set[str]) -> None:
    assert host_arch(machine(tmp_path, {"proc/cpuinfo": cpuinfo}))[1:] == (arch, frozenset(features))


def test_detect() -> None:
    for kind in ("auto", "cpu"):
        device = detect(kind)
        facts = device.facts
        assert facts.kind == "cpu"
        assert facts.num_cores >= 1
        assert facts.dtypes == ("float32", "bfloat16")
        assert 0 < device.free_memory() <= facts.total_memory
        assert device.allocate(100).shape == (100,)
    with pytest.raises(ConfigError, match="unknown device 'cpuu'; did you mean 'cpu'") as caught:
        detect("cpuu")
    assert caught.value.field == "device"


def test_a_fake_device_is_what_its_facts_say() -> None:
    device = fake_device(kind="cuda", arch="sm_90", total_memory=1000)
    door: Device = device
    memory = door.allocate(400)
    assert torch.isnan(memory.view(torch.float32)).all()
    assert door.free_memory() == 600
    with pytest.raises(MemoryError, match="601 bytes asked for, 600 free"):
        door.allocate(601)


def test_the_door_is_narrow() -> None:
    members = [name for name in vars(Device) if not name.startswith("_")]
    assert len(members) <= 12
