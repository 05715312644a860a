"""GET /: the playground, one HTML file without anything from elsewhere."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

_PLAYGROUND = Path(__file__).parent.with_name("playground.html")
# Nothing is loaded from elsewhere, nothing is sent elsewhere, and no other page shows this one inside itself.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'unsafe-inline'",
        "style-src 'unsafe-inline'",
        "img-src data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)


async def playground(_request: Request) -> Response:
    """The page to try the models with."""
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
    return Response(_PLAYGROUND.read_bytes(), headers=headers, media_type="text/html")
