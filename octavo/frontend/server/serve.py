"""The listening socket, the HTTP server on it, and its orderly end.

The port is taken before the model loads, so that a port in use is an error within the first second. As soon as the tokenizer is
read the probes answer: /live with 200, /ready and every request with 503 until the engine is loaded.

The first SIGTERM or SIGINT drains: new requests get 503, running ones have `shutdown_timeout` seconds. The second ends the
server at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import signal
import socket
import ssl
import time
from collections.abc import Callable, Generator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from octavo.base.errors import ConfigError
from octavo.base.logging import get_logger
from octavo.config.serve import ServeConfig
from octavo.frontend.server.shelf import Shelf
from octavo.frontend.service import TextService
from octavo.protocol.output import EngineStats

_logger = get_logger(__name__)
_BACKLOG = 2048
# Seconds to hand out the last answers after the service has drained.
_FLUSH = 5


def bind(config: ServeConfig) -> socket.socket:
    """Take the port or the Unix socket, without listening yet; raises ConfigError if it is in use or not ours to take.

    Keys and certificates are tried too, so that a wrong one is an error before the model loads.
    """
    _check_https(config)
    if config.uds is not None:
        return _bind_unix(config.uds)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"host {config.host!r} is not an address: {error}", field="host") from error
    taken = socket.socket(family, kind, protocol)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind(address)
    except OSError as error:
        taken.close()
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {error.strerror}", field="port") from error
    return taken


def _check_https(config: ServeConfig) -> None:
    if config.ssl_certfile is None:
        if config.ssl_keyfile is not None:
            raise ConfigError("ssl_keyfile needs ssl_certfile", field="ssl_certfile")
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile)
        if config.ssl_ca_certs is not None:
            context.load_verify_locations(config.ssl_ca_certs)
        if config.ssl_ciphers is not None:
            context.set_ciphers(config.ssl_ciphers)
    except OSError as error:
        raise ConfigError(f"HTTPS cannot be served: {error}", field="ssl_certfile") from error


def _bind_unix(path: str) -> socket.socket:
    """Take a path; what a dead server left there is replaced, a living one's is not."""
    taken = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if Path(path).is_socket() and taken.connect_ex(path) != 0:
            Path(path).unlink()
        taken.bind(path)
    except OSError as error:
        taken.close()
        raise ConfigError(f"cannot listen on {path}: {error.strerror or error}", field="uds") from error
    return taken


def url_of(taken: socket.socket, scheme: str = "http") -> str:
    """Return the address of a bound socket as a URL."""
    if taken.family == socket.AF_UNIX:
        return f"{scheme}+unix://{taken.getsockname()}"
    host, port = taken.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def serve_http(
    app: Starlette,
    service: TextService | Shelf,
    config: ServeConfig,
    taken: socket.socket,
    running: asyncio.Task[None] | None = None,
) -> int:
    """Serve until a signal; return the exit status: 0 after an orderly end, 1 if a second signal cut it short.

    running: watches over the engine; what it raises ends the server, and is raised.
    """
    server = _Server(_uvicorn_config(app, config))

    def on_running_ended(task: asyncio.Task[None]) -> None:
        server.should_exit |= not task.cancelled() and task.exception() is not None

    if running is not None:
        running.add_done_callback(on_running_ended)
    loop = asyncio.get_running_loop()
    ending: list[asyncio.Task[None]] = []
    logging = None
    if not config.disable_log_stats:
        logging = loop.create_task(log_activity(Activity(service.stats), config.log_stats_interval))

    def on_signal() -> None:
        if ending:
            _logger.warning("stopping at once")
            server.force_exit = True
            server.should_exit = True
        else:
            ending.append(loop.create_task(_drain(server, service, config.shutdown_timeout)))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    thresholds = gc.get_threshold()
    try:
        _logger.info("listening on %s", url_of(taken, "https" if config.ssl_certfile else "http"))
        gc.freeze()
        gc.set_threshold(10_000, *thresholds[1:])  # A step's news to all streams are no reason to look for garbage.
        await server.serve(sockets=[taken])
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        for task in (*ending, *([logging] if logging else [])):
            task.cancel()
        if config.uds is not None:
            Path(config.uds).unlink(missing_ok=True)
    if running is not None and running.done():
        running.result()
    return 1 if server.force_exit else 0


def _uvicorn_config(app: Starlette, config: ServeConfig) -> uvicorn.Config:
    from octavo.frontend.server.http import LimitedHttpProtocol  # The engine is started before it is read.

    return uvicorn.Config(
        app,
        # What makes the class that is asked for.
        http=functools.partial(LimitedHttpProtocol, config.read_timeout, config.write_timeout, []),  # pyright: ignore[reportArgumentType]
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_FLUSH,
        timeout_keep_alive=config.timeout_keep_alive,
        root_path=config.root_path,
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        ssl_ca_certs=config.ssl_ca_certs,
        ssl_cert_reqs=config.ssl_cert_reqs,
        ssl_ciphers=config.ssl_ciphers,  # pyright: ignore[reportArgumentType]  # None in newer versions only
        h11_max_incomplete_event_size=config.h11_max_incomplete_event_size,
    )


async def _drain(server: uvicorn.Server, service: TextService | Shelf, timeout: float) -> None:
    _logger.info("shutting down: %d running requests have %g seconds", service.num_open, timeout)
    if not await service.drain(timeout):
        _logger.warning("requests that did not finish in time were aborted")
    server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers, which would end the process by the signal instead of with status 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to `serve_http`."""
        yield


class Activity:
    """What happened between two looks. stats: returns the engine's latest totals, None before its first step."""

    def __init__(self, stats: Callable[[], EngineStats | None]) -> None:
        self._stats = stats
        self._last = EngineStats()
        self._looked = time.monotonic()

    def line(self, now: float) -> str | None:
        """Return what happened since the last call, in words; None if nothing did and nothing waits. now: monotonic seconds."""
        stats = self._stats() or EngineStats()
        last, seconds = self._last, max(now - self._looked, 1e-9)
        self._last, self._looked = stats, now
        if stats.num_steps == last.num_steps and not stats.num_running and not stats.num_waiting:
            return None
        prompt, generated = stats.prompt_tokens - last.prompt_tokens, stats.generated_tokens - last.generated_tokens
        used = stats.used_pages / stats.num_pages if stats.num_pages else 0.0
        queries = stats.prefix_queries - last.prefix_queries
        hits = f", {(stats.prefix_hits - last.prefix_hits) / queries:.0%} of prompts cached" if queries else ""
        return (
            f"{stats.num_running} running, {stats.num_waiting} waiting, cache {used:.0%} used; "
            f"{prompt / seconds:,.1f} prompt and {generated / seconds:,.1f} output tokens/s{hits}"
        )


async def log_activity(activity: Activity, interval: float) -> None:
    """Log what happens every `interval` seconds, until cancelled."""
    while True:
        await asyncio.sleep(interval)
        line = activity.line(time.monotonic())
        if line is not None:
            _logger.info("%s", line)
