"""The front alone, under an engine that does nothing but send tokens: the benchmark with small counts."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def _measured(*options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.serve.front", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_every_token_of_many_streams_arrives() -> None:
    figures = _measured("--route", "messages", "--streams", "200", "--tokens", "4", "--interval-ms", "30")
    assert (figures["tokens"], figures["status"]) == (800, 0)
    # Six events are around the tokens of a message; tokens that waited for the front come together.
    assert 200 * (6 + 1) <= figures["events"] <= 200 * (6 + 4)


def test_two_thousand_streams_are_open_at_once() -> None:
    figures = _measured("--streams", "2000", "--tokens", "3", "--interval-ms", "300")
    # The engine waits for all of them before it answers any.
    assert (figures["streams"], figures["tokens"], figures["status"]) == (2000, 6000, 0)
    assert figures["memory_mb"] < 400


def test_a_slow_front_sends_what_waits_together() -> None:
    # An engine that gets no processor beside the front is no faster than it: what it sends in a second waits.
    figures = _measured("--streams", "50", "--tokens", "400", "--stall", "1")
    assert figures["tokens"] == 20_000
    assert figures["events"] < 10_000
