"""Bodies of Anthropic's messages routes, and the chat they ask for.

Fields nobody here knows are ignored, as `cache_control`; blocks and tools that this server cannot take are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from octavo.base.errors import InvalidRequestError
from octavo.frontend.server.routes.openai_schema import named_sampling, response_form, unsupported
from octavo.frontend.server.turns import Conversation
from octavo.protocol.sampling import SamplingParams

FORMAT = {"structured_outputs": "output_config.format"}


class TextBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="text"):
    """Text."""

    text: str


class ThinkingBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="thinking"):
    """What the model thought before it answered."""

    thinking: str


class RedactedThinkingBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="redacted_thinking"):
    """Thoughts that only Anthropic's servers can read: dropped."""


class ToolUseBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="tool_result"):
    """What the tool answered."""

    tool_use_id: str
    content: str | list[TextBlock] | None = None


Block = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock


class Turn(msgspec.Struct, kw_only=True):
    """One turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Tool(msgspec.Struct, kw_only=True):
    """A tool of the client's own; the server runs none."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    """Which tools may, or must, be used."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True):
    """Whether the model thinks before it answers, and for how many tokens at most."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None


class OutputConfig(msgspec.Struct, kw_only=True):
    """How much effort to spend, and the form of the answer."""

    effort: str | None = None
    format: dict[str, Any] | None = None


class CountBody(msgspec.Struct, kw_only=True):
    """POST /v1/messages/count_tokens."""

    messages: list[Turn]
    model: str
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesBody(CountBody, kw_only=True):
    """POST /v1/messages."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None


def conversation(body: CountBody) -> Conversation:
    """Return what the model is to answer; raises InvalidRequestError or UnsupportedError naming the field."""
    messages: list[dict[str, Any]] = []
    if body.system:
        messages.append({"role": "system", "content": _text(body.system)})
    for index, turn in enumerate(body.messages):
        _check_turn(turn, f"messages[{index}]")
        messages += _messages(turn)
    choice = body.tool_choice or ToolChoice(type="auto")
    if (choice.type == "tool") != (choice.name is not None):
        raise InvalidRequestError(
            "tool_choice.name goes with the type 'tool', which needs it", field="tool_choice.name"
        )
    config = body.output_config or OutputConfig()
    thinking = body.thinking
    # A last turn of the assistant's is the beginning of the answer.
    begun = bool(body.messages) and body.messages[-1].role == "assistant"
    return Conversation(
        messages=messages,
        tools=[_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())],
        tool_choice="required" if choice.type in ("any", "tool") else choice.type,
        tool_name=choice.name,
        parallel_tool_calls=False if choice.disable_parallel_tool_use else None,
        reasoning_effort=config.effort,
        add_generation_prompt=not begun,
        continue_final_message=begun,
        template_variables={} if thinking is None else {"enable_thinking": thinking.type != "disabled"},
    )


def sampling(body: MessagesBody, defaults: Mapping[str, Any]) -> SamplingParams:
    """Return the parameters a body asks for; raises InvalidRequestError naming the field."""
    form = None if body.output_config is None else body.output_config.format
    given = {
        "max_tokens": body.max_tokens,
        "temperature": body.temperature,
        "top_k": body.top_k,
        "top_p": body.top_p,
        "stop": body.stop_sequences,
        "structured_outputs": response_form(form, FORMAT["structured_outputs"]) or None,
    }
    return named_sampling(given, defaults, {"stop": "stop_sequences", **FORMAT})


def _messages(turn: Turn) -> Iterator[dict[str, Any]]:
    """Yield a turn as OpenAI's messages: results of tools are messages of their own there."""
    if isinstance(turn.content, str):
        yield {"role": turn.role, "content": turn.content}
        return
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in turn.content:
        match block:
            case TextBlock():
                texts.append(block.text)
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case ToolUseBlock():
                function = {"name": block.name, "arguments": block.input}
                calls.append({"id": block.id, "type": "function", "function": function})
            case ToolResultBlock():
                content = _text(block.content or "")
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
            case RedactedThinkingBlock():
                pass
    if turn.role == "assistant" or texts:
        message: dict[str, Any] = {"role": turn.role, "content": ("" if turn.role == "assistant" else "\n").join(texts)}
        if thoughts:
            message["reasoning_content"] = "".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        yield message


def _check_turn(turn: Turn, where: str) -> None:
    """Raise InvalidRequestError if a block is in the wrong turn."""
    for index, block in enumerate(turn.content if isinstance(turn.content, list) else ()):
        own = {"user": (TextBlock, ToolResultBlock), "system": (TextBlock,)}.get(turn.role)
        allowed = isinstance(block, own) if own else not isinstance(block, ToolResultBlock)
        if not allowed:
            kind = type(block).__struct_config__.tag
            raise InvalidRequestError(
                f"a turn of the {turn.role} has no {kind}", field=f"{where}.content[{index}].type"
            )


def _text(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def _tool(tool: Tool, where: str) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise unsupported(f"{where}.type", f"{where}.type {tool.type!r}")
    if tool.input_schema is None:
        raise InvalidRequestError(f"{where}.input_schema is required", field=f"{where}.input_schema")
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": function if tool.strict is None else {**function, "strict": tool.strict}}
