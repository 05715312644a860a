"""The processes of `octavo serve` that answer HTTP: one, or with `--api-server-count N` so many, on one port and for one engine.

With several, the process that was started owns the engine and the fronts, and only watches: a signal ends the fronts in order, a
second one at once. A front that dies ends the server, because the engine would wait for it.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec

from octavo import launch
from octavo.base.errors import OctavoError
from octavo.base.logging import get_logger
from octavo.config.engine import EngineConfig
from octavo.config.serve import ServeConfig
from octavo.engine.child import Child, Parent
from octavo.engine.spawn import EngineElsewhere, EngineProcess, Restarts
from octavo.frontend.server.app import create_app
from octavo.frontend.server.serve import serve_http, url_of
from octavo.observe.metrics import ServerMetrics

_log = get_logger(__name__)
_WATCH_SECONDS = 0.1
_PUBLISH_SECONDS = 0.5
# Exit status of a server that was told to end before it was ready.
_ENDED_EARLY = 128 + signal.SIGTERM


class FrontStart(msgspec.Struct, frozen=True, kw_only=True):
    """What a front is told. home: of the engine. descriptor: of the socket that all fronts listen on."""

    engine: EngineConfig
    server: ServeConfig
    home: str
    front: int
    descriptor: int


def run_fronts(engine: EngineConfig, server: ServeConfig, taken: socket.socket, process: EngineProcess) -> int:
    """Serve until a signal; return the exit status."""
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: signals.append(number))
    fd, home = taken.fileno(), process.home
    starts = [
        FrontStart(engine=engine, server=server, home=home, front=index, descriptor=fd)
        for index in range(server.api_server_count)
    ]
    fronts = [Child("octavo.cli.fronts", msgspec.msgpack.encode(start), "a front", files=(fd,)) for start in starts]
    taken.close()  # A port that its fronts have left is free.
    restarts, supervised, restart_at, lost = _restarts(server), server.restart_policy != "never", math.inf, False
    try:
        while any(front.status is None for front in fronts):
            time.sleep(_WATCH_SECONDS)
            ends = bool(signals) or any(front.status is not None for front in fronts)
            if not lost and restart_at == math.inf and (ending := process.ending()) is not None:
                _log.error("%s", ending)
                process.end()  # Its folder goes, and the fronts see that.
                delay = restarts.delay()
                lost, restart_at = delay is None, time.monotonic() + (delay or 0.0)
            if not (lost or ends) and time.monotonic() >= restart_at:
                restart_at = math.inf
                process.restart()
            for front in fronts:
                if len(signals) > 1:
                    front.kill()
                elif ends or (lost and supervised):
                    front.ask()
    finally:
        process.stop()
    given_up = lost and supervised and not signals
    return max(int(given_up), *(abs(front.status or 0) for front in fronts))


def _restarts(server: ServeConfig) -> Restarts:
    return Restarts(server.max_restarts if server.restart_policy != "never" else 0)


async def serve_front(
    engine: EngineConfig, server: ServeConfig, taken: socket.socket, process: EngineProcess | EngineElsewhere
) -> int:
    """Answer HTTP in front of an engine, until a signal; return the exit status."""
    opening = asyncio.ensure_future(launch.open_service(engine, process, max_logprobs=server.max_logprobs))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, opening.cancel)
    try:
        service = await opening
    except asyncio.CancelledError:
        return _ENDED_EARLY
    service.restarts = server.restart_policy != "never"
    app = create_app(service, server, model=engine.model.model)
    metrics: ServerMetrics = app.state.context.metrics
    ready = asyncio.Event()

    def on_ready() -> None:
        ready.set()
        metrics.num_restarts = process.generation
        _log.info("ready on %s", url_of(taken, "https" if server.ssl_certfile else "http"))

    tasks: list[asyncio.Task[None]] = []
    if server.api_server_count > 1:
        metrics.share(Path(process.home), process.front)
        tasks.append(asyncio.create_task(_publish(metrics)))
    restarts = _restarts(server) if isinstance(process, EngineProcess) else None
    tasks.append(asyncio.create_task(launch.keep_running(service, process, restarts, on_ready)))
    try:
        status = await serve_http(app, service, server, taken, tasks[-1])
        return status if ready.is_set() else _ENDED_EARLY
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await service.close()


async def _publish(metrics: ServerMetrics) -> None:
    while True:
        await asyncio.sleep(_PUBLISH_SECONDS)
        metrics.publish()


async def _serve(start: FrontStart, parent: Parent) -> int:
    loop = asyncio.get_running_loop()

    def parent_gone() -> None:
        loop.remove_reader(parent.descriptor)
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(parent.descriptor, parent_gone)
    taken = socket.socket(fileno=start.descriptor)
    return await serve_front(start.engine, start.server, taken, EngineElsewhere(start.home, start.front))


def main() -> int:
    """Be one front, for the process that started it; returns the exit status."""
    parent = Parent()
    start = msgspec.msgpack.decode(parent.read_start(), type=FrontStart)
    try:
        return asyncio.run(_serve(start, parent))
    except OctavoError as error:
        if start.front == 0:
            _log.error("%s", error.message)
        return 1


if __name__ == "__main__":
    sys.exit(main())
