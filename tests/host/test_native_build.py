"""Which kernels of the processor are compiled: all of them for a wheel, and for a tree only what its machine would choose."""

from __future__ import annotations

import platform

from octavo.base.native import LEVELS, best_level
from tools.build_cpu import _units  # pyright: ignore[reportPrivateUsage]

ARCH = platform.machine()


def names(only: str | None) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for unit in _units(["c++"], ARCH, only):
        found.setdefault(unit.source.stem, []).append(unit.target.name.split("-")[1])
    return found


def test_a_machine_gets_the_widest_kernel_of_each_source_that_it_can_run():
    every, order = names(None), list(LEVELS[ARCH])
    assert max(map(len, every.values())) > 1
    for only in order:
        here = names(only)
        assert here.keys() == every.keys()
        for source, levels in here.items():
            allowed = [level for level in every[source] if level == "any" or order.index(level) <= order.index(only)]
            assert levels == allowed[-1:]


def test_this_machines_level_is_one_of_its_architecture():
    assert best_level() in LEVELS[ARCH]
    assert best_level(frozenset()) == "scalar"
