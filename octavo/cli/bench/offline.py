"""`octavo bench offline`: a batch through `LLM.generate`, greedy, to each answer's full length, without text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from octavo.base.errors import ConfigError
from octavo.cli.bench.figures import PERCENTILES, Measured, save, show, summarize
from octavo.cli.bench.plot import draw
from octavo.cli.bench.work import Job, add_work_flags, make_jobs
from octavo.config.flags import FlagParser, add_engine_flags, add_model, given_options


def main(arguments: Sequence[str]) -> int:
    """Measure; return the exit status."""
    parser = FlagParser(prog="octavo bench offline", description="Measure a batch through LLM.generate.")
    add_model(parser)
    add_work_flags(parser, "mix")
    parser.add_argument("--num-iters", type=int, default=1, help="repetitions, the prefix cache emptied before each")
    parser.add_argument("--output-json", metavar="FILE", help="write the figures of all repetitions there")
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the last repetition (.png, .svg or .pdf; needs octavo[bench])"
    )
    add_engine_flags(parser)
    parsed = parser.parse_args(arguments)
    options = given_options(parsed)
    if parsed.num_iters < 1:
        raise ConfigError(f"num_iters must be at least 1, not {parsed.num_iters}", field="num_iters")
    jobs = make_jobs(parsed, options.get("seed", 0))
    began = time.perf_counter()
    from octavo.llm import LLM

    with LLM(**options) as llm:
        ready = time.perf_counter() - began
        runs: list[dict[str, Any]] = []
        measured: list[Measured] = []
        for number in range(parsed.num_iters):
            llm.reset_prefix_cache()
            measured, seconds = run(llm, jobs)
            figures = summarize(measured, seconds, PERCENTILES, {})
            runs.append(figures)
            show(f"{parsed.dataset_name}, repetition {number + 1}", figures)
    best = min(runs, key=lambda figures: figures["duration"])
    total = best["total_input_tokens"] + best["total_output_tokens"]
    save(
        parsed.output_json,
        {
            "model_id": options.get("model", "demo"),
            "dataset_name": parsed.dataset_name,
            "startup_time": ready,
            "elapsed_time": best["duration"],
            "num_requests": best["num_prompts"],
            "total_num_tokens": total,
            "requests_per_second": best["request_throughput"],
            "tokens_per_second": best["total_token_throughput"],
            "iterations": runs,
        },
    )
    draw(parsed.plot, measured, f"octavo bench offline: {parsed.dataset_name}")
    return 0 if all(not figures["failed"] for figures in runs) else 1


def run(llm: Any, jobs: Sequence[Job]) -> tuple[list[Measured], float]:
    """Run the jobs once; return what was measured of each, and the seconds of all."""
    from octavo.protocol.sampling import SamplingParams

    params = [
        SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=job.max_tokens, detokenize=False) for job in jobs
    ]
    prompts = [job.prompt for job in jobs]
    if isinstance(prompts[0], list) and prompts[0] and isinstance(prompts[0][0], dict):
        raise ConfigError("bench offline takes prompts, not messages; use bench serve", field="dataset_path")
    began = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - began
    return [_measured(output) for output in outputs], seconds


def _measured(output: Any) -> Measured:
    times = output.metrics
    first = [] if times.first_token is None else [times.first_token]
    return Measured(
        start=times.arrival,
        tokens=first,
        end=times.finished,
        num_prompt=len(output.prompt_token_ids),
        num_output=sum(len(choice.token_ids) for choice in output.outputs),
        error=output.error,
    )
