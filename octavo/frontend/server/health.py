"""GET /health, /ping, /load, /version and /metrics: for load balancers, people and Prometheus."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from octavo.base.errors import EngineDeadError, ShuttingDownError
from octavo.base.version import VERSION
from octavo.frontend.server.context import context_of
from octavo.frontend.server.routes.answers import json_response
from octavo.observe.metrics import CONTENT_TYPE


async def health(request: Request) -> Response:
    """200 when requests are served; 503 when the engine is dead or the server drains."""
    service = context_of(request).service
    if service.draining:
        raise ShuttingDownError("the server is shutting down")
    if not service.healthy:
        raise EngineDeadError("the engine is dead; restart the server")
    return json_response({"status": "ok"})


async def load(request: Request) -> Response:
    """How many requests are under way."""
    return json_response({"server_load": context_of(request).service.num_open})


async def version(_request: Request) -> Response:
    """Octavo's version."""
    return json_response({"version": VERSION})


async def metrics(request: Request) -> Response:
    """All metrics in Prometheus' text format."""
    return Response(context_of(request).metrics.render(), headers={"Content-Type": CONTENT_TYPE})
