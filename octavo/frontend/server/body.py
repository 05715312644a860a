"""Request bodies: read up to the limit, decoded into a struct, with errors that name the field."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from octavo.base.errors import InvalidRequestError
from octavo.frontend.server.context import ServerContext, context_of
from octavo.frontend.server.errors import BodyTooLargeError

# In a request's scope: its body, where that was read before.
BODY = "octavo.body"
_T = TypeVar("_T")
_AT = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_MISSING = re.compile(r"Object missing required field `(.*?)`")


async def asked_of(
    request: Request, kind: type[_T], check: Callable[[bytes], None] = lambda _: None
) -> tuple[ServerContext, _T]:
    """Return who answers a request, and its body as a record of this kind; check: of its bytes, where they make one.

    Raises BodyTooLargeError, InvalidRequestError that names the field, and what `check` raises.
    """
    context = context_of(request)
    data = await read_body(request, context.config.max_body_bytes)
    body = decode_body(kind, data)
    try:
        check(data)
    except msgspec.DecodeError as error:  # In what the record has no field for.
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from error
    return context, body


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body; raises BodyTooLargeError beyond `limit` bytes without reading on."""
    if BODY in request.scope:
        return request.scope[BODY]
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            chunks.append(chunk)
    except ClientDisconnect as error:
        raise InvalidRequestError("the client left before its request was complete") from error
    return b"".join(chunks)


_decoder = functools.cache(msgspec.json.Decoder)


def decode_body(kind: type[_T], data: bytes) -> _T:
    """Return the record in `data`; raises InvalidRequestError that names the field for anything else."""
    decoder: msgspec.json.Decoder[_T] = _decoder(kind)
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from error
    except msgspec.DecodeError as error:
        field = _field_of_non_number(decoder, data)
        if field is not None:
            raise InvalidRequestError(
                f"{field} must be a finite number (JSON has no NaN or Infinity)", field=field
            ) from error
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequestError("the body is not valid JSON: it is nested too deeply") from error


def check_numbers(value: Any, field: str) -> None:
    """Raise InvalidRequestError if a number in it is too large for the way to the engine."""
    try:
        msgspec.msgpack.encode(value)
    except OverflowError as error:
        raise InvalidRequestError(f"{field}: whole numbers must have 64 bits at most", field=field) from error


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body is larger than the limit of {limit} bytes")


def _wrong_field(text: str) -> InvalidRequestError:
    """Turn msgspec's "Expected `int`, got `str` - at `$.messages[0].role`" into our words, the path as field name."""
    place = _AT.search(text)
    field = place[1] if place else ""
    text = _AT.sub("", text)
    missing = _MISSING.match(text)
    if missing:
        field = f"{field}.{missing[1]}" if field else missing[1]
        return InvalidRequestError(f"{field} is required", field=field)
    if not field:
        return InvalidRequestError(f"the body must be a JSON object: {_decapitalized(text)}")
    return InvalidRequestError(f"{field}: {_decapitalized(text)}", field=field)


def _decapitalized(text: str) -> str:
    return text[:1].lower() + text[1:]


def _field_of_non_number(decoder: msgspec.json.Decoder[Any], data: bytes) -> str | None:
    """Return the path of the first NaN or Infinity in a body that Python reads and JSON forbids."""
    try:
        # An object in its place is none of the types that numbers are fields of.
        decoder.decode(msgspec.json.encode(json.loads(data, parse_constant=lambda _: {})))
    except msgspec.ValidationError as error:
        place = _AT.search(str(error))
        return place[1] if place and "got `object`" in str(error) else None
    except (ValueError, RecursionError, msgspec.DecodeError):
        return None
    return None
