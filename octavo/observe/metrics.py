"""Prometheus metrics of one server: a registry of its own, nothing global.

Gauges and totals of the engine are read when Prometheus asks; what a request took is counted by the front as it delivers
tokens, so the token counters equal the `usage` that clients were told.
"""

from __future__ import annotations

import contextlib
import functools
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from octavo.base.errors import QueuedTokensError, QueueFullError, QueueTimeoutError
from octavo.protocol.output import EngineStats, FinishReason

# Upper bounds of the histograms: seconds, and tokens.
_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_DURATION = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5)
_CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)
_REJECTIONS = (QueueFullError.reason, QueuedTokensError.reason, QueueTimeoutError.reason)
_REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort", "error", "repetition")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """Counts of values per bucket; adding one costs a bisection."""

    def __init__(self, name: str, help_text: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.help_text = help_text
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    @property
    def state(self) -> tuple[list[int], float]:
        """The count of each bucket, and the sum."""
        return self._counts, self._sum

    def add(self, state: tuple[list[int], float]) -> None:
        """Add what another of the same bounds has counted."""
        self._counts = [mine + theirs for mine, theirs in zip(self._counts, state[0], strict=True)]
        self._sum += state[1]

    def family(self, prefix: str, labels: dict[str, str]) -> Metric:
        """Return the histogram in Prometheus' form: cumulative counts up to each bound."""
        bounds = [*(str(bound) for bound in self._bounds), "+Inf"]
        metric = HistogramMetricFamily(prefix + self.name, self.help_text, labels=list(labels))
        metric.add_metric(list(labels.values()), list(zip(bounds, accumulate(self._counts), strict=True)), self._sum)
        return metric


# Name -> help and bounds of every histogram; each is an attribute of ServerMetrics.
_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("Arrival of a request to its first token.", _LATENCY),
    "inter_token_latency_seconds": ("Time between tokens of one choice.", _LATENCY),
    "request_time_per_output_token_seconds": ("Mean time of a request's tokens after its first.", _LATENCY),
    "e2e_request_latency_seconds": ("Arrival of a request to its last token.", _DURATION),
    "request_queue_time_seconds": ("Arrival of a request to its first step.", _LATENCY),
    "request_inference_time_seconds": ("First step of a request to its last token.", _DURATION),
    "request_prefill_time_seconds": ("First step of a request to its first token.", _DURATION),
    "request_decode_time_seconds": ("First token of a request to its last.", _DURATION),
    "request_prompt_tokens": ("Prompt tokens of a request.", _TOKENS),
    "request_prefill_kv_computed_tokens": ("Prompt tokens of a request that were not in the cache.", _TOKENS),
    "request_generation_tokens": ("Tokens generated for a request, all choices.", _TOKENS),
    "request_max_num_generation_tokens": ("Tokens of a request's longest choice.", _TOKENS),
    "request_params_n": ("Choices that a request asked for.", _CHOICES),
    "request_params_max_tokens": ("Longest answer that a request asked for, where it did.", _TOKENS),
}
# Prefix of names -> labels besides the model's name.
_PREFIXES: dict[str, dict[str, str]] = {"octavo": {}, "vllm": {"engine": "0"}}


class _Totals(msgspec.Struct, kw_only=True):
    """What one front has counted. histograms: their states, where they are told to others."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    rejected: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(_REJECTIONS, 0))
    finished: dict[FinishReason, int] = msgspec.field(default_factory=lambda: dict.fromkeys(_REASONS, 0))
    histograms: dict[str, tuple[list[int], float]] = {}


class ServerMetrics(Collector):
    """All metrics of one server and its engine. One thread only.

    stats: returns the engine's latest totals, None until it is loaded. names: first part of every name, "octavo", "vllm" or
    "both". num_restarts: of the engine, as whoever watches it says.
    """

    def __init__(self, model_name: str, stats: Callable[[], EngineStats | None], *, names: str = "octavo") -> None:
        self._model_name = model_name
        self._stats = stats
        self._names = tuple(_PREFIXES) if names == "both" else (names,)
        self._folder: Path | None = None
        self._front = 0
        self.num_restarts = 0
        self._joined: tuple[ServerMetrics, ...] = ()
        self._histograms = {name: Histogram(name, *described) for name, described in _HISTOGRAMS.items()}
        self._totals = _Totals()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Count a value in a histogram, `times` times."""
        self._histograms[name].observe(value, times)

    def count_prompt(self, num_tokens: int, num_cached: int) -> None:
        """Count a prompt whose output began. num_cached: tokens of it that were found in the cache."""
        self._totals.prompt_tokens += num_tokens
        self._totals.cached_tokens += num_cached

    def count_rejected(self, reason: str) -> None:
        """Count a request that was not taken, or waited too long. reason: that of its error."""
        self._totals.rejected[reason] += 1

    def count_generated(self, num_tokens: int) -> None:
        """Count tokens handed out."""
        self._totals.generation_tokens += num_tokens

    def count_finish(self, reason: FinishReason, times: int = 1) -> None:
        """Count choices that ended."""
        self._totals.finished[reason] += times

    def share(self, folder: Path, front: int) -> None:
        """Count together with other fronts of the same engine: each leaves what it knows in a file, by `publish`."""
        self._folder, self._front = folder, front

    def join(self, others: Iterable[ServerMetrics]) -> None:
        """Show what others have counted, instead of anything of its own."""
        self._joined = tuple(others)

    def publish(self) -> None:
        """Let other fronts know what was counted here."""
        if self._folder is None:
            return
        path = self._folder / f"metrics-{self._front}"
        with contextlib.suppress(OSError):  # The folder goes when the engine has ended, and the disk may be full.
            path.with_suffix(".new").write_bytes(msgspec.msgpack.encode(self._told()))
            path.with_suffix(".new").rename(path)

    def render(self) -> bytes:
        """Return the exposition text, of type CONTENT_TYPE; of all fronts, where there are several."""
        if self._folder is None or not self._folder.is_dir():
            return generate_latest(self._registry)
        self.publish()
        every = ServerMetrics(self._model_name, self._stats)
        every._names, every.num_restarts = self._names, self.num_restarts
        every._add(self._told())
        for path in self._folder.glob("metrics-*[0-9]"):
            if path.name != f"metrics-{self._front}":
                every._add(msgspec.msgpack.decode(path.read_bytes(), type=_Totals))
        return generate_latest(every._registry)

    def _told(self) -> _Totals:
        states = {name: one.state for name, one in self._histograms.items()}
        return msgspec.structs.replace(self._totals, histograms=states)

    def _add(self, totals: _Totals) -> None:
        self._totals.prompt_tokens += totals.prompt_tokens
        self._totals.cached_tokens += totals.cached_tokens
        self._totals.generation_tokens += totals.generation_tokens
        for reason, count in totals.finished.items():
            self._totals.finished[reason] += count
        for cause, count in totals.rejected.items():
            self._totals.rejected[cause] += count
        for name, state in totals.histograms.items():
            self._histograms[name].add(state)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric as it stands now; called by the registry."""
        if self._joined:
            for first, *others in zip(*(one.collect() for one in self._joined), strict=True):
                first.samples += [sample for family in others for sample in family.samples]
                yield first
            return
        stats = self._stats() or EngineStats()
        for name in self._names:
            page = _Page(f"{name}:", {"model_name": self._model_name, **_PREFIXES[name]})
            yield from _engine_gauges(page, stats)
            yield from _engine_totals(page, stats)
            yield page.counter("engine_restarts", "Restarts of an engine that died.", self.num_restarts)
            yield from self._front_totals(page)
            for histogram in self._histograms.values():
                yield histogram.family(page.prefix, page.labels)

    def _front_totals(self, page: _Page) -> Iterator[Metric]:
        totals = self._totals
        cached, computed = totals.cached_tokens, totals.prompt_tokens - totals.cached_tokens
        yield page.counter("prompt_tokens", "Prompt tokens of requests whose output began.", totals.prompt_tokens)
        yield page.counter("prompt_tokens_cached", "Those of them that were found in the cache.", cached)
        sources = {"local_compute": computed, "local_cache_hit": cached}
        yield page.counter("prompt_tokens_by_source", "Prompt tokens, by where they came from.", sources, "source")
        yield page.counter("generation_tokens", "Tokens handed out to clients.", totals.generation_tokens)
        yield page.counter("request_success", "Choices that ended, by reason.", totals.finished, "finished_reason")
        yield page.counter("admission_rejections", "Requests that were not taken.", totals.rejected, "reason")


class _Page:
    """Makes families under one prefix, with the labels that all have."""

    def __init__(self, prefix: str, labels: dict[str, str]) -> None:
        self.prefix = prefix
        self.labels = labels

    def _filled(
        self, family: type[Any], name: str, text: str, value: float | Mapping[Any, float], label: str = ""
    ) -> Metric:
        """Return a family. value: of a mapping each, under its key as the label's value."""
        several = value if isinstance(value, Mapping) else {"": value}
        metric = family(self.prefix + name, text, labels=[*self.labels, *([label] if label else [])])
        for one, number in several.items():
            metric.add_metric([*self.labels.values(), *([one] if label else [])], number)
        return metric

    gauge = functools.partialmethod(_filled, GaugeMetricFamily)
    counter = functools.partialmethod(_filled, CounterMetricFamily)


def _engine_gauges(page: _Page, stats: EngineStats) -> Iterator[Metric]:
    yield page.gauge("num_requests_running", "Sequences that hold a slot.", stats.num_running)
    yield page.gauge("num_requests_waiting", "Sequences that wait for a slot.", stats.num_waiting)
    waiting = {"capacity": stats.num_waiting}
    yield page.gauge("num_requests_waiting_by_reason", "Sequences that wait, by what for.", waiting, "reason")
    yield page.gauge("num_tokens_waiting", "Tokens of sequences that wait for a slot.", stats.num_waiting_tokens)
    waited = max(0.0, time.time() - stats.waits_since) if stats.waits_since else 0.0
    yield page.gauge("queue_wait_seconds", "How long the sequence has waited whose turn it is.", waited)
    yield page.gauge("num_slots", "Slots in all.", stats.num_slots)
    yield page.gauge("num_slots_used", "Slots in use.", stats.used_slots)
    share = stats.used_pages / stats.num_pages if stats.num_pages else 0.0
    yield page.gauge("kv_cache_usage_perc", "Pages held by running sequences; 1 is all.", share)
    busy = max(share, stats.used_slots / stats.num_slots if stats.num_slots else 0.0)
    yield page.gauge("saturation", "Share of slots or of pages in use, whichever is more; 1 is all.", busy)
    yield page.gauge("num_pages", "Pages in all.", stats.num_pages)
    states = {"free": stats.free_pages, "cached": stats.cached_pages}
    states |= {"used": stats.used_pages, "pending": stats.pending_pages}
    yield page.gauge("pool_pages", "Pages of the pool, by state.", states, "state")


def _engine_totals(page: _Page, stats: EngineStats) -> Iterator[Metric]:
    yield page.counter("prefix_cache_queries", "Prompt tokens looked up in the cache.", stats.prefix_queries)
    yield page.counter("prefix_cache_hits", "Prompt tokens found in the cache.", stats.prefix_hits)
    yield page.counter("num_preemptions", "Sequences that lost their pages and start again.", stats.num_preemptions)
    yield page.counter("corrupted_requests", "Sequences that ended because their numbers broke.", stats.failed_rows)
    yield page.counter("engine_steps", "Steps of the engine.", stats.num_steps)
