"""POST /reset_prefix_cache and GET /stats: what an operator may ask of a running server."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.frontend.server.context import context_of
from octavo.frontend.server.routes.answers import json_response
from octavo.protocol.output import EngineStats


async def reset_prefix_cache(request: Request) -> Response:
    """Forget cached prefixes. Running requests keep their pages; nobody can find them any more."""
    return json_response({"success": await context_of(request).service.reset_prefix_cache()})


async def stats(request: Request) -> Response:
    """The engine's gauges and totals as they are, and how many requests are under way."""
    service = context_of(request).service
    return json_response({"server_load": service.num_open, **msgspec.to_builtins(service.stats() or EngineStats())})
