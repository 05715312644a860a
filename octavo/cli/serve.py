"""`octavo serve MODEL`: a model over HTTP, the engine in a process of its own."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Sequence

from octavo import launch
from octavo.base.logging import get_logger
from octavo.config.engine import EngineConfig
from octavo.config.flags import (
    FlagParser,
    add_engine_flags,
    add_model,
    add_serve_flags,
    engine_config,
    given_options,
    serve_config,
)
from octavo.config.serve import ServeConfig
from octavo.engine.spawn import EngineProcess
from octavo.frontend.server.app import create_app
from octavo.frontend.server.serve import bind, serve_http

_log = get_logger(__name__)
# Exit status of a server that was told to end before it was ready.
_ENDED_EARLY = 128 + signal.SIGTERM


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or Ctrl-C; return the exit status."""
    parser = FlagParser(prog="octavo serve", description="Serve a model over HTTP, with OpenAI's routes.")
    add_model(parser)
    add_engine_flags(parser)
    add_serve_flags(parser)
    parsed = parser.parse_args(arguments)
    engine, server = engine_config(parsed), serve_config(parsed)
    if "model" not in given_options(parsed):
        # It may have been meant, and taken for one more value of the flag before it.
        _log.warning("no MODEL was given: serving the embedded one, demo")
    taken = bind(server)
    process = launch.start_engine(engine)
    return asyncio.run(_serve(engine, server, taken, process))


async def _serve(engine: EngineConfig, server: ServeConfig, taken: socket.socket, process: EngineProcess) -> int:
    loading = asyncio.ensure_future(launch.connect(engine, process, max_logprobs=server.max_logprobs))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, loading.cancel)
    try:
        service = await loading
    except asyncio.CancelledError:
        return _ENDED_EARLY
    try:
        app = create_app(service, server, model=engine.model.model)
        return await serve_http(app, service, server, taken)
    finally:
        await service.close()
