"""What a benchmark runs: fixed shapes of random token ids, prompts of a file, or the lengths and times of a trace.

The same arguments give the same work on every machine, so that other engines can be measured on it.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from octavo.base.errors import ConfigError

# Random ids lie above most vocabularies' special tokens and below most vocabularies' ends; those of the fixed shapes in more.
_LOWEST_ID, _END_OF_IDS, _END_OF_SHAPES_IDS = 1000, 30000, 40000
# A CPU runs the shapes with this share of their sequences.
_CPU_SHARE = 1 / 16
# Tokens that one hash of a trace stands for.
_TRACE_BLOCK = 512

Prompt = str | list[int] | list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request. prompt: text, token ids, or messages. at: seconds after the first one's arrival, if the work says so."""

    prompt: Prompt
    max_tokens: int
    at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sequences of random ids. Lengths are [lowest, highest]; cpu_*: what is different there, besides the count."""

    count: int
    prompt: tuple[int, int]
    output: tuple[int, int]
    shared: int = 0
    scaled: bool = True
    cpu_prompt: tuple[int, int] | None = None
    cpu_output: tuple[int, int] | None = None
    cpu_shared: int | None = None


SHAPES = {
    "single": Shape(count=1, prompt=(128, 128), output=(512, 512), cpu_output=(128, 128)),
    "small": Shape(count=8, prompt=(256, 256), output=(256, 256), scaled=False, cpu_output=(64, 64)),
    "mix": Shape(count=256, prompt=(100, 1024), output=(100, 1024)),
    "burst": Shape(count=1024, prompt=(512, 512), output=(128, 128)),
    "prefill": Shape(count=1, prompt=(32000, 32000), output=(1, 1), cpu_prompt=(4000, 4000)),
    "prefix": Shape(count=128, prompt=(64, 64), output=(64, 64), shared=4096, cpu_shared=1024),
}
_FILES = ("custom", "timed_trace")


def shape_jobs(name: str, scale: str) -> list[Job]:
    """Return the jobs of a shape. scale: "gpu", or "cpu" for fewer and shorter ones."""
    shape, rng = SHAPES[name], random.Random(name)
    cpu = scale == "cpu"
    count = max(1, round(shape.count * _CPU_SHARE)) if cpu and shape.scaled else shape.count
    prompt = (cpu and shape.cpu_prompt) or shape.prompt
    output = (cpu and shape.cpu_output) or shape.output
    # The order of draws is part of the work: who changes it measures something else than before.
    ids = partial(random_ids, rng, end=_END_OF_SHAPES_IDS)
    shared = ids((cpu and shape.cpu_shared) or shape.shared)
    return [Job(prompt=shared + ids(_length(rng, prompt)), max_tokens=_length(rng, output)) for _ in range(count)]


def _length(rng: random.Random, span: tuple[int, int]) -> int:
    return span[0] if span[0] == span[1] else rng.randint(*span)


def random_ids(rng: random.Random, count: int, end: int = _END_OF_IDS) -> list[int]:
    """Return as many ids, all below `end`."""
    return [rng.randrange(_LOWEST_ID, end) for _ in range(count)]


def add_work_flags(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the flags that choose the work."""
    group = parser.add_argument_group("The work")
    choices = (*SHAPES, "random", *_FILES)
    group.add_argument(
        "--dataset-name",
        choices=choices,
        default=default,
        help="a fixed shape of random ids; random ids; lines of a file",
    )
    group.add_argument("--dataset-path", help="JSON, JSONL or CSV file of custom prompts or of a timed_trace")
    group.add_argument("--scale", choices=("gpu", "cpu"), default="gpu", help="cpu: a fixed shape with fewer sequences")
    group.add_argument(
        "--num-prompts", type=int, default=None, help="take as many (default: 1000 random ones, all of others)"
    )
    group.add_argument("--random-input-len", type=int, default=1024, metavar="N", help="tokens of a random prompt")
    group.add_argument("--random-output-len", type=int, default=128, metavar="N", help="tokens of its answer")
    group.add_argument("--random-prefix-len", type=int, default=0, metavar="N", help="further tokens that all share")
    group.add_argument(
        "--random-range-ratio", type=float, default=0.0, metavar="X", help="lengths vary by this share, 0 to 1"
    )
    group.add_argument(
        "--custom-output-len",
        type=int,
        default=256,
        metavar="N",
        help="tokens of an answer for which the file says nothing",
    )


def make_jobs(parsed: Any, seed: int) -> list[Job]:
    """Return the work that a command line asks for; raises ConfigError naming the flag."""
    number = parsed.num_prompts
    if number is not None and number < 1:
        raise ConfigError(f"num_prompts must be at least 1, not {number}", field="num_prompts")
    if parsed.dataset_name in SHAPES:
        return shape_jobs(parsed.dataset_name, parsed.scale)[:number]
    if parsed.dataset_name == "random":
        return _random_jobs(parsed, number or 1000, random.Random(seed))
    if parsed.dataset_path is None:
        raise ConfigError(f"--dataset-name {parsed.dataset_name} needs a file", field="dataset_path")
    path = Path(parsed.dataset_path)
    make = _trace_job if parsed.dataset_name == "timed_trace" else partial(_custom_job, parsed.custom_output_len)
    try:
        rng = random.Random(seed)
        jobs = list(itertools.islice(filter(None, (make(row, rng) for row in _rows(path))), number))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read: {type(error).__name__}: {error}", field="dataset_path") from error
    if not jobs:
        raise ConfigError(f"{path} holds no prompts", field="dataset_path")
    start = min((job.at for job in jobs if job.at is not None), default=0.0)
    return [Job(prompt=j.prompt, max_tokens=j.max_tokens, at=None if j.at is None else j.at - start) for j in jobs]


def _random_jobs(parsed: Any, number: int, rng: random.Random) -> list[Job]:
    ratio = parsed.random_range_ratio
    if not 0 <= ratio <= 1:
        raise ConfigError(f"random_range_ratio must be between 0 and 1, not {ratio}", field="random_range_ratio")
    for name in ("random_input_len", "random_output_len"):
        if vars(parsed)[name] < 1:
            raise ConfigError(f"{name} must be at least 1", field=name)

    def span(length: int) -> tuple[int, int]:
        return max(1, round(length * (1 - ratio))), max(1, round(length * (1 + ratio)))

    shared = random_ids(rng, parsed.random_prefix_len)
    prompt, output = span(parsed.random_input_len), span(parsed.random_output_len)
    return [
        Job(prompt=shared + random_ids(rng, _length(rng, prompt)), max_tokens=_length(rng, output))
        for _ in range(number)
    ]


_Row = dict[str, Any]


def _rows(path: Path) -> Iterator[_Row]:
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            yield from csv.DictReader(file)
        elif path.suffix == ".json":
            yield from json.load(file)
        else:
            yield from (json.loads(line) for line in file if line.strip())


def _custom_job(output_len: int, row: _Row, _rng: random.Random) -> Job | None:
    """Return the first turn of a line in any of the forms in which prompts are passed around."""
    prompt: Prompt
    if "messages" in row:
        prompt = row["messages"]
    elif "turns" in row:
        prompt = row["turns"][0]
    elif "conversations" in row:
        turns = [turn["value"] for turn in row["conversations"]]
        if not turns:
            return None
        prompt = turns[0]
    else:
        prompt = row["prompt"] if "prompt" in row else row["question"]
    return Job(prompt=prompt, max_tokens=int(row.get("output_tokens") or row.get("max_tokens") or output_len))


def _trace_job(row: _Row, rng: random.Random) -> Job:
    """Return a request of a trace's lengths. Where it names the hashes of blocks, equal blocks have equal ids."""
    if "TIMESTAMP" in row:
        # More digits than Python takes.
        at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
        num_prompt, num_output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
    else:
        at = row["timestamp"] / 1000
        num_prompt, num_output = row["input_length"], row["output_length"]
    ids = random_ids(rng, num_prompt) if "hash_ids" not in row else _blocks(row["hash_ids"])[:num_prompt]
    return Job(prompt=ids, max_tokens=max(1, num_output), at=at)


def _blocks(hashes: Sequence[int]) -> list[int]:
    return [token for one in hashes for token in random_ids(random.Random(one), _TRACE_BLOCK)]


def arrivals(jobs: Sequence[Job], rate: float, burstiness: float, speed: float, seed: int) -> list[float]:
    """Return when each job arrives, in seconds from the start.

    rate: requests a second; infinite takes the work's own times, `speed` times as fast, or all at once where it has none.
    burstiness: 1 is a Poisson process, less comes in bursts, more is more regular (gaps are gamma-distributed).
    """
    if rate == float("inf"):
        return [(job.at or 0.0) / speed for job in jobs]
    rng, now, times = random.Random(seed), 0.0, list[float]()
    for _ in jobs:
        times.append(now)
        now += rng.gammavariate(burstiness, 1.0 / (rate * burstiness))
    return times
