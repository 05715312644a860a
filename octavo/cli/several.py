"""`octavo serve A B`: several models behind one server, each with an engine of its own, started on its first use."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Sequence

from octavo import launch
from octavo.base.errors import ConfigError
from octavo.checkpoint.open import open_checkpoint
from octavo.config.engine import EngineConfig
from octavo.config.serve import ServeConfig
from octavo.frontend.server.app import create_library
from octavo.frontend.server.serve import bind, serve_http


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
