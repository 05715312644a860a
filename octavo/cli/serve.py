"""`octavo serve MODEL`: a model over HTTP, the engine in a process of its own."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence

from octavo import launch
from octavo.base.env import read_env
from octavo.base.logging import get_logger
from octavo.cli.fronts import run_fronts, serve_front
from octavo.cli.several import serve_several
from octavo.config.flags import (
    FlagParser,
    add_engine_flags,
    add_model,
    add_serve_flags,
    engine_config,
    given_options,
    serve_config,
)
from octavo.frontend.server.serve import bind

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
