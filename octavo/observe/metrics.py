"""Prometheus metrics of one server: a registry of its own, nothing global.

Gauges and totals of the engine are read when Prometheus asks; what a request took is counted by the front as it delivers
tokens, so the token counters equal the `usage` that clients were told.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from octavo.protocol.output import EngineStats, FinishReason

# Upper bounds of the histograms: seconds, and tokens.
_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_DURATION = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5)
_REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort", "error")
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

    def family(self, prefix: str, labels: dict[str, str]) -> Metric:
        """Return the histogram in Prometheus' form: cumulative counts up to each bound."""
        bounds = [*(str(bound) for bound in self._bounds), "+Inf"]
        metric = HistogramMetricFamily(prefix + self.name, self.help_text, labels=list(labels))
        metric.add_metric(list(labels.values()), list(zip(bounds, accumulate(self._counts), strict=True)), self._sum)
        return metric


class ServerMetrics(Collector):
    """All metrics of one server and its engine. One thread only.

    stats: returns the engine's latest totals, None until it is loaded. prefix: in front of every name.
    """

    def __init__(self, model_name: str, stats: Callable[[], EngineStats | None], *, prefix: str = "octavo:") -> None:
        self._labels = {"model_name": model_name}
        self._stats = stats
        self._prefix = prefix
        self.time_to_first_token = Histogram(
            "time_to_first_token_seconds", "Arrival of a request to its first token.", _LATENCY
        )
        self.inter_token_latency = Histogram(
            "inter_token_latency_seconds", "Time between tokens of one choice.", _LATENCY
        )
        self.request_latency = Histogram(
            "e2e_request_latency_seconds", "Arrival of a request to its last token.", _DURATION
        )
        self.queue_time = Histogram("request_queue_time_seconds", "Arrival of a request to its first step.", _LATENCY)
        self.request_prompt_tokens = Histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self.request_generation_tokens = Histogram(
            "request_generation_tokens", "Tokens generated for a request, all choices.", _TOKENS
        )
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._finished = dict.fromkeys(_REASONS, 0)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def count_prompt(self, num_tokens: int) -> None:
        """Count a prompt that has been computed."""
        self._prompt_tokens += num_tokens

    def count_generated(self, num_tokens: int) -> None:
        """Count tokens handed out."""
        self._generation_tokens += num_tokens

    def count_finish(self, reason: FinishReason, times: int = 1) -> None:
        """Count choices that ended."""
        self._finished[reason] += times

    def render(self) -> bytes:
        """Return the exposition text, of type CONTENT_TYPE."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric as it stands now; called by the registry."""
        stats = self._stats() or EngineStats()
        yield from self._engine_gauges(stats)
        yield from self._engine_totals(stats)
        yield self._counter("prompt_tokens", "Prompt tokens of requests whose output began.", self._prompt_tokens)
        yield self._counter("generation_tokens", "Tokens handed out to clients.", self._generation_tokens)
        finished = CounterMetricFamily(
            self._prefix + "request_success",
            "Choices that ended, by reason.",
            labels=[*self._labels, "finished_reason"],
        )
        for reason, count in self._finished.items():
            finished.add_metric([*self._labels.values(), reason], count)
        yield finished
        for histogram in (
            self.time_to_first_token,
            self.inter_token_latency,
            self.request_latency,
            self.queue_time,
            self.request_prompt_tokens,
            self.request_generation_tokens,
        ):
            yield histogram.family(self._prefix, self._labels)

    def _engine_gauges(self, stats: EngineStats) -> Iterator[Metric]:
        yield self._gauge("num_requests_running", "Sequences that hold a slot.", stats.num_running)
        yield self._gauge("num_requests_waiting", "Sequences that wait for a slot.", stats.num_waiting)
        yield self._gauge("num_slots", "Slots in all.", stats.num_slots)
        yield self._gauge("num_slots_used", "Slots in use.", stats.used_slots)
        share = stats.used_pages / stats.num_pages if stats.num_pages else 0.0
        yield self._gauge("kv_cache_usage_perc", "Pages held by running sequences; 1 is all.", share)
        yield self._gauge("num_pages", "Pages in all.", stats.num_pages)
        pages = GaugeMetricFamily(
            self._prefix + "pool_pages", "Pages of the pool, by state.", labels=[*self._labels, "state"]
        )
        counts = {"free": stats.free_pages, "cached": stats.cached_pages}
        counts |= {"used": stats.used_pages, "pending": stats.pending_pages}
        for state, count in counts.items():
            pages.add_metric([*self._labels.values(), state], count)
        yield pages

    def _engine_totals(self, stats: EngineStats) -> Iterator[Metric]:
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up in the cache.", stats.prefix_queries)
        yield self._counter("prefix_cache_hits", "Prompt tokens found in the cache.", stats.prefix_hits)
        yield self._counter(
            "num_preemptions", "Sequences that lost their pages and start again.", stats.num_preemptions
        )
        yield self._counter(
            "corrupted_requests", "Sequences that ended because their numbers broke.", stats.failed_rows
        )
        yield self._counter("engine_steps", "Steps of the engine.", stats.num_steps)

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        metric = GaugeMetricFamily(self._prefix + name, help_text, labels=list(self._labels))
        metric.add_metric(list(self._labels.values()), value)
        return metric

    def _counter(self, name: str, help_text: str, value: float) -> Metric:
        metric = CounterMetricFamily(self._prefix + name, help_text, labels=list(self._labels))
        metric.add_metric(list(self._labels.values()), value)
        return metric
