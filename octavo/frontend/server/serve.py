"""The listening socket, the HTTP server on it, and its orderly end.

The port is taken before the model loads, so that a port in use is an error within the first second; connections are
refused until the server is ready, so a client that polls /health sees no half-started server.

The first SIGTERM or SIGINT drains: new requests get 503, running ones have `shutdown_timeout` seconds. The second ends the
server at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Generator

import uvicorn
from starlette.applications import Starlette

from octavo.base.errors import ConfigError
from octavo.base.logging import get_logger
from octavo.config.serve import ServeConfig
from octavo.frontend.service import TextService

_logger = get_logger(__name__)
_BACKLOG = 2048
# Seconds to hand out the last answers after the service has drained.
_FLUSH = 5


def bind(config: ServeConfig) -> socket.socket:
    """Take the port, without listening yet; raises ConfigError if it is in use or the address is not ours."""
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


def url_of(taken: socket.socket) -> str:
    """Return the address of a bound socket as a URL."""
    host, port = taken.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve_http(app: Starlette, service: TextService, config: ServeConfig, taken: socket.socket) -> int:
    """Serve until a signal; return the exit status: 0 after an orderly end, 1 if a second signal cut it short."""
    server = _Server(
        uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=_FLUSH,
        )
    )
    loop = asyncio.get_running_loop()
    ending: list[asyncio.Task[None]] = []

    def on_signal() -> None:
        if ending:
            _logger.warning("stopping at once")
            server.force_exit = True
            server.should_exit = True
        else:
            ending.append(loop.create_task(_drain(server, service, config.shutdown_timeout)))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        _logger.info("ready on %s", url_of(taken))
        await server.serve(sockets=[taken])
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        for task in ending:
            task.cancel()
    return 1 if server.force_exit else 0


async def _drain(server: uvicorn.Server, service: TextService, timeout: float) -> None:
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
