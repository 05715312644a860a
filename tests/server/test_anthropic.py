"""Anthropic's messages, read by Anthropic's own client: streamed and whole are the same message."""

from __future__ import annotations

import functools
import json
from typing import Any

import anthropic
import pytest
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from octavo.config.serve import ServeConfig
from octavo.frontend.server.routes import anthropic as route
from tests.server.fake_service import FakeService, answer_text
from tests.server.harness import client, run, with_client
from tests.server.scripted import CUT, EVENTS, script

BODY: dict[str, Any] = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
TOOL: dict[str, Any] = {"name": "weather", "description": "w", "input_schema": {"type": "object"}}


@functools.cache
def _event_type() -> TypeAdapter[Any]:
    return TypeAdapter(RawMessageStreamEvent)


def _connect(url: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0)


async def _events(service: FakeService, config: ServeConfig, **fields: Any) -> list[dict[str, Any]]:
    """Return the events of a stream, each of which is one of Anthropic's and is named by its type."""
    async with client(service, config) as http:
        answer = await http.post("/v1/messages", json={**BODY, "stream": True, **fields})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events: list[dict[str, Any]] = []
    for block in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
        if events[-1]["type"] not in ("ping", "error"):
            _event_type().validate_python(events[-1], strict=True)
    return events


def test_text_whole_and_streamed(service: FakeService, config: ServeConfig) -> None:
    service.num_cached = 1

    async def work(api: anthropic.AsyncAnthropic) -> None:
        whole = await api.messages.create(**BODY)
        assert whole.content[0].to_dict() == {"type": "text", "text": answer_text(0, 4)}
        assert (whole.role, whole.model, whole.stop_reason) == ("assistant", "tiny", "max_tokens")
        usage = whole.usage
        assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (2, 1, 4)
        async with api.messages.stream(**BODY) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            streamed = await stream.get_final_message()
        assert text == answer_text(0, 4)
        assert streamed.model_dump() == {**whole.model_dump(), "id": streamed.id}

    with_client(service, config, _connect, work)


def test_thoughts_and_calls_whole_and_streamed(
    service: FakeService, config: ServeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = script(monkeypatch, route, EVENTS)

    async def work(api: anthropic.AsyncAnthropic) -> None:
        whole = await api.messages.create(**BODY, tools=[TOOL], tool_choice={"type": "tool", "name": "weather"})
        thinking, text, first, second, rest = whole.to_dict()["content"]  # pyright: ignore[reportGeneralTypeIssues]
        assert thinking == {"type": "thinking", "thinking": "Let me think. 八", "signature": whole.id}
        assert (text, rest) == ({"type": "text", "text": "I will look. 🙂"}, {"type": "text", "text": "Done."})
        assert first == {"type": "tool_use", "id": "call_a", "name": "weather", "input": {"city": "Paris {x"}}
        assert (second["name"], second["input"]) == ("time", {})
        assert whole.stop_reason == "tool_use"
        async with api.messages.stream(**BODY, tools=[TOOL]) as stream:
            streamed = await stream.get_final_message()
        content = json.loads(json.dumps(streamed.to_dict()["content"]).replace(streamed.id, whole.id))
        assert content == whole.to_dict()["content"]
        assert (streamed.stop_reason, streamed.usage) == (whole.stop_reason, whole.usage)

    with_client(service, config, _connect, work)
    conversation, _ = asked[0]
    assert (conversation.tool_choice, conversation.tool_name) == ("required", "weather")
    function = {"name": "weather", "description": "w", "parameters": {"type": "object"}}
    assert list(conversation.tools) == [{"type": "function", "function": function}]


def test_the_order_of_events(service: FakeService, config: ServeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, route, EVENTS)
    events = run(_events(service, config))
    kinds = [event["type"].removeprefix("content_block_") for event in events]
    expected = (
        "message_start ping start delta delta delta stop start delta delta stop start delta delta stop start delta stop"
    )
    assert kinds == [*expected.split(), "start", "delta", "stop", "message_delta", "message_stop"]
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2, 3, 4]
    start = events[0]["message"]
    assert (start["content"], start["stop_reason"], start["usage"]["cache_read_input_tokens"]) == ([], None, 4)


@pytest.mark.parametrize(
    ("finish", "stop", "reason", "sequence"),
    [
        ("stop", None, "end_turn", None),
        ("stop", 5, "end_turn", None),
        ("stop", "END", "stop_sequence", "END"),
        ("length", None, "max_tokens", None),
        ("tool_calls", None, "tool_use", None),
    ],
)
def test_why_it_ended(
    service: FakeService, config: ServeConfig, monkeypatch: pytest.MonkeyPatch, finish: str, stop: Any, reason: str,
    sequence: str | None,
) -> None:  # fmt: skip
    script(monkeypatch, route, EVENTS[2:4], finish, stop)
    delta = run(_events(service, config))[-2]["delta"]
    assert delta == {"stop_reason": reason, "stop_sequence": sequence}


def test_a_call_that_was_cut_off_has_no_input(
    service: FakeService, config: ServeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, route, CUT, "length")

    async def ask() -> Any:
        async with client(service, config) as http:
            return (await http.post("/v1/messages", json=BODY)).json()

    body = run(ask())
    assert (body["stop_reason"], body["content"][-1]["input"]) == ("max_tokens", {})


def test_an_error_in_mid_stream(service: FakeService, config: ServeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, route, EVENTS[:3], fails=True)
    events = run(_events(service, config))
    expected = {"type": "error", "error": {"type": "api_error", "message": "the logits are not numbers"}}
    assert (events[-1], events[-2]["type"]) == (expected, "content_block_delta")


def test_what_the_model_is_asked(service: FakeService, config: ServeConfig) -> None:
    turns = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Paris"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "18"}], "is_error": False},
            {"type": "tool_result", "tool_use_id": "t2"},
            {"type": "text", "text": "and", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "now?"},
        ]},
    ]  # fmt: skip
    system = [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]
    fields = {"messages": turns, "system": system, "thinking": {"type": "disabled"}, "metadata": {"user_id": "u"}}
    run(_events(service, config, **fields, temperature=0.5, top_k=3, top_p=0.5, stop_sequences=["END"]))
    (messages, options), (_, params, _) = service.conversations[0], service.requests[0]
    call = {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
    assert messages == [
        {"role": "system", "content": "Be\nbrief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "Let me look.", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "18"},
        {"role": "tool", "tool_call_id": "t2", "content": ""},
        {"role": "user", "content": "and\nnow?"},
    ]
    assert options["template_kwargs"]["enable_thinking"] is False
    assert (params.temperature, params.top_k, params.top_p, params.stop) == (0.5, 3, 0.5, ("END",))


def test_an_answer_that_was_begun(service: FakeService, config: ServeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = script(monkeypatch, route, EVENTS)
    begun = [*BODY["messages"], {"role": "assistant", "content": "It is"}]
    run(_events(service, config, messages=begun, tool_choice={"type": "auto", "disable_parallel_tool_use": True}))
    conversation, _ = asked[0]
    assert (conversation.continue_final_message, conversation.add_generation_prompt) == (True, False)
    assert (conversation.tool_choice, conversation.parallel_tool_calls) == ("auto", False)


def test_tokens_are_counted(service: FakeService, config: ServeConfig) -> None:
    async def work(api: anthropic.AsyncAnthropic) -> None:
        counted = await api.messages.count_tokens(model="tiny", messages=BODY["messages"], system="abc")
        assert counted.input_tokens == 6
        assert not service.requests

    with_client(service, config, _connect, work)


def test_errors_become_its_exceptions(service: FakeService, config: ServeConfig) -> None:
    async def work(api: anthropic.AsyncAnthropic) -> None:
        with pytest.raises(anthropic.BadRequestError) as bad:
            await api.messages.create(**BODY, extra_body={"temperature": -1})
        error: Any = bad.value.body
        assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
        assert "temperature" in error["error"]["message"]
        with pytest.raises(anthropic.NotFoundError):
            await api.messages.create(**{**BODY, "model": "other"})
        service.queue_full = True
        with pytest.raises(anthropic.RateLimitError):
            await api.messages.create(**BODY)

    with_client(service, config, _connect, work)
    locked = ServeConfig(served_model_name=("tiny",), api_key=("none",))
    with_client(service, locked, _connect, _is_let_in)
    with pytest.raises(anthropic.AuthenticationError):
        with_client(service, ServeConfig(served_model_name=("tiny",), api_key=("other",)), _connect, _is_let_in)


async def _is_let_in(api: anthropic.AsyncAnthropic) -> None:
    await api.messages.count_tokens(model="tiny", messages=BODY["messages"])
