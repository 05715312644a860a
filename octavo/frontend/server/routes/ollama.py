"""/api/chat, generate, tags, show and version: Ollama's protocol, of which streams are the default and lines of JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.base.errors import InvalidRequestError, OctavoError
from octavo.frontend.server.body import asked_of
from octavo.frontend.server.context import ServerContext, context_of
from octavo.frontend.server.disconnect import until_disconnect
from octavo.frontend.server.errors import ollama_error, renamed
from octavo.frontend.server.events import start
from octavo.frontend.server.routes.answers import json_response, label
from octavo.frontend.server.routes.blocks import Block, BlockEncoder, arguments_of
from octavo.frontend.server.routes.encoders import Events, answer
from octavo.frontend.server.routes.openai_schema import named_sampling, unsupported
from octavo.frontend.server.sse import encode_json
from octavo.frontend.server.turns import Conversation, Turn, begin_turn
from octavo.protocol.sampling import SamplingParams

# Ours -> Ollama's, where they differ.
_OPTIONS = {"max_tokens": "num_predict", "repetition_penalty": "repeat_penalty"}
_FORMAT = {"structured_outputs": "format"}
_DETAILS = {"format": "", "family": "", "families": [], "parameter_size": "", "quantization_level": ""}


class _Options(msgspec.Struct, kw_only=True, rename=_OPTIONS):
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class _Message(msgspec.Struct, kw_only=True, omit_defaults=True, rename={"reasoning_content": "thinking"}):
    role: Literal["system", "user", "assistant", "tool"]
    content: str
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_name: str | None = None
    images: list[Any] | None = None


class _Body(msgspec.Struct, kw_only=True):
    model: str
    stream: bool = True
    options: _Options = msgspec.field(default_factory=_Options)
    format: Any = None
    think: bool | str | None = None


class _ChatBody(_Body, kw_only=True):
    messages: list[_Message]
    tools: list[dict[str, Any]] | None = None


class _GenerateBody(_Body, kw_only=True):
    prompt: str
    system: str | None = None
    raw: bool = False
    suffix: str | None = None
    images: list[Any] | None = None


class _ShowBody(msgspec.Struct, kw_only=True):
    model: str


async def chat(request: Request) -> Response:
    """Answer a conversation."""
    context, body = await asked_of(request, _ChatBody)
    for index, message in enumerate(body.messages):
        if message.images:
            raise unsupported(f"messages[{index}].images")
    messages = [msgspec.structs.asdict(message) for message in body.messages]
    known = [{name: value for name, value in message.items() if value is not None} for message in messages]
    return await _answer(request, context, body, known, body.tools or ())


async def generate(request: Request) -> Response:
    """Answer a prompt, or with `raw` continue it."""
    context, body = await asked_of(request, _GenerateBody)
    for name, given in (("suffix", body.suffix), ("images", body.images)):
        if given:
            raise unsupported(name)
    system = [{"role": "system", "content": body.system}] if body.system else []
    return await _answer(request, context, body, [*system, {"role": "user", "content": body.prompt}])


async def list_tags(request: Request) -> Response:
    """List the names of the model."""
    context = context_of(request)
    since = _time(context.created)
    model = {"modified_at": since, "size": 0, "digest": "", "details": _DETAILS}
    return json_response({"models": [{"name": name, "model": name, **model} for name in context.model_names]})


async def show(request: Request) -> Response:
    """Say what the model can."""
    context, body = await asked_of(request, _ShowBody)
    _served_name(context, body.model)
    facts = {"general.architecture": "octavo", "octavo.context_length": context.service.max_model_len}
    shown = {"details": _DETAILS, "model_info": facts, "capabilities": ["completion", "tools"]}
    return json_response({"modified_at": _time(context.created), **shown})


async def _answer(
    request: Request, context: ServerContext, body: _Body, messages: list[dict[str, Any]], tools: Any = None
) -> Response:
    """Answer messages, or without tools the prompt that the body has."""
    model = _served_name(context, body.model)
    params = _params(body, context)
    named = label(request, "ollama")
    think: dict[str, Any] = {} if body.think is None else {"enable_thinking": bool(body.think)}
    conversation = Conversation(
        messages=messages,
        tools=tools or (),
        reasoning_effort=body.think if isinstance(body.think, str) else None,
        template_variables=think,
    )
    try:
        if isinstance(body, _GenerateBody) and body.raw:
            starting = start(context, [body.prompt], params, request_id=named.id)
            turn = Turn(context, conversation, await until_disconnect(request.receive, starting), params)
        else:
            turn = await begin_turn(request, context, conversation, params, request_id=named.id)
    except InvalidRequestError as error:
        raise renamed(
            error, {"messages": "prompt", **_FORMAT} if tools is None else {"prompt": "messages", **_FORMAT}
        ) from error
    encoder = _LineEncoder(turn, model, chat=tools is not None)
    return await answer(request, turn, encoder, stream=body.stream, headers=named.headers)


def _served_name(context: ServerContext, asked: str) -> str:
    """Return the name to answer under; clients add a tag to names that have none."""
    return context.served_name(asked.removesuffix(":latest"))


def _params(body: _Body, context: ServerContext) -> SamplingParams:
    given = msgspec.structs.asdict(body.options)
    if body.format:
        given["structured_outputs"] = {"json_object": True} if body.format == "json" else {"json": body.format}
    if (body.options.max_tokens or 0) < 0:
        given["max_tokens"] = None  # As much as there is room for.
    return named_sampling(given, context.service.sampling, {**_OPTIONS, **_FORMAT})


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


class _LineEncoder(BlockEncoder):
    """Lines of JSON, each with a piece; a call comes whole. chat: pieces are messages, not texts."""

    media_type = "application/x-ndjson"

    def __init__(self, turn: Turn, model: str, *, chat: bool) -> None:
        super().__init__(turn)
        self._model = model
        self._chat = chat
        self._began = time.monotonic_ns()

    def filled(self, block: Block, piece: str) -> Events:
        """Return a line with a piece of text or of thoughts."""
        if block.kind == "call":
            return []
        return [self._line(piece) if block.kind == "text" else self._line("", thinking=piece)]

    def closed(self, block: Block) -> Events:
        """Return a line with a call."""
        return [] if block.call is None else [self._line("", tool_calls=[_call(block)])]

    def end(self) -> Events:
        """Return the line that says why it ended, and the counts."""
        return [*self.close(), {**self._line(""), **self._ending()}]

    def fail(self, error: OctavoError) -> Events:
        """Return a line with the error."""
        return [ollama_error(error)]

    def whole(self) -> dict[str, Any]:
        """Return one line with all of it."""
        thoughts, calls = self.text_of("thoughts"), [_call(block) for block in self.blocks if block.call is not None]
        more = {**({"thinking": thoughts} if thoughts else {}), **({"tool_calls": calls} if calls else {})}
        return {**self._line(self.text_of("text"), **more), **self._ending()}

    def frame(self, event: Mapping[str, Any]) -> bytes:
        """Return a line."""
        return encode_json(event) + b"\n"

    def _line(self, text: str, **more: Any) -> dict[str, Any]:
        piece = (
            {"message": {"role": "assistant", "content": text, **more}} if self._chat else {"response": text, **more}
        )
        return {"model": self._model, "created_at": _time(time.time()), **piece, "done": False}

    def _ending(self) -> dict[str, Any]:
        usage = self.turn.usage
        return {
            "done": True,
            "done_reason": "length" if self.finish_reason == "length" else "stop",
            "total_duration": time.monotonic_ns() - self._began,
            "load_duration": 0,
            "prompt_eval_count": usage["prompt_tokens"],
            "prompt_eval_duration": 0,
            "eval_count": usage["completion_tokens"],
            "eval_duration": 0,
        }


def _call(block: Block) -> dict[str, Any]:
    assert block.call is not None
    return {"id": block.call.id, "function": {"name": block.call.name, "arguments": arguments_of(block)}}
