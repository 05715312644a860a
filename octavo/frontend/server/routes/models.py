"""GET /v1/models and /v1/models/{id}: what is served here."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from octavo.frontend.server.context import ServerContext, context_of
from octavo.frontend.server.routes.answers import json_response


async def list_models(request: Request) -> Response:
    """List every name of the model."""
    context = context_of(request)
    return json_response({"object": "list", "data": [_card(context, name) for name in context.model_names]})


async def show_model(request: Request) -> Response:
    """Show one name of the model; 404 if it has no such name."""
    context = context_of(request)
    name = context.served_name(request.path_params["model"])
    return json_response(_card(context, name))


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
