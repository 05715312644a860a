"""`octavo bench serve`: requests to a server as they would come, each measured by the pieces of its stream.

Works against any server with OpenAI's routes; without --url a server of our own is started for the time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx

from octavo.base.errors import ConfigError, OctavoError
from octavo.cli.bench.figures import Measured, checked_goodput, checked_percentiles, save, show, summarize
from octavo.cli.bench.plot import draw
from octavo.cli.bench.work import Job, add_work_flags, arrivals, make_jobs
from octavo.cli.own_server import OwnServer, client_of
from octavo.config.flags import FlagParser, add_engine_flags, add_model, command_line, given_options

_ROUTES = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How a server is asked. times: seconds after the start for each job. extra: further fields of every body."""

    jobs: Sequence[Job]
    times: Sequence[float]
    backend: str
    max_concurrency: int | None
    extra: Mapping[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Measure; return the exit status, 1 if a request failed."""
    parsed = _parser().parse_args(arguments)
    options = given_options(parsed)
    seed = options.get("seed", 0)
    jobs = make_jobs(parsed, seed)
    goodput, percentiles = checked_goodput(parsed.goodput or ()), checked_percentiles(parsed.metric_percentiles)
    times = arrivals(jobs, parsed.request_rate, parsed.burstiness, parsed.trace_speed, seed)
    extra = {"temperature": 0.0, "ignore_eos": parsed.ignore_eos} | _json_object(parsed.extra_body)
    load = Load(jobs=jobs, times=times, backend=parsed.backend, max_concurrency=parsed.max_concurrency, extra=extra)
    with contextlib.ExitStack() as stack:
        own = None if parsed.url else stack.enter_context(OwnServer(command_line(options)))
        model, measured, seconds = asyncio.run(
            _measure(own, parsed.url, options.get("model"), load, parsed.num_warmups)
        )
    figures: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "backend": parsed.backend,
        "model_id": model,
        "dataset_name": parsed.dataset_name,
        "request_rate": "inf" if parsed.request_rate == float("inf") else parsed.request_rate,
        "burstiness": parsed.burstiness,
        "max_concurrency": parsed.max_concurrency,
    }
    figures |= summarize(measured, seconds, percentiles, goodput)
    show(f"octavo bench serve: {parsed.dataset_name}", figures)
    errors = [one.error for one in measured if one.error is not None]
    if errors:
        print(f"  the first error: {errors[0]}")
    save(parsed.output_json, figures | (_details(measured) if parsed.save_detailed else {}))
    draw(parsed.plot, measured, f"octavo bench serve: {parsed.dataset_name}")
    return 1 if errors else 0


def _parser() -> FlagParser:
    parser = FlagParser(prog="octavo bench serve", description="Measure a server under a load.")
    add_model(parser)
    parser.add_argument(
        "--url", "--base-url", help="the server; without it one is started with the engine's flags below"
    )
    parser.add_argument(
        "--backend", choices=tuple(_ROUTES), default="openai", help="completions, or chat completions (text only)"
    )
    add_work_flags(parser, "random")
    load = parser.add_argument_group("The load")
    load.add_argument(
        "--request-rate", type=_positive, default=float("inf"), metavar="X",
        help="requests a second (default inf: a trace's own times, others all at once)",
    )  # fmt: skip
    load.add_argument(
        "--burstiness",
        type=_positive,
        default=1.0,
        metavar="X",
        help="1: Poisson arrivals; less: bursts; more: regular",
    )
    load.add_argument(
        "--trace-speed", type=_positive, default=1.0, metavar="X", help="a trace's own times so much faster"
    )
    load.add_argument("--max-concurrency", type=int, metavar="N", help="requests under way at most; others wait here")
    load.add_argument("--num-warmups", type=int, default=0, metavar="N", help="requests before those that count")
    load.add_argument("--ignore-eos", action="store_true", help="every answer has its full length")
    load.add_argument("--extra-body", metavar="JSON", help="further fields of every request")
    shown = parser.add_argument_group("What is shown")
    shown.add_argument(
        "--goodput", nargs="+", metavar="ttft:MS", help="count requests within limits of ttft, tpot, e2el"
    )
    shown.add_argument("--metric-percentiles", default="50,90,99", metavar="LIST", help="default 50,90,99")
    shown.add_argument("--output-json", metavar="FILE", help="write the figures there")
    shown.add_argument("--save-detailed", action="store_true", help="each request's figures and text too")
    shown.add_argument("--plot", metavar="FILE", help="draw the run (.png, .svg or .pdf; needs octavo[bench])")
    add_engine_flags(parser)
    return parser


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text!r}")
    return value


def _json_object(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"extra_body must be a JSON object, not {text!r}", field="extra_body")
    return value


def _details(measured: Sequence[Measured]) -> dict[str, Any]:
    return {
        "input_lens": [one.num_prompt for one in measured],
        "output_lens": [one.num_output for one in measured],
        "ttfts": [one.latencies.get("ttft") for one in measured],
        "itls": [one.gaps for one in measured],
        "latencies": [one.latencies["e2el"] for one in measured],
        "start_times": [one.start for one in measured],
        "generated_texts": [one.text for one in measured],
        "errors": [one.error for one in measured],
    }


async def _measure(
    own: OwnServer | None, url: str | None, model: str | None, load: Load, num_warmups: int
) -> tuple[str, list[Measured], float]:
    """Return the model's name, what was measured of each request, and the seconds of all."""
    if own is not None:
        await own.ready()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with client_of(str(url) if own is None else own.url, limits=limits, timeout=None) as http:
        name = model if model is not None and own is None else await _served_model(http)
        for job in load.jobs[:num_warmups]:
            await measure_one(http, name, job, load)
        began = time.perf_counter()
        measured = await run(http, name, load)
        return name, measured, time.perf_counter() - began


async def _served_model(http: httpx.AsyncClient) -> str:
    try:
        answer = await http.get("/v1/models")
        return answer.raise_for_status().json()["data"][0]["id"]
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise OctavoError(f"{http.base_url} names no model: {error}") from error


async def run(http: httpx.AsyncClient, model: str, load: Load) -> list[Measured]:
    """Send every job at its time, and return what was measured, in the jobs' order."""
    gate = asyncio.Semaphore(load.max_concurrency or len(load.jobs))
    began = time.perf_counter()

    async def one(job: Job, at: float) -> Measured:
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        async with gate:
            return await measure_one(http, model, job, load)

    return list(await asyncio.gather(*(one(job, at) for job, at in zip(load.jobs, load.times, strict=True))))


async def measure_one(http: httpx.AsyncClient, model: str, job: Job, load: Load) -> Measured:
    """Send one request and note when each piece of its stream arrives; a failure is in `error`."""
    body = {"model": model, "max_tokens": job.max_tokens, "stream": True, "stream_options": {"include_usage": True}}
    data = json.dumps({**body, **_prompt(job, load.backend), **load.extra})
    measured = Measured(start=time.perf_counter())
    try:
        headers = {"Content-Type": "application/json"}
        async with http.stream("POST", _ROUTES[load.backend], content=data, headers=headers) as response:
            if response.status_code != 200:
                raise OctavoError(f"status {response.status_code}: {(await response.aread()).decode(errors='replace')}")
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    _take(measured, json.loads(line[6:]), time.perf_counter())
        if not measured.num_output:
            raise OctavoError("the stream ended without tokens or usage")
    except (httpx.HTTPError, ValueError, OctavoError) as error:
        measured.error = str(error) or type(error).__name__
    measured.end = measured.end or time.perf_counter()
    return measured


def _prompt(job: Job, backend: str) -> dict[str, Any]:
    messages = isinstance(job.prompt, list) and job.prompt and isinstance(job.prompt[0], dict)
    if backend == "openai":
        if messages:
            raise ConfigError("messages need --backend openai-chat", field="backend")
        return {"prompt": job.prompt}
    if isinstance(job.prompt, str):
        return {"messages": [{"role": "user", "content": job.prompt}]}
    if not messages:
        raise ConfigError("token ids need --backend openai: chats are text", field="backend")
    return {"messages": job.prompt}


def _take(measured: Measured, event: dict[str, Any], now: float) -> None:
    """Note one event of a stream."""
    if "error" in event:
        raise OctavoError(str(event["error"].get("message")))
    for choice in event["choices"]:
        delta = choice.get("delta")
        text = choice.get("text") if delta is None else delta.get("content")
        measured.end = now
        # An answer whose tokens have no text comes all at its end.
        if text or (choice.get("finish_reason") and not measured.tokens):
            measured.text += text or ""
            measured.tokens.append(now)
    usage = event.get("usage")
    if usage:
        measured.num_prompt, measured.num_output = usage["prompt_tokens"], usage["completion_tokens"]
