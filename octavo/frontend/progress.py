"""What is seen of a batch while it runs: a bar, and metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

from octavo.frontend.vectors import PoolingRequestOutput
from octavo.observe.metrics import ServerMetrics
from octavo.protocol.output import RequestOutput

# A switch, or something called like `tqdm.tqdm`.
ProgressBar = bool | Callable[..., Any]


@contextlib.contextmanager
def progress(use_tqdm: ProgressBar, total: int | None, metrics: ServerMetrics) -> Generator[Callable[[Any], None]]:
    """Show a bar of finished prompts, with the speed in tokens; yields what has to be called for each.

    total: prompts, None if nobody knows.
    """
    if use_tqdm is False or total == 0:
        yield lambda output: _count(metrics, output)
        return
    if use_tqdm is True:
        from tqdm.auto import tqdm as make_bar
    else:
        make_bar = use_tqdm
    bar = make_bar(total=total, desc="Prompts", dynamic_ncols=True)
    num_tokens = 0

    def finished(output: RequestOutput | PoolingRequestOutput) -> None:
        nonlocal num_tokens
        _count(metrics, output)
        generates = isinstance(output, RequestOutput)
        num_tokens += _num_generated(output) if generates else len(output.prompt_token_ids)
        seconds = bar.format_dict["elapsed"] or 1e-9
        bar.set_postfix_str(f"{num_tokens / seconds:.1f} {'out' if generates else 'in'}put tokens/s", refresh=False)
        bar.update(1)

    try:
        yield finished
    finally:
        bar.close()


def _num_generated(output: RequestOutput) -> int:
    return sum(len(choice.token_ids) for choice in output.outputs)


def _count(metrics: ServerMetrics, output: RequestOutput | PoolingRequestOutput) -> None:
    """Count a finished request."""
    num_prompt, observe = len(output.prompt_token_ids), metrics.observe
    observe("request_prompt_tokens", num_prompt)
    if not isinstance(output, RequestOutput):
        metrics.count_prompt(num_prompt, 0)
        metrics.count_finish("error" if output.error else "stop")
        return
    metrics.count_prompt(num_prompt, output.num_cached_tokens)
    num_generated = _num_generated(output)
    metrics.count_generated(num_generated)
    observe("request_generation_tokens", num_generated)
    for choice in output.outputs:
        metrics.count_finish(choice.finish_reason or "abort")
    times = output.metrics
    if times is None or times.first_token is None or times.finished is None:
        return
    observe("time_to_first_token_seconds", times.first_token - times.arrival)
    observe("e2e_request_latency_seconds", times.finished - times.arrival)
    if times.first_scheduled is not None:
        observe("request_queue_time_seconds", max(0.0, times.first_scheduled - times.arrival))
