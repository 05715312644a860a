"""POST /v1/chat/completions: a conversation in, the next turn out."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.base.errors import InvalidRequestError, OctavoError
from octavo.frontend.server.body import asked_of
from octavo.frontend.server.context import ServerContext
from octavo.frontend.server.errors import error_object, renamed
from octavo.frontend.server.routes import openai_schema as schema
from octavo.frontend.server.routes.answers import json_response, label, token_bytes_of
from octavo.frontend.server.routes.beams import search
from octavo.frontend.server.routes.encoders import Events, TurnEncoder, answer
from octavo.frontend.server.routes.logprobs import chat_entries, prompt_entries
from octavo.frontend.server.sse import DONE, ChunkFrame, encode_json
from octavo.frontend.server.turns import Conversation, Turn, WholeTurn, begin_turn, render_turn
from octavo.frontend.text.dialects.events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
    TurnDelta,
)
from octavo.protocol.output import Logprob
from octavo.protocol.sampling import SamplingParams

# The choice of a chunk that is a piece of text and nothing else, as most are.
_PLAIN = b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}'
# Tokens and their logprobs -> `logprobs` of a choice; None where none were asked for.
LogprobShape = Callable[[list[int], list[dict[int, Logprob]]], dict[str, Any] | None]


async def chat_completions(request: Request) -> Response:
    """Answer a chat request, streamed or whole."""
    context, body = await asked_of(request, schema.ChatBody, schema.refuse_unsupported)
    model = context.served_name(body.model)
    schema.check_common(body, 1)
    params = _params(body, context)
    conversation = _conversation(body)
    named = label(request, "chatcmpl")
    usage = schema.usage_wishes(body, context.config.enable_force_include_usage)
    head = {"id": named.id, "created": int(time.time()), "model": model}
    encoder = ChatEncoder(head, usage, _logprob_shape(body, context), params.n)
    try:
        if body.use_beam_search:
            prompt = await render_turn(request, context, conversation)
            encoder.made, spent = await search(request, context, body, [prompt], params, named.id)
            return json_response({**encoder.whole(), "usage": spent}, named.headers)
        turn = await begin_turn(
            request,
            context,
            conversation,
            params,
            request_id=named.id,
            priority=body.priority or 0,
            cache_salt=body.cache_salt or "",
        )
    except InvalidRequestError as error:
        raise _renamed(error, body) from error
    encoder.turn, encoder.with_ids, encoder.streamed = turn, bool(body.return_token_ids), bool(body.stream)
    last = conversation.messages[-1]
    if body.echo and last["role"] == "assistant" and isinstance(last["content"], str):
        encoder.echo = last["content"]
    return await answer(request, turn, encoder, stream=encoder.streamed, headers=named.headers, done=DONE)


def _told(event: Event) -> dict[str, Any] | None:
    """Return the delta that tells an event, None for one that is not told."""
    match event:
        case TextDelta(text=text):
            return {"content": text}
        case ReasoningDelta(text=text):
            return _thought(text)
        case ToolCallBegin(index=index, id=id, name=name):
            return {"tool_calls": [{"index": index, **_call(id, name, "")}]}
        case ToolCallArguments(index=index, fragment=fragment):
            return {"tool_calls": [{"index": index, "function": {"arguments": fragment}}]}
        case _:
            return None


def _call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _thought(text: str) -> dict[str, str]:
    """Return thoughts under both names that clients know."""
    return {"reasoning": text, "reasoning_content": text}


class ChatEncoder(TurnEncoder):
    """Writes the chunks of a stream, or what they add up to.

    echo: what the text of every choice begins with. with_ids: token ids are told too. streamed: no more is kept.
    """

    def __init__(
        self, head: Mapping[str, Any], usage: schema.UsageWishes, shape: LogprobShape, num_choices: int
    ) -> None:
        self.turn: Turn | None = None
        self.echo = ""
        self.with_ids = self.streamed = False
        self._head = head
        self._frame = ChunkFrame({**head, "object": "chat.completion.chunk"}, with_usage=usage.at_end)
        self._wishes = usage
        self._shape = shape
        self.made: list[WholeTurn] = [WholeTurn(index=index) for index in range(num_choices)]
        self._begun: set[int] = set()

    def take(self, delta: TurnDelta) -> Events:
        """Return the chunks of a delta; the log-probabilities of its tokens are in the first that has a part of the answer."""
        index = delta.index
        chunks: Events = []
        if not self.streamed:
            self.made[index].add(delta)
            return chunks
        if index not in self._begun:
            self._begun.add(index)
            chunks.append({**self._chunk(index, {"role": "assistant", "content": ""}), **self._prompt_ids()})
            if self.echo:
                chunks.append(self._chunk(index, {"content": self.echo}))
        told = [found for event in delta.events if (found := _told(event))]
        logprobs = self._shape(delta.token_ids, delta.logprobs or [])
        ids = {"token_ids": delta.token_ids} if self.with_ids and delta.token_ids else {}
        for found in told or ([{"content": ""}] if delta.logprobs or ids else []):
            chunks.append(self._chunk(index, found, logprobs))
            if ids:
                chunks[-1]["choices"][0] |= ids
            logprobs, ids = None, {}
        if delta.finish_reason is not None:
            chunks.append(self._chunk(index, {}, None, delta))
        return chunks

    def written(self, delta: TurnDelta) -> bytes:
        """Return the chunks of a delta; most are a piece of text, which needs no more than its place in a chunk."""
        told, index = delta.events, delta.index
        more = delta.logprobs is not None or delta.finish_reason is not None or self.with_ids or self._wishes.always
        if more or len(told) != 1 or not isinstance(told[0], TextDelta) or index not in self._begun:
            return super().written(delta)
        return self._frame.chunk(_PLAIN % (index, encode_json(told[0].text)))

    def end(self) -> Events:
        """Return the chunk that has the usage and no choices, if it is asked for."""
        return [self._event([], self._usage)] if self._wishes.at_end else []

    def fail(self, error: OctavoError) -> Events:
        """Return the error."""
        return [error_object(error)]

    def whole(self) -> dict[str, Any]:
        """Return the whole answer."""
        choices = [self._choice(made) for made in self.made]
        answer = {**self._head, "object": "chat.completion", "choices": choices, "usage": self._usage}
        answer |= self._prompt_ids()
        scores = None if self.turn is None else prompt_entries(self.turn.generation.prompt_logprobs[0])
        return answer if scores is None else {**answer, "prompt_logprobs": scores}

    def _prompt_ids(self) -> dict[str, Any]:
        if self.turn is None or not self.with_ids:
            return {}
        return {"prompt_token_ids": self.turn.generation.prompts[0][1]}

    def _choice(self, made: WholeTurn) -> dict[str, Any]:
        text = self.echo + made.text
        content = text if text or not made.calls else None
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if made.reasoning:
            message |= _thought(made.reasoning)
        if made.calls:
            message["tool_calls"] = [_call(call.id, call.name, call.arguments) for call in made.calls]
        return {
            "index": made.index,
            "message": message,
            "logprobs": self._shape(made.token_ids, made.logprobs),
            "finish_reason": made.finish_reason,
            "stop_reason": made.stop_reason,
            **({"token_ids": made.token_ids} if self.with_ids else {}),
        }

    def frame(self, event: Mapping[str, Any]) -> bytes:
        """Return a server-sent event."""
        start = b"{" if "error" in event else self._frame.start
        return b"data: " + start + encode_json(event)[1:] + b"\n\n"

    @property
    def _usage(self) -> dict[str, Any] | None:
        return None if self.turn is None else self.turn.usage

    def _chunk(
        self, index: int, told: dict[str, Any], logprobs: dict[str, Any] | None = None, end: TurnDelta | None = None
    ) -> dict[str, Any]:
        reason = None if end is None else end.finish_reason
        one = {"index": index, "delta": told, "logprobs": logprobs, "finish_reason": reason}
        if end is not None:
            one["stop_reason"] = end.stop_reason
        return self._event([one], self._usage if self._wishes.always else None)

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        return {"choices": choices, "usage": usage} if self._wishes.at_end else {"choices": choices}


def _params(body: schema.ChatBody, context: ServerContext) -> SamplingParams:
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs: true", field="top_logprobs")
    if body.add_special_tokens:
        raise schema.unsupported("add_special_tokens", "add_special_tokens with a chat template, which writes its own,")
    if body.use_beam_search and body.tools:
        raise InvalidRequestError("tools do not go together with use_beam_search", field="tools")
    schema.check_logprobs("top_logprobs", body.top_logprobs, context.config.max_logprobs)
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    try:
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        own = context.service.sampling
        asked = own.get("max_tokens") if asked is None else asked
        return schema.sampling_params(body, own, max_tokens=asked, logprobs=logprobs)
    except InvalidRequestError as error:
        raise _renamed(error, body) from error


def _renamed(error: InvalidRequestError, body: schema.ChatBody) -> InvalidRequestError:
    """Call a field by the name that the client used."""
    names = {"prompt": "messages", "logprobs": "top_logprobs", **schema.form_names(body)}
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    return renamed(error, names)


def _conversation(body: schema.ChatBody) -> Conversation:
    choice = body.tool_choice
    named = choice.function.name if isinstance(choice, schema.Tool) else None
    variables = body.chat_template_kwargs or {}
    return Conversation(
        messages=template_messages(body.messages),
        tools=template_tools(body.tools),
        tool_choice="required" if isinstance(choice, schema.Tool) else choice or "auto",
        tool_name=named,
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=body.reasoning_effort,
        include_reasoning=body.include_reasoning is not False,
        add_generation_prompt=not body.continue_final_message
        if body.add_generation_prompt is None
        else body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
        chat_template=body.chat_template,
        template_variables={**variables, "documents": body.documents} if body.documents else variables,
    )


def template_tools(tools: list[schema.Tool] | None) -> list[dict[str, Any]]:
    """Return tools as chat templates know them: the parameters are a schema in any case."""
    nothing = {"type": "object", "properties": {}}
    found: list[dict[str, Any]] = msgspec.to_builtins(tools or [])
    return [{**tool, "function": {"parameters": nothing, **tool["function"]}} for tool in found]


def template_messages(messages: list[schema.Message]) -> list[dict[str, Any]]:
    """Return a conversation for the chat template; raises InvalidRequestError or UnsupportedError naming the message."""
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: schema.Message, where: str) -> dict[str, Any]:
    """Return one turn as the template's room takes it, which checks its content."""
    if message.role == "function" or message.function_call:
        name = "role" if message.role == "function" else "function_call"
        raise schema.unsupported(
            f"{where}.{name}", f"{where}.{name}: tools and tool_calls took the place of functions, which"
        )
    if message.audio:
        raise schema.unsupported(f"{where}.audio")
    if message.role == "tool" and message.tool_call_id is None:
        raise InvalidRequestError(f"{where}.tool_call_id is required of a tool's result", field=f"{where}.tool_call_id")
    found: dict[str, Any] = {"role": message.role, "content": msgspec.to_builtins(message.content)}
    for name in ("name", "tool_call_id", "tool_calls"):
        if getattr(message, name):
            found[name] = getattr(message, name)
    thoughts = message.reasoning_content or message.reasoning
    # Every family of templates has a name of its own for them.
    return {**found, **_thought(thoughts), "thinking": thoughts} if thoughts else found


def _logprob_shape(body: schema.ChatBody, context: ServerContext) -> LogprobShape:
    if not body.logprobs:
        return lambda _tokens, _logprobs: None
    shown = functools.partial(
        chat_entries,
        num_top=body.top_logprobs or 0,
        token_bytes=token_bytes_of(context),
        as_ids=bool(body.return_tokens_as_token_ids),
    )
    return lambda tokens, logprobs: {"content": shown(tokens, logprobs), "refusal": None}
