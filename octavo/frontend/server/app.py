"""The HTTP application: the table of routes and how errors are answered."""

from __future__ import annotations

import time

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.base.errors import OctavoError
from octavo.config.serve import ServeConfig
from octavo.frontend.server.context import ServerContext
from octavo.frontend.server.disconnect import ClientGoneError
from octavo.frontend.server.errors import on_defect, on_http_error, on_octavo_error
from octavo.frontend.server.health import health, metrics, version
from octavo.frontend.server.routes.admin import reset_prefix_cache
from octavo.frontend.server.routes.chat import chat_completions
from octavo.frontend.server.routes.completions import completions
from octavo.frontend.server.routes.models import list_models, show_model
from octavo.frontend.service import TextService
from octavo.observe.metrics import ServerMetrics


def create_app(service: TextService, config: ServeConfig, *, model: str) -> Starlette:
    """Return the application that serves `service`. model: its name where the configuration gives none."""
    names = config.served_model_name or (model,)
    routes = [
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", chat_completions, methods=["POST"]),
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{model:path}", show_model, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/version", version, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/reset_prefix_cache", reset_prefix_cache, methods=["POST"]),
    ]
    handlers = {
        OctavoError: on_octavo_error,
        HTTPException: on_http_error,
        ClientGoneError: _on_client_gone,
        Exception: on_defect,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    app.state.context = ServerContext(
        service=service,
        config=config,
        model_names=names,
        metrics=ServerMetrics(names[0], service.stats),
        created=int(time.time()),
    )
    return app


async def _on_client_gone(_request: Request, _error: Exception) -> Response:
    # Nobody reads it; 499 is what logs and proxies know.
    return Response(status_code=499)
