"""Bodies of OpenAI's completion routes, with the extra fields that vLLM's users send.

null is the same as absent. Fields nobody here knows are ignored, as clients send many; fields that are known, not supported
yet and would change the answer are refused by name.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from octavo.base.errors import InvalidRequestError, UnsupportedError
from octavo.frontend.server.body import check_numbers
from octavo.frontend.server.errors import renamed
from octavo.protocol.sampling import MAX_CHOICES, SamplingParams

MAX_PROMPTS = 1024
_MAX_SALT = 1024


class StreamOptions(msgspec.Struct, kw_only=True):
    """What a stream carries besides text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageWishes:
    """Whether usage is told in a last chunk, and in every chunk so far."""

    at_end: bool
    always: bool


class TextPart(msgspec.Struct, kw_only=True):
    """One part of a message's content."""

    type: str
    text: str | None = None


class Function(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a tool is called, does and takes. strict: a schema that no grammar can say is refused."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A tool that the model may call, or by its name alone the one that it must."""

    type: Literal["function"]
    function: Function


class Message(msgspec.Struct, kw_only=True):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    function_call: Any = None
    audio: Any = None


class CommonFields(msgspec.Struct, kw_only=True):
    """What both routes take."""

    model: str | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    repetition_detection: dict[str, int] | None = None
    echo: bool | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    stream_interval: int | None = None
    vllm_xargs: dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int | None = None
    cache_salt: str | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    thinking_token_budget: int | None = None


class CompletionBody(CommonFields, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]] | None = None
    logprobs: int | None = None


class ChatBody(CommonFields, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | Tool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None


def _is(*harmless: Any) -> Callable[[Any], bool]:
    return lambda value: value in harmless


_empty, _never = operator.not_, _is()


# Field -> whether a value changes nothing, so that it may pass.
_REFUSED: Mapping[str, Callable[[Any], bool]] = {
    "audio": _never,
    "best_of": _is(1),
    "function_call": _is("none", "auto"),
    "functions": _empty,
    **dict.fromkeys(("guided_choice", "guided_grammar", "guided_json", "guided_regex"), _never),
    "kv_transfer_params": _empty,
    "logits_processors": _empty,
    "mm_processor_kwargs": _empty,
    "modalities": _is([], ["text"]),
    "prompt_embeds": _never,
    "suffix": _empty,
    "web_search_options": _never,
}
_INSTEAD = {
    "functions": "tools",
    "function_call": "tool_choice",
    **dict.fromkeys(("guided_choice", "guided_grammar", "guided_json", "guided_regex"), "structured_outputs"),
}
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def refuse_unsupported(data: bytes) -> None:
    """Raise UnsupportedError naming the first field of a body that would change the answer and is not supported yet.

    `data` is a JSON object.
    """
    for name, raw in _FIELDS.decode(data).items():
        harmless = _REFUSED.get(name)
        if harmless is None:
            continue
        value = msgspec.json.decode(raw)
        if value is not None and not harmless(value):
            if name in _INSTEAD:
                raise UnsupportedError(f"{name} is not supported: use {_INSTEAD[name]}", field=name)
            raise unsupported(name)


def unsupported(field: str, what: str = "") -> UnsupportedError:
    """Return the error for a field that is known and does nothing yet."""
    return UnsupportedError(f"{what or field} is not supported yet", field=field)


def check_common(body: CommonFields, num_prompts: int) -> None:
    """Check what neither the types nor SamplingParams do; raises InvalidRequestError naming the field."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError("stream_options is only allowed with stream: true", field="stream_options")
    if body.cache_salt is not None and not 1 <= len(body.cache_salt) <= _MAX_SALT:
        raise InvalidRequestError(f"cache_salt must have 1 to {_MAX_SALT} characters", field="cache_salt")
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidRequestError("prompt_logprobs are not part of a stream; use echo", field="prompt_logprobs")
    if (body.n or 1) * num_prompts > MAX_CHOICES:
        raise InvalidRequestError(f"n times the number of prompts must be at most {MAX_CHOICES}", field="n")


def usage_wishes(body: CommonFields, forced: bool) -> UsageWishes:
    """Return what a stream says of usage. forced: at its end in any case."""
    options = body.stream_options or StreamOptions()
    wanted = bool(options.include_usage) or forced
    return UsageWishes(at_end=wanted, always=wanted and bool(options.continuous_usage_stats))


def check_logprobs(name: str, asked: int | None, most: int) -> None:
    """Raise InvalidRequestError if more alternatives are asked for than the server gives."""
    if asked is not None and not 0 <= asked <= most:
        raise InvalidRequestError(f"{name} must be between 0 and {most}, not {asked}", field=name)


def sampling_params(body: CommonFields, defaults: Mapping[str, Any], **overrides: Any) -> SamplingParams:
    """Return the parameters a body asks for; raises InvalidRequestError naming the field that is out of range.

    defaults: the model's own, of what the body leaves out.
    """
    given = {name: getattr(body, name) for name in _SAMPLING if getattr(body, name) is not None}
    if body.vllm_xargs:
        check_numbers(body.vllm_xargs, "vllm_xargs")
        given["extra_args"] = body.vllm_xargs
    given["structured_outputs"] = wanted_form(body)
    return SamplingParams(**{**defaults, **given, **overrides})


def wanted_form(body: CommonFields) -> dict[str, Any] | None:
    """Return what the answer's form must be; raises InvalidRequestError naming the field."""
    wish = response_form(body.response_format, "response_format")
    if wish and body.structured_outputs:
        raise InvalidRequestError("response_format and structured_outputs do not go together", field="response_format")
    return wish or body.structured_outputs


def form_names(body: CommonFields) -> dict[str, str]:
    """Return what the client calls `structured_outputs`, for errors."""
    return {} if body.structured_outputs else {"structured_outputs": "response_format"}


def response_form(given: Mapping[str, Any] | None, field: str) -> dict[str, Any]:
    """Return what `StructuredOutputsParams` are asked for by a response format; nothing for text."""
    match given:
        case None | {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return {"json_object": True}
        case {"type": "json_schema", "json_schema": {"schema": schema}} | {"type": "json_schema", "schema": schema}:
            return {"json": schema}
        case {"type": "json_schema"}:
            raise InvalidRequestError(f"{field}.json_schema.schema is required", field=f"{field}.json_schema.schema")
        case {"type": "structural_tag"}:
            return {"structural_tag": given}
        case _:
            kinds = "text, json_object, json_schema or structural_tag"
            raise InvalidRequestError(f"{field}.type must be {kinds}", field=f"{field}.type")


def named_sampling(given: Mapping[str, Any], defaults: Mapping[str, Any], names: Mapping[str, str]) -> SamplingParams:
    """Return the parameters that another protocol asks for. names: ours -> the client's, for errors; None is not given."""
    known = {name: value for name, value in given.items() if value is not None}
    merged: dict[str, Any] = {"max_tokens": None, **defaults, **known}
    try:
        return SamplingParams(**merged)
    except InvalidRequestError as error:
        raise renamed(error, names) from error


# What both name alike.
_SAMPLING = {one.name for one in dataclasses.fields(SamplingParams)} & set(CommonFields.__struct_fields__) - {
    "structured_outputs"
}
