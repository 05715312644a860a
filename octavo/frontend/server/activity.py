"""A line in the log now and then: what the server does. An idle server is silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from octavo.base.logging import get_logger
from octavo.protocol.output import EngineStats

_logger = get_logger(__name__)


class Activity:
    """What happened between two looks. stats: returns the engine's latest totals, None before its first step."""

    def __init__(self, stats: Callable[[], EngineStats | None]) -> None:
        self._stats = stats
        self._last = EngineStats()
        self._looked = time.monotonic()

    def line(self, now: float) -> str | None:
        """Return what happened since the last call, in words; None if nothing did and nothing waits. now: monotonic seconds."""
        stats = self._stats() or EngineStats()
        last, seconds = self._last, max(now - self._looked, 1e-9)
        self._last, self._looked = stats, now
        if stats.num_steps == last.num_steps and not stats.num_running and not stats.num_waiting:
            return None
        prompt, generated = stats.prompt_tokens - last.prompt_tokens, stats.generated_tokens - last.generated_tokens
        used = stats.used_pages / stats.num_pages if stats.num_pages else 0.0
        queries = stats.prefix_queries - last.prefix_queries
        hits = f", {(stats.prefix_hits - last.prefix_hits) / queries:.0%} of prompts cached" if queries else ""
        return (
            f"{stats.num_running} running, {stats.num_waiting} waiting, cache {used:.0%} used; "
            f"{prompt / seconds:,.1f} prompt and {generated / seconds:,.1f} output tokens/s{hits}"
        )


async def log_activity(activity: Activity, interval: float) -> None:
    """Log what happens every `interval` seconds, until cancelled."""
    while True:
        await asyncio.sleep(interval)
        line = activity.line(time.monotonic())
        if line is not None:
            _logger.info("%s", line)
