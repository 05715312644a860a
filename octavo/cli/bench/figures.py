"""From what was measured of each request to the figures of a run: for people, and as JSON with the keys that others use."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from octavo.base.errors import ConfigError

PERCENTILES = (50.0, 90.0, 99.0)


@dataclass(slots=True, kw_only=True)
class Measured:
    """One request. start and tokens: seconds on one clock; `tokens` has the time of each piece that arrived.

    end: of the last piece. num_output: tokens, which may be more than pieces.
    """

    start: float
    tokens: list[float] = field(default_factory=list[float])
    end: float = 0.0
    num_prompt: int = 0
    num_output: int = 0
    text: str = ""
    error: str | None = None

    @property
    def latencies(self) -> dict[str, float]:
        """Milliseconds to the first token, a token after it, and to the end."""
        found = {"e2el": self.end - self.start}
        if self.tokens:
            found["ttft"] = self.tokens[0] - self.start
        if self.num_output > 1:
            found["tpot"] = (self.end - self.tokens[0]) / (self.num_output - 1)
        return {name: 1000 * seconds for name, seconds in found.items()}

    @property
    def gaps(self) -> list[float]:
        """Milliseconds between pieces."""
        return [1000 * (late - early) for early, late in itertools.pairwise(self.tokens)]


def summarize(
    requests: Sequence[Measured], seconds: float, percentiles: Sequence[float], goodput: Mapping[str, float]
) -> dict[str, Any]:
    """Return the figures of a run. goodput: milliseconds that ttft, tpot and e2el may take for a request to count."""
    good = [one for one in requests if one.error is None]
    num_prompt, num_output = sum(one.num_prompt for one in good), sum(one.num_output for one in good)
    figures: dict[str, Any] = {
        "num_prompts": len(requests),
        "completed": len(good),
        "failed": len(requests) - len(good),
        "duration": seconds,
        "total_input_tokens": num_prompt,
        "total_output_tokens": num_output,
        "request_throughput": len(good) / seconds,
        "output_throughput": num_output / seconds,
        "total_token_throughput": (num_prompt + num_output) / seconds,
        "max_output_tokens_per_s": max(tokens_by_second(good), default=0.0),
        "max_concurrent_requests": max(running_at_starts(good), default=0),
    }
    if goodput:
        kept = [one for one in good if all(one.latencies.get(name, 0.0) <= most for name, most in goodput.items())]
        figures["request_goodput"] = len(kept) / seconds
    values = {name: [v[name] for one in good if name in (v := one.latencies)] for name in ("ttft", "tpot", "e2el")}
    values["itl"] = [gap for one in good for gap in one.gaps]
    for name in ("ttft", "tpot", "itl", "e2el"):
        if values[name]:
            figures |= _spread(name, values[name], percentiles)
    return figures


def _spread(name: str, values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    spread = {f"mean_{name}_ms": statistics.fmean(values), f"median_{name}_ms": statistics.median(values)}
    spread[f"std_{name}_ms"] = statistics.pstdev(values)
    return spread | {f"p{one:g}_{name}_ms": percentile(values, one) for one in percentiles}


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, between the two nearest values."""
    return float(np.percentile(values, percent))


def tokens_by_second(requests: Sequence[Measured]) -> list[float]:
    """Return the output tokens of each second of the run."""
    start = min((one.start for one in requests), default=0.0)
    seconds: list[float] = []
    for one in requests:
        for moment in one.tokens:
            second = int(moment - start)
            seconds.extend([0.0] * (second + 1 - len(seconds)))
            seconds[second] += one.num_output / len(one.tokens)
    return seconds


def running_at_starts(requests: Sequence[Measured]) -> list[int]:
    """Return how many requests ran when each began, itself included."""
    moments = sorted([(one.start, 1) for one in requests] + [(one.end, -1) for one in requests])
    running, found = 0, list[int]()
    for _, change in moments:
        running += change
        if change > 0:
            found.append(running)
    return found


def checked_percentiles(text: str) -> tuple[float, ...]:
    """Return the percentiles of a list such as 50,90,99; raises ConfigError."""
    try:
        found = tuple(float(one) for one in text.split(","))
    except ValueError:
        found = (-1.0,)
    if not all(0 <= one <= 100 for one in found):
        raise ConfigError(f"metric_percentiles must be numbers from 0 to 100, not {text!r}", field="metric_percentiles")
    return found


def checked_goodput(pairs: Sequence[str]) -> dict[str, float]:
    """Return the limits of pairs such as ttft:500; raises ConfigError."""
    limits: dict[str, float] = {}
    for pair in pairs:
        name, _, most = pair.partition(":")
        if name not in ("ttft", "tpot", "e2el") or not most.replace(".", "", 1).isdigit():
            raise ConfigError(f"goodput takes ttft:MS, tpot:MS and e2el:MS, not {pair!r}", field="goodput")
        limits[name] = float(most)
    return limits


def show(title: str, figures: Mapping[str, Any]) -> None:
    """Print figures for people."""
    print(title)
    for name, value in figures.items():
        if isinstance(value, float):
            print(f"  {name:<26} {value:,.2f}")
        elif not isinstance(value, (list, dict)):
            print(f"  {name:<26} {value}")


def save(path: str | None, figures: Mapping[str, Any]) -> None:
    """Write figures as JSON, if somewhere is given; raises ConfigError if that cannot be written."""
    if path is not None:
        try:
            Path(path).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}", field="output_json") from error
