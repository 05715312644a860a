"""What a streamed token costs the front, from the engine's message to the socket, with an engine that does nothing else.

    python -m benchmarks.serve.front [--streams 256] [--tokens 100] [--interval-ms 0] [--route completions]

Three processes: an engine that answers every open stream with one token a message, the front, and a client that only reads.
The engine waits until all streams are open, so that what is timed is the streaming alone. With an interval it sends a message
every so many milliseconds, and the front keeps up with single tokens; with 0 it sends as fast as it can, and what a slow
front finds waiting is sent together. `us_per_token` is the front's processor time, not the clock's: it holds on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np

from octavo import launch
from octavo.config.engine import EngineConfig
from octavo.config.model import ModelConfig
from octavo.config.serve import ServeConfig
from octavo.engine.process import RunningEngine
from octavo.engine.spawn import EngineProcess
from octavo.frontend.server.app import create_app
from octavo.frontend.server.serve import bind, serve_http, url_of
from octavo.protocol.arrays import int32, int64
from octavo.protocol.output import EngineStats, Finish, Ready, Start, TokenDelta
from octavo.protocol.request import Abort, FrontMessage, Request

_MAX_LEN = 65536
# Ids of ordinary words of the embedded model.
_IDS = np.arange(1000, 2000, dtype=np.int32)


class FloodCore:
    """Gives every request one token a step, once there are so many of them. interval: seconds between two steps."""

    def __init__(self, gate: int, interval: float) -> None:
        self._gate = gate
        self._interval = interval
        self._lengths: dict[int, int] = {}
        self._position = 0
        self._next = 0.0

    @property
    def busy(self) -> bool:
        """Whether all have come."""
        return self._position > 0 or len(self._lengths) >= self._gate

    def handle(self, message: FrontMessage) -> None:
        """Take a request, or drop one."""
        if isinstance(message, Request):
            self._lengths[message.key] = message.max_tokens
        elif isinstance(message, Abort):
            for key in message.keys.tolist():
                self._lengths.pop(key, None)

    def stats(self) -> EngineStats:
        """Return how many run."""
        return EngineStats(num_running=len(self._lengths), num_steps=self._position)

    def step(self) -> TokenDelta | None:
        """Return a token of every request; the last one's finish with it."""
        if not self.busy:
            return None
        while (wait := self._next - time.monotonic()) > 0:
            time.sleep(wait)
        self._next = time.monotonic() + self._interval
        keys, place, count = list(self._lengths), self._position, len(self._lengths)
        self._position = place + 1
        ended = [key for key in keys if self._lengths[key] <= place + 1]
        for key in ended:
            del self._lengths[key]
        if not self._lengths:
            self._position = 0
        starts = () if place else tuple(Start(key=key, choice=0, num_cached=0, time=time.time()) for key in keys)
        return TokenDelta(
            keys=int64(keys),
            choices=np.zeros(count, np.int32),
            firsts=np.full(count, place, np.int32),
            offsets=int32(range(count + 1)),
            ids=_IDS[(np.arange(count) * 37 + place) % len(_IDS)],
            starts=starts,
            finishes=tuple(Finish(key=key, choice=0, num_tokens=place + 1, reason="length") for key in ended),
            stats=self.stats(),
        )


def build_flood(options: bytes) -> RunningEngine:
    """Make the engine: the factory of its process."""
    gate, interval = msgspec.msgpack.decode(options)
    ready = Ready(max_model_len=_MAX_LEN, num_pages=1, page_bytes=1)
    return RunningEngine(core=FloodCore(gate, interval), ready=ready, shutdown=lambda: None)


_BODIES: dict[str, dict[str, Any]] = {
    "completions": {"prompt": "Hi", "ignore_eos": True},
    "chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True},
    "messages": {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]},
}


async def read_streams(url: str, route: str, streams: int, tokens: int) -> None:
    """Open so many streams, read them to their ends and print what came: the client's process."""
    body = json.dumps({**_BODIES[route], "max_tokens": tokens, "stream": True}).encode()
    head = f"POST /v1/{route} HTTP/1.1\r\nHost: front\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    address = urlsplit(url)

    async def read() -> tuple[int, int]:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(head.encode() + body)
        events = size = 0
        while data := await reader.read(65536):
            events, size = events + data.count(b"data: "), size + len(data)
        writer.close()
        return events, size

    counts = await asyncio.gather(*(read() for _ in range(streams)))
    print(json.dumps({"events": sum(c[0] for c in counts), "bytes": sum(c[1] for c in counts)}))


async def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one run."""
    route, streams, tokens = asked.route, asked.streams, asked.tokens
    options = msgspec.msgpack.encode([streams, asked.interval_ms / 1000])
    config = ServeConfig(port=0, disable_log_stats=True)
    taken = bind(config)
    process = EngineProcess("benchmarks.serve.front:build_flood", options)
    service = await launch.connect(EngineConfig(model=ModelConfig(model=asked.model)), process)
    app = create_app(service, config, model="demo")
    serving = asyncio.ensure_future(serve_http(app, service, config, taken))
    command = [sys.executable, "-m", "benchmarks.serve.front", "--client", url_of(taken), "--route", route]
    sizes = ["--streams", str(streams), "--tokens", str(tokens)]
    client = await asyncio.create_subprocess_exec(*command, *sizes, stdout=asyncio.subprocess.PIPE)
    while service.num_open < streams:
        await asyncio.sleep(0.001)
    time.sleep(asked.stall)
    profiler = cProfile.Profile(time.process_time)
    with profiler if asked.profile else contextlib.nullcontext():
        processor, clock, system = time.process_time(), time.perf_counter(), os.times().system
        while service.num_open:
            await asyncio.sleep(0.01)
        processor, clock = time.process_time() - processor, time.perf_counter() - clock
        system = os.times().system - system
    if asked.profile:
        profiler.dump_stats(asked.profile)
    told, _ = await client.communicate()
    os.kill(os.getpid(), signal.SIGTERM)
    status = await serving
    await service.close()
    figures = json.loads(told)
    total = streams * tokens
    return {
        "route": route,
        "streams": streams,
        "tokens": total,
        "us_per_token": round(processor / total * 1e6, 1),
        "us_per_event": round(processor / figures["events"] * 1e6, 1),
        "of_it_in_system": round(system / total * 1e6, 1),
        "tokens_per_second": round(total / clock),
        "memory_mb": _most_memory() // 1024,
        "status": status,
        **figures,
    }


def _most_memory() -> int:
    """Return the most KiB that this process has had; what `getrusage` says of it begins with its parent's."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="whose tokenizer is used")
    parser.add_argument("--route", default="completions", choices=_BODIES)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=100, help="of each stream")
    parser.add_argument("--interval-ms", type=float, default=0.0, help="between two messages of the engine")
    parser.add_argument(
        "--stall", type=float, default=0.0, help="seconds that the front does nothing once all are open"
    )
    parser.add_argument("--profile", help="file for cProfile's figures")
    parser.add_argument("--client", help="URL: be the client")
    asked = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * asked.streams + 256)), hard))
    if asked.client:
        asyncio.run(read_streams(asked.client, asked.route, asked.streams, asked.tokens))
        return
    print(json.dumps(asyncio.run(measure(asked))), flush=True)


if __name__ == "__main__":
    main()
