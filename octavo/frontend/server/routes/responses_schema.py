"""The body of OpenAI's Responses, and the chat it asks for: items there are messages, calls and results of tools here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from octavo.base.errors import InvalidRequestError
from octavo.frontend.server.routes.openai_schema import named_sampling, response_form, unsupported
from octavo.frontend.server.turns import Conversation
from octavo.protocol.sampling import SamplingParams

Messages = list[dict[str, Any]]
_TEXTS = ("input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text")


class Part(msgspec.Struct, kw_only=True):
    """A part of an item's content."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Item(msgspec.Struct, kw_only=True):
    """One item of the input, of any type; what its type needs is checked when it is read."""

    type: str = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A function of the client's own; the server runs none."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolName(msgspec.Struct, kw_only=True):
    """The one function that must be called."""

    type: Literal["function"]
    name: str


class ResponsesBody(msgspec.Struct, kw_only=True):
    """POST /v1/responses."""

    input: str | list[Item] | None = None
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolName | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    reasoning: dict[str, str | None] | None = None
    text: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    conversation: Any = None
    prompt: Any = None


def check(body: ResponsesBody, *, alone: bool) -> None:
    """Refuse what is not supported, naming the field; raises InvalidRequestError.

    alone: there is one front, so that the process that is asked is the one that keeps the answer.
    """
    if not body.input:
        raise InvalidRequestError("input is required", field="input")
    if body.background and (body.stream or body.store is False):
        field = "stream" if body.stream else "store"
        raise InvalidRequestError(f"{field}: an answer in the background is stored, and not streamed", field=field)
    kept = {"background": body.background, "previous_response_id": body.previous_response_id}
    for name in filter(kept.get, () if alone else kept):
        raise InvalidRequestError(f"{name}: a server of several fronts keeps no responses", field=name)
    hosted = {"conversation": body.conversation, "prompt": body.prompt, "top_logprobs": body.top_logprobs}
    for name in filter(hosted.get, hosted):
        raise unsupported(name)
    if body.truncation == "auto":
        raise unsupported("truncation", "truncation 'auto'")
    if "message.output_text.logprobs" in (body.include or ()):
        raise unsupported("include", "include of message.output_text.logprobs")


def conversation(body: ResponsesBody, messages: Messages) -> Conversation:
    """Return what the model is to answer. messages: the chat so far, without the instructions."""
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    named = body.tool_choice if isinstance(body.tool_choice, ToolName) else None
    return Conversation(
        messages=[*system, *messages],
        tools=[_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())],
        tool_choice="required" if isinstance(body.tool_choice, ToolName) else body.tool_choice or "auto",
        tool_name=None if named is None else named.name,
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=(body.reasoning or {}).get("effort"),
    )


def sampling(body: ResponsesBody, defaults: Mapping[str, Any]) -> SamplingParams:
    """Return the parameters a body asks for; raises InvalidRequestError naming the field."""
    form = response_form((body.text or {}).get("format"), "text.format") or None
    given = {"max_tokens": body.max_output_tokens, "temperature": body.temperature, "top_p": body.top_p}
    names = {"max_tokens": "max_output_tokens", "structured_outputs": "text.format"}
    return named_sampling({**given, "structured_outputs": form}, defaults, names)


def add_items(messages: Messages, items: str | Sequence[Item]) -> Messages:
    """Return a chat with these items behind it; raises InvalidRequestError or UnsupportedError naming the item.

    Thoughts, text and calls that follow each other are one turn of the assistant's.
    """
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    messages = list(messages)
    for index, item in enumerate(items):
        where = f"input[{index}]"
        match item.type:
            case "message":
                role = _needed(item.role, f"{where}.role")
                text = _text(_needed(item.content, f"{where}.content"), f"{where}.content")
                if role == "assistant":
                    turn = _assistant(messages)
                    turn["content"] += text
                else:
                    messages.append({"role": role, "content": text})
            case "reasoning":
                _assistant(messages)["reasoning_content"] = _text(item.content or "", f"{where}.content")
            case "function_call":
                name, arguments = _needed(item.name, f"{where}.name"), _needed(item.arguments, f"{where}.arguments")
                call = {"type": "function", "function": {"name": name, "arguments": arguments}}
                calls = _assistant(messages).setdefault("tool_calls", [])
                calls.append({"id": _needed(item.call_id, f"{where}.call_id"), **call})
            case "function_call_output":
                text = _text(_needed(item.output, f"{where}.output"), f"{where}.output")
                id = _needed(item.call_id, f"{where}.call_id")
                messages.append({"role": "tool", "tool_call_id": id, "content": text})
            case other:
                raise unsupported(f"{where}.type", f"{where}.type {other!r}")
    return messages


def _assistant(messages: Messages) -> dict[str, Any]:
    """Return the assistant's turn at the end, a copy or a new one, to be added to."""
    if messages and messages[-1]["role"] == "assistant":
        last = messages.pop()
        last = {**last, "tool_calls": list(last["tool_calls"])} if "tool_calls" in last else dict(last)
    else:
        last = {"role": "assistant", "content": ""}
    messages.append(last)
    return last


def _needed(value: Any, field: str) -> Any:
    if value is None:
        raise InvalidRequestError(f"{field} is required", field=field)
    return value


def _text(content: str | Sequence[Part], field: str) -> str:
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for index, part in enumerate(content):
        if part.type not in _TEXTS:
            raise unsupported(f"{field}[{index}].type", f"{field}[{index}].type {part.type!r}")
        texts.append(_needed(part.refusal if part.type == "refusal" else part.text, f"{field}[{index}].text"))
    return "\n".join(texts)


def _tool(tool: Tool, where: str) -> dict[str, Any]:
    if tool.type != "function":
        raise unsupported(f"{where}.type", f"{where}.type {tool.type!r}")
    function: dict[str, Any] = {"name": _needed(tool.name, f"{where}.name"), "parameters": tool.parameters or {}}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}
