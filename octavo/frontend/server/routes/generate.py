"""POST /inference/v1/generate: token ids in, token ids out, for trainers and for gateways that write and read text themselves."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.base.errors import InvalidRequestError
from octavo.frontend.server.body import asked_of, check_numbers
from octavo.frontend.server.disconnect import until_disconnect
from octavo.frontend.server.events import PromptLogprobs, start
from octavo.frontend.server.routes.answers import collect, json_response, label
from octavo.frontend.server.routes.logprobs import finite
from octavo.frontend.server.sse import DONE, EventStream, encode_json
from octavo.frontend.server.turns import WholeTurn
from octavo.protocol.output import CompletionOutput, Logprob
from octavo.protocol.sampling import SamplingParams


class GenerateBody(msgspec.Struct, kw_only=True):
    """The body. sampling_params: fields of `SamplingParams`, whose own defaults hold."""

    token_ids: list[int]
    sampling_params: dict[str, Any] = {}
    model: str | None = None
    stream: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None


async def generate(request: Request) -> Response:
    """Continue token ids, streamed or whole."""
    context, body = await asked_of(request, GenerateBody)
    context.served_name(body.model)
    check_numbers(body.sampling_params, "sampling_params")
    params = _params(body.sampling_params)
    named = label(request, "gen")
    salt, priority = body.cache_salt or "", body.priority or 0
    try:
        starting = start(context, [body.token_ids], params, request_id=named.id, cache_salt=salt, priority=priority)
        generation = await until_disconnect(request.receive, starting)
    except InvalidRequestError as error:
        raise _in_place(error) from error
    if body.stream:

        def encode(outputs: list[CompletionOutput]) -> bytes:
            return b"".join([_event(named.id, choices=[_choice(one, one.logprobs)]) for one in outputs])

        def end() -> bytes:
            return _event(named.id, choices=[], usage=generation.usage) + DONE

        return EventStream(generation, encode, named.headers, end=end)
    found = await collect(request, generation, params.n)
    choices = [_choice(one, one.logprobs if params.logprobs is not None else None) for one in found]
    scores = generation.prompt_logprobs[0]
    answer = {"request_id": named.id, "choices": choices, "usage": generation.usage}
    return json_response({**answer, "prompt_logprobs": None if scores is None else _logprobs(scores)}, named.headers)


def _params(given: dict[str, Any]) -> SamplingParams:
    try:
        return SamplingParams(**given, detokenize=False)
    except InvalidRequestError as error:
        raise _in_place(error) from error
    except TypeError as error:  # A name that is none, or `detokenize`.
        raise InvalidRequestError(f"sampling_params: {error}", field="sampling_params") from error


def _in_place(error: InvalidRequestError) -> InvalidRequestError:
    """Return the error with its field named by its place in the body."""
    field = "token_ids" if error.field == "prompt" else f"sampling_params.{error.field}"
    return type(error)(error.message, field=error.field if error.field in ("priority", "cache_salt") else field)


def _event(id: str, **fields: Any) -> bytes:
    return b"data: %b\n\n" % encode_json({"request_id": id, **fields})


def _choice(one: CompletionOutput | WholeTurn, logprobs: list[dict[int, Logprob]] | None) -> dict[str, Any]:
    return {
        "index": one.index,
        "token_ids": one.token_ids,
        "logprobs": None if logprobs is None else _logprobs(logprobs),
        "finish_reason": one.finish_reason,
        "stop_reason": one.stop_reason,
    }


def _logprobs(entries: PromptLogprobs | list[dict[int, Logprob]]) -> list[list[dict[str, Any]] | None]:
    """Return for each token what is known there, the token itself first; null where nothing is, at a prompt's beginning."""
    told: list[list[dict[str, Any]] | None] = []
    for one in entries:
        known = (one or {}).items()
        told.append(
            [{"token_id": id, "logprob": finite(entry.logprob), "rank": entry.rank} for id, entry in known] or None
        )
    return told
