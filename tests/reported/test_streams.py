"""How streams begin, tell usage and end, whatever happens, and numbers that are none, on every route that makes text."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from octavo.config.serve import ServeConfig
from tests.server.fake_service import FakeService, answer_text
from tests.server.harness import client, events_of, run
from tests.server.speaker import Speaker

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES, OLLAMA, TOKENS = "/v1/messages", "/v1/responses", "/api/chat", "/inference/v1/generate"
USER = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER, "max_tokens": 6},
    TEXT: {"prompt": "Hi", "max_tokens": 6},
    MESSAGES: {"model": "tiny", "messages": USER, "max_tokens": 6},
    RESPONSES: {"input": "Hi", "max_output_tokens": 6},
    OLLAMA: {"model": "tiny", "messages": USER, "options": {"num_predict": 6}},
    TOKENS: {"token_ids": [5], "sampling_params": {"max_tokens": 6}},
}


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def config() -> ServeConfig:
    return ServeConfig(served_model_name=("tiny",), max_logprobs=5)


async def _post(service: FakeService, config: ServeConfig, route: str, body: Any) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with client(service, config) as http:
        return await http.post(route, content=data)


def _of_openai(service: FakeService, config: ServeConfig, route: str, body: Any) -> list[dict[str, Any]]:
    answer = run(_post(service, config, route, {**BODIES[route], **body, "stream": True}))
    assert answer.status_code == 200, answer.text
    events = events_of(answer.text)
    assert events.pop() == "[DONE]"
    assert "[DONE]" not in events
    return [json.loads(event) for event in events]


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("continuous", [None, False, True])
@pytest.mark.parametrize("include", [None, False, True])
@pytest.mark.parametrize("route", [CHAT, TEXT])
def test_usage_comes_once_and_only_when_asked_for(
    config: ServeConfig, route: str, include: bool | None, continuous: bool | None, n: int, tools: bool
) -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"a": [1, {"b": "}"}]}}\n</tool_call>'
    service = Speaker("Words." + (call if tools else ""), template="{{ messages }}<tool_call></tool_call>")
    options = {"include_usage": include, "continuous_usage_stats": continuous}
    body: dict[str, Any] = {"n": n, "stream_options": options}
    if tools and route == CHAT:
        body["tools"] = [{"type": "function", "function": {"name": "f"}}]
    events = _of_openai(service, config, route, body)
    whole = run(_post(service, config, route, {**BODIES[route], **body, "stream_options": None})).json()
    if not include:
        assert not any("usage" in event for event in events)
        assert all(event["choices"] for event in events)
        return
    last = events.pop()
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert all(event["choices"] for event in events)
    told = [event["usage"] for event in events]
    assert all((usage is not None) == bool(continuous) for usage in told)
    if continuous:
        counts = [usage["completion_tokens"] for usage in told]
        assert counts == sorted(counts)
        assert counts[-1] == last["usage"]["completion_tokens"]


@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("route", [CHAT, TEXT])
def test_every_choice_has_one_reason_and_all_chunks_before_have_none(
    config: ServeConfig, route: str, n: int, reason: str
) -> None:
    service = Speaker("Short.", "A longer answer.", template=None)
    service.reason = reason
    reasons: dict[int, list[Any]] = {index: [] for index in range(n)}
    for event in _of_openai(service, config, route, {"n": n}):
        for choice in event["choices"]:
            # There, and null, in every chunk: clients read it without asking whether it is.
            reasons[choice["index"]].append(choice["finish_reason"])
    for found in reasons.values():
        assert found == [None] * (len(found) - 1) + [reason]
        assert len(found) > 1


# What goes wrong after some tokens, and the type that OpenAI's errors have then.
FAILURES: dict[str, tuple[Callable[[FakeService], Any], str]] = {
    "the model": (lambda service: None, "generation_error"),
    "the engine": (lambda service: setattr(service, "dead", True), "engine_dead_error"),
    "the server": (lambda service: setattr(service, "aborting", True), "shutting_down_error"),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("route", BODIES)
def test_a_failing_stream_ends_with_an_event_of_its_protocol(
    service: FakeService, config: ServeConfig, route: str, failure: str
) -> None:
    fail, kind = FAILURES[failure]
    service.delay = 0.01
    service.fail_at = 3 if failure == "the model" else None

    async def ask() -> Any:
        async with client(service, config) as http:
            asking = asyncio.create_task(http.post(route, json={**BODIES[route], "stream": True}))
            while not any(stream._position > 2 for stream in service.open):
                await asyncio.sleep(0.001)
            if failure == "the server":
                service._draining = True
            fail(service)
            return await asking

    answer = run(ask())
    assert answer.status_code == 200
    assert not service.open
    if route == OLLAMA:
        *lines, last = [json.loads(line) for line in answer.text.splitlines()]
        assert last["error"]
        assert not any("error" in line or line["done"] for line in lines)
        text = "".join(line["message"]["content"] for line in lines)
    elif route in (CHAT, TEXT, TOKENS):
        *events, last, done = events_of(answer.text)
        assert done == "[DONE]"
        assert json.loads(last)["error"]["type"] == kind
        assert set(json.loads(last)["error"]) == {"message", "type", "param", "code"}
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
        assert all(choice["finish_reason"] is None for choice in choices)
        text = "".join(c.get("text") or c.get("delta", {}).get("content", "") for c in choices)
    else:
        blocks = [block.split("\n") for block in answer.text.removesuffix("\n\n").split("\n\n")]
        events = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
        assert [name for name, _ in blocks] == [f"event: {event['type']}" for event in events]
        if route == MESSAGES:
            assert (events[-1]["type"], set(events[-1]["error"])) == ("error", {"type", "message"})
            assert "message_stop" not in [event["type"] for event in events]
            text = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
        else:
            response = events[-1]["response"]
            assert (events[-1]["type"], response["status"]) == ("response.failed", "failed")
            assert set(response["error"]) == {"code", "message"}
            text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    # What had come before was not kept back.
    assert text in ([""] if route == TOKENS else [answer_text(0, count) for count in (2, 3, 4, 5)])


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400"])
@pytest.mark.parametrize(
    ("route", "field"),
    [
        *itertools.product(
            (CHAT, TEXT),
            ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "length_penalty"),
        ),
        (MESSAGES, "temperature"),
        (MESSAGES, "top_p"),
        (RESPONSES, "temperature"),
        (RESPONSES, "top_p"),
        (OLLAMA, "options.temperature"),
        (OLLAMA, "options.repeat_penalty"),
        (TOKENS, "sampling_params.temperature"),
        (TOKENS, "sampling_params.min_p"),
        (CHAT, "logit_bias.5"),
        (TEXT, "top_k"),
        (TEXT, "seed"),
        (CHAT, "n"),
    ],
)  # fmt: skip
def test_what_is_no_finite_number_is_refused(
    service: FakeService, config: ServeConfig, route: str, field: str, number: str
) -> None:
    *outer, name = field.split(".")
    body = json.loads(json.dumps(BODIES[route]))
    if field == "length_penalty":
        body["use_beam_search"] = True
    inside = body.setdefault(outer[0], {}) if outer else body
    inside[name] = "NUMBER"
    answer = run(_post(service, config, route, json.dumps(body).replace('"NUMBER"', number).encode()))
    assert answer.status_code == 400, answer.text
    # The body of a route for programs is read at once: what is no JSON has no field, and not all of one is named.
    named = "sampling_params" if number.endswith("400") and route == TOKENS else name
    named = "JSON" if route == TOKENS and named == name else {"logit_bias.5": "logit_bias"}.get(field, named)
    assert named in answer.text
    assert (service.requests, service.open) == ([], set())


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        (CHAT, {"logprobs": True, "top_logprobs": True}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 2.5}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": -2}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": "2"}, "top_logprobs"),
        (CHAT, {"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
        (TEXT, {"logprobs": 2.5}, "logprobs"),
        (TEXT, {"logprobs": 10**6}, "logprobs"),
        (TEXT, {"logprobs": 2**70}, "logprobs"),
        (TEXT, {"prompt_logprobs": -2}, "prompt_logprobs"),
        (TEXT, {"echo": True, "max_tokens": 0, "prompt_logprobs": 2.5}, "prompt_logprobs"),
    ],
)
def test_numbers_of_alternatives_are_checked(
    service: FakeService, config: ServeConfig, route: str, fields: Any, param: str
) -> None:
    answer = run(_post(service, config, route, {**BODIES[route], **fields}))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert service.requests == []


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "f"}}], ids=str)
def test_a_call_cut_anywhere_ends_by_its_length(config: ServeConfig, choice: Any) -> None:
    """Never as a call that is whole, and streamed as it is told whole."""
    call = '<tool_call>\n{"name": "f", "arguments": {"a": "é}"}}\n</tool_call>'
    tools = [{"type": "function", "function": {"name": "f"}}]
    for size in range(1, len(call)):
        service = Speaker(call[:size], template="{{ messages }}<tool_call></tool_call>")
        service.reason = "length"
        body = {"tools": tools, "tool_choice": choice}
        answer = run(_post(service, config, CHAT, {**BODIES[CHAT], **body}))
        if answer.status_code != 200:
            # Nothing in place of a call that was required: cut off before its arguments begin.
            assert (answer.status_code, answer.json()["error"]["type"]) == (422, "no_tool_call")
            assert choice != "auto"
            assert '"arguments": {' not in call[:size]
            continue
        whole = answer.json()["choices"][0]
        deltas = [event["choices"][0] for event in _of_openai(service, config, CHAT, body)]
        assert (whole["finish_reason"], deltas[-1]["finish_reason"]) == ("length", "length")
        message = whole["message"]
        calls = message.get("tool_calls", [])
        streamed = [one for delta in deltas for one in delta["delta"].get("tool_calls", ())]
        arguments = "".join(one["function"]["arguments"] for one in streamed)
        assert arguments == "".join(one["function"]["arguments"] for one in calls)
        begun = call[:size].partition('"arguments": ')[2]
        assert arguments == (
            begun.removesuffix("\n</tool_call>")[: len('{"a": "é}"}')] if begun else "{}" if calls else ""
        )
        assert [one["id"][:5] for one in streamed if "id" in one] == [one["id"][:5] for one in calls]
        text = "".join(delta["delta"].get("content") or "" for delta in deltas)
        assert text == (message["content"] or "")
        assert (call if not calls else "</tool_call>").startswith(text)
