"""Every error in the shape of the protocol that its route speaks: OpenAI's, unless the path is another's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from octavo.base.errors import InvalidRequestError, NotFoundError, OctavoError, UnsupportedError
from octavo.base.logging import get_logger

_logger = get_logger(__name__)


class BodyTooLargeError(OctavoError):
    """A request body over the server's limit."""

    status = 413
    kind = "invalid_request_error"


class AuthenticationError(OctavoError):
    """No key of the server's was sent."""

    status = 401
    kind = "authentication_error"


class ForbiddenError(OctavoError):
    """What this server does for nobody, as it was started."""

    status = 403
    kind = "permission_error"


def route_path(scope: Scope) -> str:
    """Return the path of a request as routes are written, without the one that a proxy shows the server under."""
    # A route is found with the end of a line behind its path, too: `$` stands before one.
    return scope["path"].removeprefix(scope.get("root_path", "")).removesuffix("\n")


def error_object(error: OctavoError) -> dict[str, Any]:
    """Return the error as OpenAI's clients read it: `{"error": {"message", "type", "param", "code"}}`."""
    return {"error": {"message": error.message, "type": error.kind, "param": error.field, "code": _code(error)}}


def anthropic_error(error: OctavoError) -> dict[str, Any]:
    """Return the error as Anthropic's clients read it; its message names the field, for which there is no other place."""
    kind = _ANTHROPIC_KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": _with_field(error)}}


def ollama_error(error: OctavoError) -> dict[str, Any]:
    """Return the error as Ollama's clients read it."""
    return {"error": _with_field(error)}


_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
# Beginning of a path -> the shape of its errors.
_SHAPES: Mapping[str, Callable[[OctavoError], dict[str, Any]]] = {
    "/v1/messages": anthropic_error,
    "/api/": ollama_error,
}


def error_response(error: OctavoError, path: str = "") -> Response:
    """Return the error as an HTTP answer; errors that pass carry Retry-After. path: of the request, says in which shape."""
    headers: dict[str, str] = {}
    if error.status in (429, 503):
        headers["Retry-After"] = "1"
    elif error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return _response(error, error.status, headers, path)


def renamed(error: InvalidRequestError, names: Mapping[str, str]) -> InvalidRequestError:
    """Return the error with its field called as the client calls it. names: ours -> the client's."""
    field = error.field or ""
    if field not in names:
        # Of a form, errors name the part.
        field = field.partition(".")[0]
        if field != "structured_outputs" or field not in names:
            return error
    message = error.message
    if message.startswith((f"{field} ", f"{field}:", f"{field}.")):
        message = names[field] + message.removeprefix(field)
    return type(error)(message, field=names[field])


async def on_octavo_error(request: Request, error: Exception) -> Response:
    """Answer an error that was raised on purpose."""
    assert isinstance(error, OctavoError)
    if error.status == 500:
        _logger.warning("%s %s: %s", request.method, request.url.path, error.message)
    return error_response(error, route_path(request.scope))


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer an unknown route or a wrong method."""
    assert isinstance(error, HTTPException)
    path = route_path(request.scope)
    known: OctavoError = InvalidRequestError(error.detail)
    if error.status_code == 404:
        known = NotFoundError(f"no route {path}")
    elif error.status_code == 405:
        known = InvalidRequestError(f"{request.method} is not allowed on {path}")
    return _response(known, error.status_code, dict(error.headers or {}), path)


async def on_defect(request: Request, error: Exception) -> Response:
    """Answer an error that nobody foresaw; its text stays in the log (Starlette raises it again, uvicorn logs it)."""
    _logger.error("%s %s failed: %r", request.method, request.url.path, error)
    return error_response(defect(), route_path(request.scope))


def defect() -> OctavoError:
    """Return what a client hears of an error that nobody foresaw."""
    return OctavoError("internal error; the server's log has the details")


def _with_field(error: OctavoError) -> str:
    return error.message if error.field is None or error.field in error.message else f"{error.field}: {error.message}"


def _code(error: OctavoError) -> str | None:
    if isinstance(error, UnsupportedError):
        return "unsupported_parameter"
    if isinstance(error, AuthenticationError):
        return "invalid_api_key"
    return "model_not_found" if isinstance(error, NotFoundError) and error.field == "model" else None


def _response(error: OctavoError, status: int, headers: dict[str, str], path: str) -> Response:
    shape = next((shape for start, shape in _SHAPES.items() if path.startswith(start)), error_object)
    return Response(
        msgspec.json.encode(shape(error)), status_code=status, headers=headers, media_type="application/json"
    )
