"""The soak test's judgement: what rises is told from what only moves, and what a warm-up takes is not counted."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from benchmarks.soak import _SLACK, family, held_by, judged


def notes(memory: list[float]) -> list[dict[str, float]]:
    return [{"memory_mb": one, "descriptors": 40.0, "threads": 12.0} for one in memory]


@pytest.mark.parametrize(
    ("memory", "grows"),
    [
        # Loaded, warmed up, and then as it is.
        ([100.0, 300.0, 400.0] + [410.0] * 9, False),
        ([400.0 + random.Random(7).random() * 20 for _ in range(40)], False),
        # One peak is no leak.
        ([400.0] * 10 + [500.0] + [400.0] * 9, False),
        ([400.0 + step for step in range(40)], True),
        ([400.0] * 10 + [450.0] * 20 + [480.0] * 10, True),
    ],
)
def test_what_rises_is_found(memory: list[float], grows: bool) -> None:
    found = judged(notes(memory))
    assert (found["memory_mb"]["growth"] > _SLACK["memory_mb"]) == grows
    assert found["descriptors"]["growth"] == found["threads"]["growth"] == 0


def test_what_a_family_of_processes_holds_is_counted() -> None:
    code = "import sys, os; held = [os.open('/dev/null', 0) for _ in range(50)]; print('ready', flush=True); sys.stdin.read()"
    before = held_by(family(os.getpid()))
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert child.pid in family(os.getpid())
        after = held_by(family(os.getpid()))
    assert after["descriptors"] >= before["descriptors"] + 50
    assert after["threads"] > before["threads"]
    assert after["memory_mb"] > before["memory_mb"]
