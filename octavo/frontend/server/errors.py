"""Every error in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from octavo.base.errors import NotFoundError, OctavoError, QueueFullError, UnsupportedError
from octavo.base.logging import get_logger

_logger = get_logger(__name__)
_HTTP_KINDS = {404: "not_found_error", 405: "invalid_request_error", 413: "invalid_request_error"}


class BodyTooLargeError(OctavoError):
    """A request body over the server's limit."""

    status = 413
    kind = "invalid_request_error"


class AuthenticationError(OctavoError):
    """No key of the server's was sent."""

    status = 401
    kind = "authentication_error"


def error_object(error: OctavoError) -> dict[str, Any]:
    """Return the error as the object that OpenAI's clients read."""
    return _shape(error.message, error.kind, error.field, _code(error))


def error_response(error: OctavoError) -> Response:
    """Return the error as an HTTP answer; errors that pass carry Retry-After."""
    headers: dict[str, str] = {}
    if isinstance(error, QueueFullError):
        headers["Retry-After"] = str(error.retry_after)
    elif error.status == 503:
        headers["Retry-After"] = "1"
    elif error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return _response(error_object(error), error.status, headers)


async def on_octavo_error(request: Request, error: Exception) -> Response:
    """Answer an error that was raised on purpose."""
    assert isinstance(error, OctavoError)
    if error.status == 500:
        _logger.warning("%s %s: %s", request.method, request.url.path, error.message)
    return error_response(error)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer an unknown route or a wrong method."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    message = error.detail
    if error.status_code == 404:
        message = f"no route {path}"
    elif error.status_code == 405:
        message = f"{request.method} is not allowed on {path}"
    body = _shape(message, _HTTP_KINDS.get(error.status_code, "invalid_request_error"), None, None)
    return _response(body, error.status_code, dict(error.headers or {}))


async def on_defect(request: Request, error: Exception) -> Response:
    """Answer an error that nobody foresaw; its text stays in the log (Starlette raises it again, uvicorn logs it)."""
    _logger.error("%s %s failed: %r", request.method, request.url.path, error)
    return _response(_shape("internal error; the server's log has the details", "internal_error", None, None), 500, {})


def _shape(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _code(error: OctavoError) -> str | None:
    if isinstance(error, UnsupportedError):
        return "unsupported_parameter"
    if isinstance(error, AuthenticationError):
        return "invalid_api_key"
    return "model_not_found" if isinstance(error, NotFoundError) and error.field == "model" else None


def _response(body: dict[str, Any], status: int, headers: dict[str, str]) -> Response:
    return Response(msgspec.json.encode(body), status_code=status, headers=headers, media_type="application/json")
