"""OpenAI's Responses: create (whole, streamed, or in the background), retrieve, cancel and delete."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.base.errors import InvalidRequestError, OctavoError
from octavo.frontend.server.body import asked_of
from octavo.frontend.server.context import ServerContext, context_of
from octavo.frontend.server.errors import defect, renamed
from octavo.frontend.server.response_store import StoredResponse
from octavo.frontend.server.routes.answers import json_response, label
from octavo.frontend.server.routes.encoders import answer, make
from octavo.frontend.server.routes.response_encoder import ResponseEncoder
from octavo.frontend.server.routes.responses_schema import (
    Messages,
    ResponsesBody,
    add_items,
    check,
    conversation,
    sampling,
)
from octavo.frontend.server.sse import encode_json
from octavo.frontend.server.turns import Turn, begin_turn
from octavo.protocol.sampling import SamplingParams

_NAMES = {
    "prompt": "input",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "structured_outputs": "text.format",
}


async def create_response(request: Request) -> Response:
    """Answer a list of items, as `stream` and `background` say."""
    context, body = await asked_of(request, ResponsesBody)
    model = context.served_name(body.model)
    check(body, alone=context.config.api_server_count == 1)
    before: Messages = []
    if body.previous_response_id is not None:
        before = context.responses.find(body.previous_response_id, "previous_response_id").messages()
    messages = add_items(before, body.input or "")
    params = sampling(body, context.service.sampling)
    # Never the client's own id: whoever knows an id can read the answer.
    id = f"resp_{uuid.uuid4().hex}"
    try:
        turn = await begin_turn(request, context, conversation(body, messages), params, request_id=id)
    except InvalidRequestError as error:
        raise renamed(error, _NAMES) from error
    encoder = ResponseEncoder(turn, _head(body, id, model, params))
    stored = StoredResponse(
        whole=encoder.whole,
        messages=lambda: [*messages, encoder.message],
        num_bytes=len(encode_json(messages)) + len(encode_json(encoder.whole())),
    )
    if body.background:
        stored.task = asyncio.create_task(_run(turn, encoder))
        context.responses.add(id, stored)
        return json_response(encoder.whole())
    if body.store is not False:
        encoder.when_ended = lambda num_bytes: _keep(context, id, stored, num_bytes)
    return await answer(request, turn, encoder, stream=bool(body.stream), headers=label(request, "").headers)


async def show_response(request: Request) -> Response:
    """Return a response that was stored, finished or not."""
    if request.query_params.get("stream") == "true":
        raise InvalidRequestError("stream: responses that are stored are not streamed", field="stream")
    return json_response(_stored(request).whole())


async def cancel_response(request: Request) -> Response:
    """Stop a response that is made in the background; one that has ended stays as it is."""
    stored = _stored(request)
    if stored.task is None:
        raise InvalidRequestError("only a response in the background can be cancelled", field="response_id")
    stored.task.cancel()
    await asyncio.gather(stored.task, return_exceptions=True)
    return json_response(stored.whole())


async def delete_response(request: Request) -> Response:
    """Forget a response."""
    _stored(request)
    id = request.path_params["id"]
    context_of(request).responses.remove(id)
    return json_response({"id": id, "object": "response", "deleted": True})


def _stored(request: Request) -> StoredResponse:
    return context_of(request).responses.find(request.path_params["id"], "response_id")


def _keep(context: ServerContext, id: str, stored: StoredResponse, num_bytes: int) -> None:
    stored.num_bytes += num_bytes
    context.responses.add(id, stored)


async def _run(turn: Turn, encoder: ResponseEncoder) -> None:
    """Make a response in the background."""
    try:
        async with aclosing(turn.generation):
            await make(turn, encoder)
    except asyncio.CancelledError:
        encoder.cancel()
    except OctavoError as error:
        encoder.fail(error)
    finally:
        if not encoder.ended:
            encoder.fail(defect())


def _head(body: ResponsesBody, id: str, model: str, params: SamplingParams) -> dict[str, Any]:
    """Return what a response repeats of its request."""
    return {
        "id": id,
        "object": "response",
        "created_at": int(time.time()),
        "background": bool(body.background),
        "frequency_penalty": 0.0,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": model,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "presence_penalty": 0.0,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": (body.reasoning or {}).get("effort"), "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": params.temperature,
        "text": {"format": (body.text or {}).get("format") or {"type": "text"}},
        "tool_choice": msgspec.to_builtins(body.tool_choice or "auto"),
        "tools": msgspec.to_builtins(body.tools or []),
        "top_logprobs": 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        **({} if body.user is None else {"user": body.user}),
    }
