"""API keys: who sends none of them gets 401 on every route but the ones that say whether the server lives.

OpenAI's clients send them as `Authorization: Bearer KEY`, Anthropic's as `X-Api-Key: KEY`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.frontend.server.errors import AuthenticationError, error_response

_OPEN = ("/health", "/ping")
_POLICY_VIOLATION = 1008


class ApiKeys:
    """ASGI middleware. keys: any of them opens the server; there is at least one."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        assert keys, "without keys there is nothing to guard"
        self._app = app
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 401."""
        if scope["type"] == "lifespan" or scope["path"] in _OPEN or self._known(scope):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return
        error = AuthenticationError("a valid key is needed: send the header Authorization: Bearer KEY")
        await error_response(error, scope["path"])(scope, receive, send)

    def _known(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        kind, _, key = headers.get("authorization", "").partition(" ")
        given = [_digest(headers.get("x-api-key", "")), _digest(key.strip() if kind.lower() == "bearer" else "")]
        # All are compared, each in constant time: how long it takes says nothing about any key.
        matches = [hmac.compare_digest(one, digest) for digest in self._digests for one in given]
        return any(matches)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
