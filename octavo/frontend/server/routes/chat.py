"""POST /v1/chat/completions: a conversation in, the next turn out."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.base.errors import InvalidRequestError
from octavo.frontend.server.body import decode_body, read_body
from octavo.frontend.server.context import ServerContext, context_of
from octavo.frontend.server.disconnect import until_disconnect
from octavo.frontend.server.errors import renamed
from octavo.frontend.server.events import Echo, Generation
from octavo.frontend.server.routes.answers import Collected, begin, collect, json_response, label, token_bytes_of
from octavo.frontend.server.routes.beams import search
from octavo.frontend.server.routes.logprobs import chat_entries, prompt_entries
from octavo.frontend.server.routes.openai_schema import (
    ChatBody,
    Message,
    UsageWishes,
    check_common,
    check_logprobs,
    refuse_unsupported,
    sampling_params,
    unsupported,
    usage_wishes,
)
from octavo.frontend.server.sse import ChunkFrame, EventStream, encode_json
from octavo.protocol.output import CompletionOutput, Logprob
from octavo.protocol.sampling import SamplingParams

_decoder = msgspec.json.Decoder(ChatBody)
_ROLE = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
_TEXT = b'{"index":%d,"delta":{"content":%b},"logprobs":%b,"finish_reason":null}'
_FINISH = b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b,"stop_reason":%b}'

# Tokens and their logprobs -> `logprobs` of a choice; None where none were asked for.
LogprobShape = Callable[[list[int], list[dict[int, Logprob]]], dict[str, Any] | None]


async def chat_completions(request: Request) -> Response:
    """Answer a chat request, streamed or whole."""
    context = context_of(request)
    data = await read_body(request, context.config.max_body_bytes)
    body = decode_body(_decoder, data)
    refuse_unsupported(data)
    model = context.served_name(body.model)
    check_common(body, 1)
    params = _params(body, context)
    messages = template_messages(body.messages)
    rendering = context.service.chat_prompt(
        messages,
        add_generation_prompt=body.add_generation_prompt is not False,
        template_kwargs=template_variables(context, body.chat_template_kwargs),
    )
    prompt = await until_disconnect(request.receive, rendering)
    named = label(request, "chatcmpl")
    shape = _logprob_shape(body, context)
    head: dict[str, Any] = {
        "id": named.id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": None,
    }
    try:
        if body.use_beam_search:
            found, usage = await search(request, context, body, [prompt], params, named.id)
            answer = {**head, "choices": [_choice(one, shape) for one in found], "usage": usage}
            return json_response(answer, named.headers)
        generation = await begin(request, context, body, [prompt], params, named.id)
    except InvalidRequestError as error:
        raise _renamed(error, body) from error
    last = messages[-1]
    if body.echo and last["role"] == "assistant" and isinstance(last["content"], str):
        generation.echoes = [Echo(text=last["content"])]
    if body.stream:
        usage = usage_wishes(body, context.config.enable_force_include_usage)
        frame = ChunkFrame({**head, "object": "chat.completion.chunk"}, with_usage=usage.at_end)
        return EventStream(_stream(generation, frame, shape, params.n, usage), generation, named.headers)
    choices = [_choice(one, shape) for one in await collect(request, generation, params.n)]
    scores = prompt_entries(generation.prompt_logprobs[0])
    answer = {**head, "choices": choices, "usage": generation.usage}
    return json_response(answer if scores is None else {**answer, "prompt_logprobs": scores}, named.headers)


def _params(body: ChatBody, context: ServerContext) -> SamplingParams:
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs: true", field="top_logprobs")
    if body.add_special_tokens:
        raise unsupported("add_special_tokens", "add_special_tokens with a chat template, which writes its own,")
    check_logprobs("top_logprobs", body.top_logprobs, context.config.max_logprobs)
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    try:
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        own = context.service.sampling
        asked = own.get("max_tokens") if asked is None else asked
        return sampling_params(body, own, max_tokens=asked, logprobs=logprobs)
    except InvalidRequestError as error:
        raise _renamed(error, body) from error


def _renamed(error: InvalidRequestError, body: ChatBody) -> InvalidRequestError:
    """Call a field by the name that the client used."""
    names = {"prompt": "messages", "logprobs": "top_logprobs"}
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    return renamed(error, names)


def template_variables(context: ServerContext, given: dict[str, Any] | None) -> dict[str, Any]:
    """Return the further variables of the chat template: the server's own, and a request's before them."""
    return {**(context.config.default_chat_template_kwargs or {}), **(given or {})}


def template_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Return a conversation for the chat template; raises InvalidRequestError or UnsupportedError naming the message."""
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: Message, where: str) -> dict[str, Any]:
    """Return one turn as the template's room takes it, which checks its content."""
    if message.role in ("tool", "function"):
        raise unsupported(f"{where}.role", f"{where}.role {message.role!r}")
    for name in ("tool_calls", "function_call", "audio"):
        if getattr(message, name):
            raise unsupported(f"{where}.{name}")
    named = {} if message.name is None else {"name": message.name}
    return {"role": message.role, "content": msgspec.to_builtins(message.content), **named}


def _logprob_shape(body: ChatBody, context: ServerContext) -> LogprobShape:
    if not body.logprobs:
        return lambda _tokens, _logprobs: None
    num_top = body.top_logprobs or 0
    token_bytes = token_bytes_of(context)
    return lambda tokens, logprobs: {"content": chat_entries(tokens, logprobs, num_top, token_bytes), "refusal": None}


def _choice(one: Collected, shape: LogprobShape) -> dict[str, Any]:
    return {
        "index": one.index,
        "message": {"role": "assistant", "content": one.text, "refusal": None},
        "logprobs": shape(one.token_ids, one.logprobs),
        "finish_reason": one.finish_reason,
        "stop_reason": one.stop_reason,
    }


async def _stream(
    generation: Generation, frame: ChunkFrame, shape: LogprobShape, num_choices: int, usage: UsageWishes
) -> AsyncIterator[bytes]:
    begun = [False] * num_choices
    async for outputs in generation.events():
        chunks: list[bytes] = []
        now = generation.usage if usage.always else None
        for one in outputs:
            if not begun[one.index]:
                begun[one.index] = True
                chunks.append(frame.chunk(_ROLE % one.index, now))
            chunks += [frame.chunk(choice, now) for choice in _news(one, shape)]
        if chunks:
            yield b"".join(chunks)
    if usage.at_end:
        yield frame.usage_chunk(generation.usage)


def _news(one: CompletionOutput, shape: LogprobShape) -> list[bytes]:
    """Return what is new of a choice, each as the JSON of a chunk's choice."""
    news: list[bytes] = []
    if one.text or one.logprobs:
        logprobs = shape(one.token_ids, one.logprobs or [])
        news.append(_TEXT % (one.index, encode_json(one.text), encode_json(logprobs)))
    if one.finish_reason is not None:
        news.append(_FINISH % (one.index, encode_json(one.finish_reason), encode_json(one.stop_reason)))
    return news
