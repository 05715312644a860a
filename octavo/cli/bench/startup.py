"""`octavo bench startup`: seconds from the command to a server that answers, and to its first token, in fresh processes."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence

import httpx

from octavo.base.errors import ConfigError, GenerationError
from octavo.cli.bench.figures import save, show
from octavo.cli.own_server import OwnServer
from octavo.config.flags import FlagParser, add_engine_flags, add_model, command_line, given_options


def main(arguments: Sequence[str]) -> int:
    """Measure; return the exit status."""
    parser = FlagParser(prog="octavo bench startup", description="Measure how long a server takes to start.")
    add_model(parser)
    parser.add_argument(
        "--num-iters", type=int, default=3, help="starts (default 3); the first may find cold file caches"
    )
    parser.add_argument("--output-json", metavar="FILE", help="write the figures there")
    add_engine_flags(parser)
    parsed = parser.parse_args(arguments)
    if parsed.num_iters < 1:
        raise ConfigError(f"num_iters must be at least 1, not {parsed.num_iters}", field="num_iters")
    flags = command_line(given_options(parsed))
    ready: list[float] = []
    first: list[float] = []
    for _ in range(parsed.num_iters):
        began = time.perf_counter()
        with OwnServer(flags) as server:
            ready.append(asyncio.run(_first_token(server)))
            first.append(time.perf_counter() - began)
    figures = {"total_startup_times": ready, "first_token_times": first}
    means = {"avg_startup_time": statistics.fmean(ready), "avg_first_token_time": statistics.fmean(first)}
    save(parsed.output_json, figures | means)
    show("seconds from the command", means | {"best_startup_time": min(ready), "best_first_token_time": min(first)})
    return 0


async def _first_token(server: OwnServer) -> float:
    """Wait until the server is ready, ask for one token, and return the seconds to ready."""
    seconds = await server.ready()
    async with httpx.AsyncClient(timeout=600.0) as http:
        answer = await http.post(f"{server.url}/v1/completions", json={"prompt": [1000], "max_tokens": 1})
    if answer.status_code != 200:
        raise GenerationError(f"the server answered with status {answer.status_code}: {answer.text}")
    return seconds
