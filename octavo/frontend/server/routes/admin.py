"""POST /reset_prefix_cache: what an operator may ask of a running server."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.frontend.server.context import context_of
from octavo.frontend.server.routes.answers import json_response


async def reset_prefix_cache(request: Request) -> Response:
    """Forget cached prefixes: 200, or 409 when running requests hold them and nothing was changed."""
    done = await context_of(request).service.reset_prefix_cache()
    if done:
        return json_response({"success": True})
    message = "running requests hold cached pages; nothing was reset"
    error = {"message": message, "type": "conflict_error", "param": None, "code": None}
    body = msgspec.json.encode({"success": False, "error": error})
    return Response(body, status_code=409, media_type="application/json")
