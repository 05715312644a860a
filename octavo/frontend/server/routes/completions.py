"""POST /v1/completions: prompts in, their continuations out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from octavo.base.errors import InvalidRequestError
from octavo.frontend.server.body import asked_of
from octavo.frontend.server.context import ServerContext
from octavo.frontend.server.events import Echo, Generation, Prompt, PromptLogprobs
from octavo.frontend.server.routes import openai_schema as schema
from octavo.frontend.server.routes.answers import begin, collect, json_response, label, token_bytes_of
from octavo.frontend.server.routes.beams import search
from octavo.frontend.server.routes.logprobs import CompletionLogprobs, prompt_entries
from octavo.frontend.server.sse import DONE, ChunkFrame, EventStream, encode_json
from octavo.frontend.server.turns import WholeTurn
from octavo.protocol.output import CompletionOutput
from octavo.protocol.sampling import SamplingParams


async def completions(request: Request) -> Response:
    """Answer a completion request, streamed or whole."""
    context, body = await asked_of(request, schema.CompletionBody, schema.refuse_unsupported)
    model = context.served_name(body.model)
    prompts = _prompts(body, context)
    schema.check_common(body, len(prompts))
    schema.check_logprobs("logprobs", body.logprobs, context.config.max_logprobs)
    params = _params(body, context)
    named = label(request, "cmpl")
    num_choices = len(prompts) * params.n
    pieces = None
    if body.logprobs is not None:
        as_ids = bool(body.return_tokens_as_token_ids)
        pieces = [CompletionLogprobs(body.logprobs, token_bytes_of(context), as_ids=as_ids) for _ in range(num_choices)]
    head: dict[str, Any] = {"id": named.id, "object": "text_completion", "created": int(time.time()), "model": model}
    if body.use_beam_search:
        found, usage = await search(request, context, body, prompts, params, named.id)
        choices = [_whole_choice(one, pieces, None) for one in found]
        return json_response({**head, "choices": choices, "usage": usage}, named.headers)
    generation = await begin(request, context, body, prompts, params, named.id)
    if body.echo:
        generation.echoes = [_echo(context, text, ids) for text, ids in generation.prompts]
        generation.prompt_only = body.max_tokens == 0
    # Of each choice, where token ids are told.
    prompt_ids = [ids for _, ids in generation.prompts for _ in range(params.n)] if body.return_token_ids else None
    if body.stream:
        usage = schema.usage_wishes(body, context.config.enable_force_include_usage)
        return _stream(generation, ChunkFrame(head, with_usage=usage.at_end), pieces, usage, prompt_ids, named.headers)
    found = await collect(request, generation, num_choices)
    choices = [_whole_choice(one, pieces, generation.prompt_logprobs[one.index // params.n]) for one in found]
    for choice, one, ids in zip(choices, found, prompt_ids or (), strict=bool(prompt_ids)):
        choice |= {"token_ids": one.token_ids, "prompt_token_ids": ids}
    return json_response({**head, "choices": choices, "usage": generation.usage}, named.headers)


def _params(body: schema.CompletionBody, context: ServerContext) -> SamplingParams:
    """Return the parameters; an echo with log-probabilities needs those of the prompt."""
    overrides: dict[str, Any] = {"logprobs": body.logprobs}
    if body.echo and body.logprobs is not None:
        overrides["prompt_logprobs"] = max(body.logprobs, body.prompt_logprobs or 0)
    if body.echo and body.max_tokens == 0:
        # What evaluation harnesses ask for: the prompt alone. The engine generates one token, and nobody sees it.
        overrides["max_tokens"] = 1
    return schema.sampling_params(body, context.service.sampling, **overrides)


def _echo(context: ServerContext, text: str | None, ids: list[int]) -> Echo:
    tokenizer = context.service.tokenizer
    if text is None:
        text = "" if tokenizer is None else tokenizer.decode(ids, skip_special_tokens=False)
    return Echo(text=text, token_ids=ids)


def _prompts(body: schema.CompletionBody, context: ServerContext) -> list[Prompt]:
    """Return the prompts in order: a text, a list of texts, of token ids, or of lists of token ids."""
    given = body.prompt
    if given is None:
        raise InvalidRequestError("prompt is required", field="prompt")
    prompts = _one_kind(given, context.service.max_model_len)
    if not prompts:
        raise InvalidRequestError("prompt must not be an empty list", field="prompt")
    if len(prompts) > schema.MAX_PROMPTS:
        raise InvalidRequestError(
            f"prompt takes at most {schema.MAX_PROMPTS} prompts, not {len(prompts)}", field="prompt"
        )
    tokenizer = context.service.tokenizer
    if body.add_special_tokens is False and tokenizer is not None:
        return [tokenizer.encode(p, add_special_tokens=False) if isinstance(p, str) else p for p in prompts]
    return prompts


def _one_kind(given: str | list[str | int | list[int]], longest: int) -> list[Prompt]:
    """Return the prompts. Of a list longer than any prompt only the beginning is looked at: its length is its fault."""
    if isinstance(given, str):
        return [given]
    kinds = set(map(type, given[: longest + 1]))
    if len(kinds) > 1:
        raise InvalidRequestError("prompt must not mix texts, token ids and lists of token ids", field="prompt")
    return cast("list[Prompt]", [given] if int in kinds else given)


def _whole_choice(
    one: WholeTurn, pieces: Sequence[CompletionLogprobs] | None, scores: PromptLogprobs | None
) -> dict[str, Any]:
    choice = {
        "index": one.index,
        "text": one.text,
        "logprobs": None if pieces is None else pieces[one.index].piece(one.token_ids, one.logprobs),
        "finish_reason": one.finish_reason,
        "stop_reason": one.stop_reason,
    }
    return choice if scores is None else {**choice, "prompt_logprobs": prompt_entries(scores)}


def _stream(
    generation: Generation,
    frame: ChunkFrame,
    pieces: Sequence[CompletionLogprobs] | None,
    usage: schema.UsageWishes,
    prompt_ids: Sequence[list[int]] | None,
    headers: Mapping[str, str],
) -> EventStream:
    untold = dict(enumerate(prompt_ids or ()))

    def encode(outputs: list[CompletionOutput]) -> bytes:
        now = generation.usage if usage.always else None
        chunks: list[bytes] = []
        for one in outputs:
            if prompt_ids is not None:
                ids = {"token_ids": one.token_ids, "prompt_token_ids": untold.pop(one.index, None)}
                chunks.append(frame.chunk(_choice(one, pieces, ids), now))
            elif one.text or one.logprobs or one.finish_reason:
                chunks.append(frame.chunk(_choice(one, pieces), now))
        return b"".join(chunks)

    def end() -> bytes:
        return (frame.chunk(b"", generation.usage) if usage.at_end else b"") + DONE

    return EventStream(generation, encode, headers, end=end)


def _choice(
    one: CompletionOutput, pieces: Sequence[CompletionLogprobs] | None, ids: Mapping[str, Any] | None = None
) -> bytes:
    """Return one choice of a chunk as JSON."""
    if pieces is None and ids is None and one.finish_reason is None:  # As for most tokens.
        return b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":null,"stop_reason":null}' % (
            one.index,
            encode_json(one.text),
        )
    more = b"" if ids is None else b"," + encode_json(ids)[1:-1]
    logprobs = b"null"
    if pieces is not None:
        logprobs = encode_json(pieces[one.index].piece(one.token_ids, one.logprobs or []))
    return b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b,"stop_reason":%b%b}' % (
        one.index,
        encode_json(one.text),
        logprobs,
        encode_json(one.finish_reason),
        encode_json(one.stop_reason),
        more,
    )
