"""One turn of a conversation: what every chat protocol asks for, and the events that its routes encode."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.requests import Request

from octavo.frontend.server.context import ServerContext
from octavo.frontend.server.disconnect import until_disconnect
from octavo.frontend.server.events import Generation, start
from octavo.frontend.text.dialects.events import (
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
    TurnDelta,
    TurnFinish,
)
from octavo.protocol.output import Logprob
from octavo.protocol.sampling import SamplingParams

ToolChoice = Literal["auto", "none", "required"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a model is to answer, in the shapes of OpenAI's chat messages and tools, which chat templates know.

    messages: {"role", "content", "tool_calls", "tool_call_id", "reasoning_content" …}; arguments of calls as JSON text or as
    objects. tools: {"type": "function", "function": {"name", "description", "parameters", "strict"}}. tool_name: the one tool
    that must be called; tool_choice is "required" then. template_variables: further variables of the chat template.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: ToolChoice = "auto"
    tool_name: str | None = None
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_variables: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Turn:
    """The running answer to a conversation. `events()` once, then `aclose()`, which aborts what still runs."""

    def __init__(self, generation: Generation, num_choices: int) -> None:
        self._generation = generation
        self.generation = generation
        self.num_choices = num_choices

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens so far, in OpenAI's shape."""
        return self._generation.usage

    async def events(self) -> AsyncIterator[list[TurnDelta]]:
        """Yield what is new, as `octavo/frontend/text/dialects/events.py` says; raises what `Generation.events` raises."""
        async for outputs in self._generation.events():
            yield [
                TurnDelta(
                    index=one.index,
                    events=[TextDelta(one.text)] if one.text else [],
                    token_ids=one.token_ids,
                    logprobs=one.logprobs,
                    finish_reason=one.finish_reason,
                    stop_reason=one.stop_reason,
                )
                for one in outputs
            ]

    async def aclose(self) -> None:
        """Abort what still runs and settle the books; idempotent."""
        await self._generation.aclose()

    async def __aenter__(self) -> Turn:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


async def render_turn(request: Request, context: ServerContext, conversation: Conversation) -> list[int]:
    """Return the token ids of a conversation; raises InvalidRequestError naming the field, or ClientGoneError."""
    rendering = context.service.chat_prompt(
        conversation.messages,
        add_generation_prompt=conversation.add_generation_prompt,
        template_kwargs=conversation.template_variables,
    )
    return await until_disconnect(request.receive, rendering)


async def begin_turn(
    request: Request,
    context: ServerContext,
    conversation: Conversation,
    params: SamplingParams,
    *,
    request_id: str,
    priority: int = 0,
    cache_salt: str = "",
) -> Turn:
    """Render the conversation and queue it; raises InvalidRequestError naming the field, or ClientGoneError."""
    prompt = await render_turn(request, context, conversation)
    starting = start(context, [prompt], params, request_id=request_id, priority=priority, cache_salt=cache_salt)
    return Turn(await until_disconnect(request.receive, starting), params.n)


@dataclass(slots=True, kw_only=True)
class WholeCall:
    """A call of a tool; arguments is JSON text."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True, kw_only=True)
class WholeTurn:
    """One choice, whole: the events of its deltas put together."""

    index: int
    text: str = ""
    reasoning: str = ""
    calls: list[WholeCall] = field(default_factory=list[WholeCall])
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[dict[int, Logprob]] = field(default_factory=list[dict[int, Logprob]])
    finish_reason: TurnFinish | None = None
    stop_reason: int | str | None = None

    def add(self, delta: TurnDelta) -> None:
        """Take what is new of this choice."""
        for event in delta.events:
            match event:
                case TextDelta(text=text):
                    self.text += text
                case ReasoningDelta(text=text):
                    self.reasoning += text
                case ToolCallBegin(id=id, name=name):
                    self.calls.append(WholeCall(id=id, name=name))
                case ToolCallArguments(fragment=fragment):
                    self.calls[-1].arguments += fragment
                case _:
                    pass
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or []
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


async def collect_turn(request: Request, turn: Turn) -> list[WholeTurn]:
    """Return all choices, whole; raises the generation's errors, or ClientGoneError."""
    choices = [WholeTurn(index=index) for index in range(turn.num_choices)]

    async def gather() -> None:
        async for deltas in turn.events():
            for delta in deltas:
                choices[delta.index].add(delta)

    async with turn:
        await until_disconnect(request.receive, gather())
    return choices
