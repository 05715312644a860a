"""`octavo bench latency`: one batch of random prompts, again and again; seconds to its end."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

from octavo.base.errors import ConfigError
from octavo.cli.bench.figures import PERCENTILES, percentile, save, show
from octavo.cli.bench.offline import run
from octavo.cli.bench.work import Job, random_ids
from octavo.config.flags import FlagParser, add_engine_flags, add_model, given_options

_COUNTS = {
    "input_len": (32, "tokens of each prompt"),
    "output_len": (128, "tokens of each answer"),
    "batch_size": (8, "prompts at once"),
    "num_iters_warmup": (10, "repetitions before those that count"),
    "num_iters": (30, "repetitions that count"),
}


def main(arguments: Sequence[str]) -> int:
    """Measure; return the exit status."""
    parser = FlagParser(prog="octavo bench latency", description="Measure the time that one batch takes.")
    add_model(parser)
    for name, (default, meaning) in _COUNTS.items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=int, default=default, metavar="N", help=f"{meaning} (default {default})")
    parser.add_argument("--output-json", metavar="FILE", help="write the figures there")
    add_engine_flags(parser)
    parsed = parser.parse_args(arguments)
    counts: dict[str, int] = {name: vars(parsed)[name] for name in _COUNTS}
    for name, count in counts.items():
        low = 0 if name == "num_iters_warmup" else 1
        if count < low:
            raise ConfigError(f"{name} must be at least {low}, not {count}", field=name)
    options = given_options(parsed)
    rng = random.Random(options.get("seed", 0))
    jobs = [
        Job(prompt=random_ids(rng, counts["input_len"]), max_tokens=counts["output_len"])
        for _ in range(counts["batch_size"])
    ]
    from octavo.llm import LLM

    latencies: list[float] = []
    with LLM(**options) as llm:
        for number in range(counts["num_iters_warmup"] + counts["num_iters"]):
            llm.reset_prefix_cache()
            seconds = run(llm, jobs)[1]
            if number >= counts["num_iters_warmup"]:
                latencies.append(seconds)
    percentiles = {f"{one:g}": percentile(latencies, one) for one in PERCENTILES}
    figures = {"avg_latency": statistics.fmean(latencies), "latencies": latencies, "percentiles": percentiles}
    save(parsed.output_json, figures)
    show("seconds of a batch", {"avg_latency": figures["avg_latency"], **{f"p{k}": v for k, v in percentiles.items()}})
    return 0
