"""`octavo serve MODEL`: a model over HTTP, the engine in a process of its own; `octavo serve A B`: several behind one server."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import shlex
from collections.abc import Sequence

from octavo import launch
from octavo.base.env import read_env
from octavo.base.errors import ConfigError
from octavo.base.logging import get_logger, set_log_format
from octavo.checkpoint.open import open_checkpoint
from octavo.cli.fronts import run_fronts, serve_front
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
from octavo.frontend.server.app import create_library
from octavo.frontend.server.serve import bind, serve_http

_log = get_logger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or Ctrl-C; return the exit status."""
    parser = FlagParser(prog="octavo serve", description="Serve a model over HTTP, with OpenAI's routes.")
    add_model(parser)
    parser.add_argument("others", nargs="*", metavar="MODEL", help="further models, each loaded on its first use")
    add_engine_flags(parser)
    add_serve_flags(parser)
    parsed = parser.parse_args([*shlex.split(read_env().serve_args), *arguments])
    engine, server = engine_config(parsed), serve_config(parsed)
    if server.log_format != "auto":
        set_log_format(server.log_format)
    if "model" not in given_options(parsed):
        # It may have been meant, and taken for one more value of the flag before it.
        _log.warning("no MODEL was given: serving the embedded one, demo")
    if parsed.others:
        return serve_several(engine, server, [engine.model.model, *parsed.others])
    taken = bind(server)
    process = launch.start_engine(engine, server.api_server_count)
    if server.api_server_count > 1:
        return run_fronts(engine, server, taken, process)
    return asyncio.run(serve_front(engine, server, taken, process))


def serve_several(engine: EngineConfig, server: ServeConfig, models: Sequence[str]) -> int:
    """Serve until a signal; return the exit status. What engines are given is the same for all, but for the model."""
    if server.api_server_count > 1:
        raise ConfigError("several models have one process that answers HTTP", field="api_server_count")
    names = server.served_model_name or tuple(models)
    if len(names) != len(models) or len(set(names)) != len(names):
        raise ConfigError(f"{len(models)} models need as many different names", field="served_model_name")
    configs = [dataclasses.replace(engine, model=dataclasses.replace(engine.model, model=model)) for model in models]
    for config in configs:
        open_checkpoint(config.model)  # One that is not there is an error now.
    taken = bind(server)
    start = functools.partial(launch.start_service, max_logprobs=server.max_logprobs)
    starts = {name: functools.partial(start, config) for name, config in zip(names, configs, strict=True)}

    async def serve() -> int:
        app, shelf = create_library(starts, server, max_waiting=engine.schedule.max_num_queued_reqs)
        try:
            return await serve_http(app, shelf, dataclasses.replace(server, disable_log_stats=True), taken)
        finally:
            await shelf.close()

    return asyncio.run(serve())
