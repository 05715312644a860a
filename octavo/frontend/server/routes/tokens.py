"""POST /tokenize and /detokenize: texts and conversations to token ids, and back."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.base.errors import InvalidRequestError
from octavo.frontend.server.body import asked_of
from octavo.frontend.server.disconnect import until_disconnect
from octavo.frontend.server.routes.answers import json_response
from octavo.frontend.server.routes.chat import template_messages, template_tools
from octavo.frontend.server.routes.openai_schema import Message, Tool, refuse_unsupported
from octavo.frontend.server.turns import Conversation, render_turn


class TokenizeBody(msgspec.Struct, kw_only=True):
    """POST /tokenize: a prompt, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


async def tokenize(request: Request) -> Response:
    """Return the ids that a prompt or a conversation would have as a request."""
    context, body = await asked_of(request, TokenizeBody, refuse_unsupported)
    context.served_name(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("either prompt or messages is required", field="prompt")
    if body.messages is not None:
        conversation = Conversation(
            messages=template_messages(body.messages),
            tools=template_tools(body.tools),
            add_generation_prompt=body.add_generation_prompt is not False,
            chat_template=body.chat_template,
            template_variables=body.chat_template_kwargs or {},
        )
        work = render_turn(request, context, conversation)
    else:
        work = context.service.tokenize(body.prompt or "", add_special_tokens=body.add_special_tokens is not False)
    tokens = await until_disconnect(request.receive, work)
    answer: dict[str, Any] = {"count": len(tokens), "max_model_len": context.service.max_model_len, "tokens": tokens}
    tokenizer = context.service.tokenizer
    if body.return_token_strs and tokenizer is not None:
        answer["token_strs"] = [tokenizer.token_text(token) for token in tokens]
    return json_response(answer)


async def detokenize(request: Request) -> Response:
    """Return the text of token ids, special tokens included."""
    context, body = await asked_of(request, DetokenizeBody)
    context.served_name(body.model)
    text = await until_disconnect(request.receive, context.service.detokenize(body.tokens))
    return json_response({"prompt": text})
