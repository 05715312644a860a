"""API keys: who sends none of them gets 401 on every route but the ones that say whether the server lives, and its pages.

OpenAI's clients send them as `Authorization: Bearer KEY`, Anthropic's as `X-Api-Key: KEY`. What an operator may ask has keys of
its own, which open the rest too; where there are only others, nothing opens it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.base.errors import OctavoError
from octavo.frontend.server.errors import AuthenticationError, ForbiddenError, error_response, route_path
from octavo.frontend.server.health import PAGES

# Pages show nothing without a key: what they call wants one.
OPEN = ("/health", "/ping", "/ready", "/live", *PAGES)
ADMIN = ("/reset_prefix_cache", "/stats")
_POLICY_VIOLATION = 1008


class ApiKeys:
    """ASGI middleware. keys: any of them opens the server; none, and it is open. admin_keys: open the operator's routes too."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], admin_keys: Sequence[str] = ()) -> None:
        assert keys or admin_keys, "without keys there is nothing to guard"
        self._app = app
        self._digests = [_digest(key) for key in keys]
        self._admin_digests = [_digest(key) for key in admin_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 401 or 403."""
        error = None if scope["type"] == "lifespan" else self._error(scope)
        if error is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            await error_response(error, route_path(scope))(scope, receive, send)

    def _error(self, scope: Scope) -> OctavoError | None:
        path = route_path(scope)
        if path in OPEN:
            return None
        admin = _known(scope, self._admin_digests)
        if path in ADMIN:
            if admin:
                return None
            if not self._admin_digests:
                return ForbiddenError("this route has a key of its own: start the server with --admin-api-key")
            return AuthenticationError("a valid admin key is needed: send the header Authorization: Bearer KEY")
        if admin or not self._digests or _known(scope, self._digests):
            return None
        return AuthenticationError("a valid key is needed: send the header Authorization: Bearer KEY")


def _known(scope: Scope, digests: Sequence[bytes]) -> bool:
    headers = Headers(scope=scope)
    kind, _, key = headers.get("authorization", "").partition(" ")
    given = [_digest(headers.get("x-api-key", "")), _digest(key.strip() if kind.lower() == "bearer" else "")]
    # All are compared, each in constant time: how long it takes says nothing about any key.
    matches = [hmac.compare_digest(one, digest) for digest in digests for one in given]
    return any(matches)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
