"""What the completion routes share: request ids, the start of a generation, and collecting it into a whole answer."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from octavo.base.errors import InvalidRequestError
from octavo.frontend.server.context import ServerContext
from octavo.frontend.server.disconnect import until_disconnect
from octavo.frontend.server.errors import renamed
from octavo.frontend.server.events import Generation, Prompt, start
from octavo.frontend.server.routes.openai_schema import CommonFields, form_names
from octavo.frontend.server.sse import encode_json
from octavo.frontend.server.turns import WholeTurn
from octavo.protocol.sampling import SamplingParams

_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLabel:
    """The id that the client sees, and the headers that echo the one it sent."""

    id: str
    headers: Mapping[str, str]


def label(request: Request, prefix: str) -> RequestLabel:
    """Return the id of the answer: the X-Request-Id header's where it is a plain word, else a new one."""
    given = request.headers.get("x-request-id", "")
    if _ID.fullmatch(given):
        return RequestLabel(id=f"{prefix}-{given}", headers={"X-Request-Id": given})
    return RequestLabel(id=f"{prefix}-{uuid.uuid4().hex}", headers={})


async def begin(
    request: Request,
    context: ServerContext,
    body: CommonFields,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    request_id: str,
) -> Generation:
    """Queue the prompts; raises the request's errors, or ClientGoneError."""
    starting = start(
        context, prompts, params, request_id=request_id, priority=body.priority or 0, cache_salt=body.cache_salt or ""
    )
    try:
        return await until_disconnect(request.receive, starting)
    except InvalidRequestError as error:
        raise renamed(error, form_names(body)) from error


async def collect(request: Request, generation: Generation, num_choices: int) -> list[WholeTurn]:
    """Return all choices, whole; raises the generation's errors, or ClientGoneError."""
    choices = [WholeTurn(index=index) for index in range(num_choices)]

    async def gather() -> None:
        async for outputs in generation.events():
            for output in outputs:
                choice = choices[output.index]
                choice.text += output.text
                choice.token_ids += output.token_ids
                choice.logprobs += output.logprobs or []
                if output.finish_reason is not None:
                    choice.finish_reason, choice.stop_reason = output.finish_reason, output.stop_reason

    async with aclosing(generation):
        await until_disconnect(request.receive, gather())
    return choices


def json_response(body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON answer."""
    return Response(encode_json(body), headers=dict(headers or {}), media_type="application/json")


def token_bytes_of(context: ServerContext) -> Callable[[int, str], bytes]:
    """Return what gives a token's true bytes (a token may be part of a character)."""
    tokenizer = context.service.tokenizer
    if tokenizer is None:
        return lambda _token, text: text.encode()
    return lambda token, _text: tokenizer.token_bytes(token)
