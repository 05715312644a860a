"""One turn of a conversation: what every chat protocol asks for, and the events that its routes encode."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.requests import Request

from octavo.base.errors import GenerationError, InvalidRequestError, UnsupportedError
from octavo.constrain.grammar import form_of
from octavo.frontend.server.context import ServerContext
from octavo.frontend.server.disconnect import until_disconnect
from octavo.frontend.server.events import Generation, start
from octavo.frontend.text.dialects.events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
    TurnDelta,
    TurnFinish,
)
from octavo.frontend.text.dialects.family import Schemas
from octavo.frontend.text.dialects.grammar import Tool, TurnForm
from octavo.frontend.text.dialects.written_out import written_out
from octavo.protocol.output import CompletionOutput, Logprob
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.structured import StructuredOutputsParams

ToolChoice = Literal["auto", "none", "required"]
_NAME = re.compile(r"[\w.\-]{1,64}")


class NoCallError(GenerationError):
    """A call of a tool was required, and the model made none."""

    status = 422
    kind = "no_tool_call"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a model is to answer, in the shapes of OpenAI's chat messages and tools, which chat templates know.

    messages: {"role", "content", "tool_calls", "tool_call_id", "reasoning_content" …}; arguments of calls as JSON text or as
    objects. tools: {"type": "function", "function": {"name", "description", "parameters", "strict"}}; the model hears nothing
    of them with the choice "none". tool_name: the one tool that must be called; tool_choice is "required" then.
    include_reasoning: whether thoughts are among the events. chat_template: instead of the
    model's, where the server trusts its clients. template_variables: further ones of the chat template, before
    which the server's own come.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: ToolChoice = "auto"
    tool_name: str | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    template_variables: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def continued(self) -> str | None:
        """What the answer goes on with."""
        last = self.messages[-1].get("content") if self.continue_final_message else None
        return last if isinstance(last, str) else None

    @property
    def schemas(self) -> Schemas:
        """The schemas of the parameters of the tools that may be called, by their names."""
        tools = () if self.tool_choice == "none" else self.tools
        return {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}


class Turn:
    """The running answer to a conversation: `deltas` of all that `generation` gives."""

    def __init__(
        self, context: ServerContext, conversation: Conversation, generation: Generation, params: SamplingParams
    ) -> None:
        self.generation = generation
        self._speech = context.speech
        self._conversation = conversation
        self._num_thoughts = 0
        self._parsers = context.speech.parsers(
            conversation.schemas,
            generation.prompts[0][1],
            params.n,
            continued=conversation.continued,
            one_call=conversation.parallel_tool_calls is False or conversation.tool_name is not None,
        )

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens so far, in OpenAI's shape."""
        if not self._speech.thinks:
            return self.generation.usage
        return {**self.generation.usage, "completion_tokens_details": {"reasoning_tokens": self._num_thoughts}}

    def deltas(self, outputs: Sequence[CompletionOutput]) -> list[TurnDelta]:
        """Return what `Generation.events` yielded as `octavo/frontend/text/dialects/events.py` says.

        Raises NoCallError where a call was required and there is none.
        """
        return [self._delta(one) for one in outputs]

    def _delta(self, one: CompletionOutput) -> TurnDelta:
        parser = self._parsers[one.index]
        events: list[Event] = [TextDelta(one.text)] if one.text else []
        finish, stop = one.finish_reason, one.stop_reason
        if parser is None and finish is None:  # As for most tokens.
            return TurnDelta(index=one.index, events=events, token_ids=one.token_ids, logprobs=one.logprobs)
        num_calls = 0
        if parser is not None:
            before = parser.thinking
            events = parser.push(one.text)
            self._num_thoughts += self._count(one.token_ids, before, parser.thinking)
            if finish is not None:
                events += parser.end()
            num_calls = parser.num_calls
        if not self._conversation.include_reasoning:
            events = [event for event in events if not isinstance(event, ReasoningDelta)]
        if finish is not None and self._conversation.tool_choice == "required" and not num_calls:
            raise NoCallError("tool_choice asks for a call, and the model made none", field="tool_choice")
        return TurnDelta(
            index=one.index,
            events=events,
            token_ids=one.token_ids,
            logprobs=one.logprobs,
            finish_reason="tool_calls" if finish == "stop" and num_calls else finish,
            stop_reason=None if num_calls and isinstance(stop, str) else stop,
        )

    def _count(self, ids: Sequence[int], before: bool, after: bool) -> int:
        """Return how many tokens are of thoughts; a marker counts as one where it ends them."""
        if before == after:
            return len(ids) * before
        marked = [place for place, index in enumerate(ids, 1) if index in self._speech.thought_ids]
        return (marked[0] if marked else len(ids)) if before else (len(ids) - marked[-1] if marked else 0)


async def render_turn(request: Request, context: ServerContext, conversation: Conversation) -> list[int]:
    """Return the token ids of a conversation; raises InvalidRequestError naming the field, or ClientGoneError."""
    _check_tools(conversation, context)
    if conversation.chat_template is not None and not context.config.trust_request_chat_template:
        raise InvalidRequestError(
            "chat_template: the server takes none from requests (--trust-request-chat-template)", field="chat_template"
        )
    messages, tools = conversation.messages, conversation.tools if conversation.schemas else ()
    effort = conversation.reasoning_effort
    variables = dict(context.config.default_chat_template_kwargs or {})
    if effort is not None:
        off = {"enable_thinking": False, "thinking": False} if effort == "none" else {}
        variables |= {"reasoning_effort": effort, **off}
    variables |= conversation.template_variables
    if context.speech.written_out and (tools or any(message.get("tool_calls") for message in messages)):
        messages, tools = written_out(messages, tools), ()
    if tools:
        variables["tools"] = list(tools)
    rendering = context.service.chat_prompt(
        messages,
        add_generation_prompt=conversation.add_generation_prompt,
        continue_final_message=conversation.continue_final_message,
        chat_template=conversation.chat_template,
        template_kwargs=variables,
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
    tools = bool(conversation.schemas)
    # Not on the loop: nobody knows how long it takes to look at a schema.
    formed = tools or params.structured_outputs is not None or params.thinking_token_budget is not None
    work = functools.partial(_formed, context, conversation, prompt, params)
    starting = start(
        context,
        [prompt],
        await asyncio.to_thread(work) if formed else params,
        request_id=request_id,
        priority=priority,
        cache_salt=cache_salt,
        shown=context.speech.shown(tools=tools),
    )
    return Turn(context, conversation, await until_disconnect(request.receive, starting), params)


def _formed(
    context: ServerContext, conversation: Conversation, prompt: Sequence[int], params: SamplingParams
) -> SamplingParams:
    """Return the parameters with the grammar of the turn; raises InvalidRequestError naming the schema at fault."""
    form, required = params.structured_outputs, conversation.tool_choice == "required"
    tools = [
        Tool(
            name=tool["function"]["name"],
            schema=tool["function"].get("parameters") or {},
            field=f"tools[{index}].function.parameters",
            strict=bool(tool["function"].get("strict")),
        )
        for index, tool in enumerate(conversation.tools if conversation.schemas else ())
        if conversation.tool_name in (None, tool["function"]["name"])
    ]
    one = conversation.tool_name is not None or conversation.parallel_tool_calls is False
    # Small models that must call would call for ever.
    most = 1 if one else None if conversation.parallel_tool_calls or not required else len(tools)
    turn = TurnForm(
        form=None if form is None or required else form_of(form),
        tools=tools,
        required=required,
        most=most,
        budget=params.thinking_token_budget,
    )
    lark = context.speech.grammar(turn, prompt, conversation.continued)
    found = None if lark is None else StructuredOutputsParams(lark=lark)
    return dataclasses.replace(params, structured_outputs=found, thinking_token_budget=None)


def _check_tools(conversation: Conversation, context: ServerContext) -> None:
    """Raise InvalidRequestError naming the tool at fault."""
    names: list[Any] = []
    for index, tool in enumerate(conversation.tools):
        function: Any = tool.get("function")
        field = f"tools[{index}].function"
        if not isinstance(function, Mapping) or not isinstance(function.get("parameters") or {}, Mapping):
            raise InvalidRequestError(f"{field} must be an object, and so must its parameters", field=field)
        name: Any = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidRequestError(
                f"{field}.name must be 1 to 64 letters, digits, _, - or dots, not {name!r}", field=f"{field}.name"
            )
        if name in names:
            raise InvalidRequestError(f"{field}.name: there are two tools named {name!r}", field=f"{field}.name")
        names.append(name)
    if names and not context.speech.takes_tools:
        raise UnsupportedError("tools: this server was started with tool_call_parser none", field="tools")
    if conversation.tool_choice == "required" and not names:
        raise InvalidRequestError("tool_choice needs tools to choose from", field="tool_choice")
    if conversation.tool_name is not None and conversation.tool_name not in names:
        raise InvalidRequestError(
            f"tool_choice: there is no tool named {conversation.tool_name!r}", field="tool_choice"
        )


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
