"""POST /reset_prefix_cache: what an operator may ask of a running server."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from octavo.frontend.server.context import context_of
from octavo.frontend.server.routes.answers import json_response


async def reset_prefix_cache(request: Request) -> Response:
    """Forget cached prefixes. Running requests keep their pages; nobody can find them any more."""
    return json_response({"success": await context_of(request).service.reset_prefix_cache()})
