"""What a server tells of itself, and what its operator may ask: /health, /live, /load, /version, /metrics, /stats, /v1/models …

And its pages: the playground at /, and /docs with its /openapi.json. They need nothing from elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.base.errors import EngineDeadError
from octavo.base.version import VERSION
from octavo.frontend.server.context import ServerContext, context_of
from octavo.frontend.server.errors import route_path
from octavo.frontend.server.routes.answers import json_response
from octavo.observe.metrics import CONTENT_TYPE
from octavo.protocol.output import EngineStats

# Path -> file and its type.
PAGES = {
    "/": ("playground.html", "text/html"),
    "/docs": ("docs.html", "text/html"),
    "/openapi.json": ("openapi.json", "application/json"),
}
# Nothing is loaded from elsewhere, nothing is sent elsewhere, and no other page shows this one inside itself.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE_HEADERS = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}


async def health(request: Request) -> Response:
    """200 when requests are served; 503 while the engine loads, is started again or is dead, and when the server drains."""
    service = context_of(request).service
    problem = service.problem()
    if problem is not None:
        raise problem
    if not service.healthy:
        raise EngineDeadError("the engine gives no sign of life")
    return json_response({"status": "ok"})


async def live(request: Request) -> Response:
    """200 as long as it helps to wait; 503 once the engine is dead for good, or gives no sign of life."""
    if not context_of(request).service.alive:
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


async def stats(request: Request) -> Response:
    """The engine's gauges and totals as they are, and how many requests are under way."""
    service = context_of(request).service
    return json_response({"server_load": service.num_open, **msgspec.to_builtins(service.stats() or EngineStats())})


async def reset_prefix_cache(request: Request) -> Response:
    """Forget cached prefixes. Running requests keep their pages; nobody can find them any more."""
    return json_response({"success": await context_of(request).service.reset_prefix_cache()})


async def list_models(request: Request) -> Response:
    """List every name of the model, or all models."""
    context = context_of(request)
    return json_response({"object": "list", "data": [_card(context, name) for name in context.model_names]})


async def show_model(request: Request) -> Response:
    """Show one of the names; 404 for another."""
    context = context_of(request)
    return json_response(_card(context, context.served_name(request.path_params["model"])))


async def page(request: Request) -> Response:
    """A file that lies beside this one."""
    name, kind = PAGES[route_path(request.scope)]
    return Response(Path(__file__).with_name(name).read_bytes(), headers=_PAGE_HEADERS, media_type=kind)


def _card(context: ServerContext, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": context.created,
        "owned_by": "octavo",
        "root": context.model_names[0],
        "parent": None,
        "max_model_len": context.service.max_model_len,
    }
