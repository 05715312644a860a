"""OpenAI's Responses, read by OpenAI's own client: every event is one of its types, and together they are the whole answer."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from octavo.base.errors import NotFoundError
from octavo.config.serve import ServeConfig
from octavo.frontend.server.response_store import ResponseStore, StoredResponse
from octavo.frontend.server.routes import responses as route
from tests.server.fake_service import FakeService, answer_text
from tests.server.harness import client, run, with_client
from tests.server.scripted import CUT, EVENTS, script

BODY: dict[str, Any] = {"model": "tiny", "input": "Hi", "max_output_tokens": 4}
TOOL: dict[str, Any] = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}
PATH = "/v1/responses"


@functools.cache
def _event_type() -> TypeAdapter[Any]:
    return TypeAdapter(ResponseStreamEvent)


def _connect(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)


async def _whole(service: FakeService, config: ServeConfig, **fields: Any) -> dict[str, Any]:
    async with client(service, config) as http:
        answer = await http.post(PATH, json={**BODY, **fields})
    assert answer.status_code == 200, answer.text
    Response.model_validate(answer.json(), strict=True)
    return answer.json()


async def _events(service: FakeService, config: ServeConfig, **fields: Any) -> list[dict[str, Any]]:
    """Return the events of a stream, each of which is one of OpenAI's, is named by its type and is counted."""
    async with client(service, config) as http:
        answer = await http.post(PATH, json={**BODY, "stream": True, **fields})
    events: list[dict[str, Any]] = []
    for number, block in enumerate(answer.text.removesuffix("\n\n").split("\n\n")):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert (name, event["sequence_number"]) == (f"event: {event['type']}", number)
        _event_type().validate_python(event, strict=True)
        events.append(event)
    return events


def _plain(response: dict[str, Any]) -> str:
    """Return a response without what no two have in common: ids and times."""
    ids = [response["id"], *(item["id"] for item in response["output"])]
    text = json.dumps({**response, "created_at": 0, "completed_at": 0})
    for number, id in enumerate(ids):
        text = text.replace(id, f"id{number}")
    return text


def test_text_whole_and_streamed(service: FakeService, config: ServeConfig) -> None:
    service.num_cached = 1
    whole = run(_whole(service, config))
    (item,) = whole["output"]
    part = {"type": "output_text", "text": answer_text(0, 4), "annotations": [], "logprobs": []}
    assert (item["role"], item["content"], item["status"]) == ("assistant", [part], "incomplete")
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert whole["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 7,
    }
    events = run(_events(service, config))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added", *["output_text.delta"] * 4,
        "output_text.done", "content_part.done", "output_item.done", "incomplete",
    ]  # fmt: skip
    assert "".join(event["delta"] for event in events if "delta" in event) == answer_text(0, 4)
    assert _plain(events[-1]["response"]) == _plain(whole)


@pytest.mark.parametrize(("script_events", "finish"), [(EVENTS, "tool_calls"), (CUT, "length"), (EVENTS[:5], "length")])
def test_thoughts_and_calls_whole_and_streamed(
    service: FakeService, config: ServeConfig, monkeypatch: pytest.MonkeyPatch, script_events: Any, finish: str
) -> None:
    script(monkeypatch, route, script_events, finish)
    whole = run(_whole(service, config, tools=[TOOL]))
    events = run(_events(service, config, tools=[TOOL]))
    assert _plain(events[-1]["response"]) == _plain(whole)
    # The items of the events are the items of the whole, with the same ids in the same places.
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["item"] for event in done] == events[-1]["response"]["output"]
    assert [event["output_index"] for event in done] == list(range(len(done)))
    added = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
    assert added == [event["item"]["id"] for event in done]
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == added[event["output_index"]]


def test_the_items_of_a_turn(service: FakeService, config: ServeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = script(monkeypatch, route, EVENTS)

    async def work(api: openai.AsyncOpenAI) -> None:
        choice: Any = {"type": "function", "name": "weather"}
        made = await api.responses.create(**BODY, tools=[TOOL], tool_choice=choice, reasoning={"effort": "low"})
        thoughts, text, first, second, rest = made.output
        assert (thoughts.type, text.type, first.type, rest.type) == ("reasoning", "message", "function_call", "message")
        assert thoughts.content is not None
        assert thoughts.content[0].text == "Let me think. 八"
        assert made.output_text == "I will look. 🙂Done."
        assert (first.name, first.call_id, json.loads(first.arguments)) == ("weather", "call_a", {"city": "Paris {x"})
        assert second.type == "function_call"
        assert (second.name, second.arguments, made.status) == ("time", "{}", "completed")
        async with api.responses.stream(**BODY, tools=[TOOL]) as stream:
            final = await stream.get_final_response()
        assert (final.output_text, final.usage) == (made.output_text, made.usage)
        # The next turn hears all of it.
        output: Any = [{"type": "function_call_output", "call_id": "call_a", "output": "18"}]
        await api.responses.create(model="tiny", input=output, previous_response_id=made.id, instructions="Be brief.")

    with_client(service, config, _connect, work)
    first, _, last = [conversation for conversation, _ in asked]
    assert (first.tool_choice, first.tool_name, first.reasoning_effort) == ("required", "weather", "low")
    function = {"name": "weather", "parameters": {"type": "object"}, "strict": True}
    assert list(first.tools) == [{"type": "function", "function": function}]
    calls = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id, name, arguments in (("call_a", "weather", '{"city": "Paris {x"}'), ("call_b", "time", "{}"))
    ]
    turn = {"role": "assistant", "content": "I will look. 🙂Done.", "reasoning_content": "Let me think. 八"}
    assert last.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {**turn, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_a", "content": "18"},
    ]


def test_items_of_one_turn_are_one_message(service: FakeService, config: ServeConfig) -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
        {"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}", "id": "fc_1", "status": "completed"},
        {"type": "function_call_output", "call_id": "x", "output": [{"type": "input_text", "text": "d"}]},
    ]
    run(_whole(service, config, input=items, include=["reasoning.encrypted_content"]))
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert service.conversations[0][0] == [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": "d"},
    ]


def test_stored_responses(service: FakeService, config: ServeConfig) -> None:
    async def work(api: openai.AsyncOpenAI) -> None:
        made = await api.responses.create(**BODY)
        assert await api.responses.retrieve(made.id) == made
        streamed = [event async for event in await api.responses.create(**BODY, stream=True)][-1]
        assert streamed.type == "response.incomplete"
        assert (await api.responses.retrieve(streamed.response.id)).output == streamed.response.output
        await api.responses.delete(made.id)
        unkept = await api.responses.create(**BODY, store=False)
        for id in (made.id, unkept.id):
            with pytest.raises(openai.NotFoundError):
                await api.responses.retrieve(id)
            with pytest.raises(openai.NotFoundError):
                await api.responses.create(**BODY, previous_response_id=id)
        with pytest.raises(openai.BadRequestError):
            await api.responses.cancel(streamed.response.id)

    with_client(service, config, _connect, work)


def test_responses_in_the_background(service: FakeService, config: ServeConfig) -> None:
    service.delay = 0.01

    async def work(api: openai.AsyncOpenAI) -> None:
        made = await api.responses.create(**BODY, background=True)
        assert (made.status, made.output, made.background) == ("in_progress", [], True)
        while (now := await api.responses.retrieve(made.id)).status == "in_progress":
            await asyncio.sleep(0.01)
        assert (now.status, now.output_text) == ("incomplete", answer_text(0, 4))
        slow = await api.responses.create(**{**BODY, "max_output_tokens": 50}, background=True)
        assert (await api.responses.cancel(slow.id)).status == "cancelled"
        assert len(service.aborted) == 1
        service.fail_at = 1
        failing = await api.responses.create(**BODY, background=True)
        while (now := await api.responses.retrieve(failing.id)).status == "in_progress":
            await asyncio.sleep(0.01)
        assert now.error is not None
        assert (now.status, now.error.message) == ("failed", "the logits are not numbers")
        assert not service.open

    with_client(service, config, _connect, work)


def test_an_error_in_mid_stream(service: FakeService, config: ServeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, route, EVENTS[:3], fails=True)
    last = run(_events(service, config))[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": "server_error", "message": "the logits are not numbers"}


def _kept(num_bytes: int, since: float = 1e12) -> StoredResponse:
    return StoredResponse(whole=dict[str, Any], messages=list[Any], num_bytes=num_bytes, kept_since=since)


def test_the_store_is_bounded_in_bytes_and_time() -> None:
    store = ResponseStore(max_bytes=100, max_seconds=10)
    for id, size in (("a", 40), ("b", 40), ("c", 30)):
        store.add(id, _kept(size))
    assert store.find("b", "response_id").num_bytes == 40
    with pytest.raises(NotFoundError):
        store.find("a", "response_id")
    store.add("large", _kept(101))
    old = ResponseStore(max_bytes=100, max_seconds=10)
    old.add("old", _kept(1, since=-1e9))
    for kept, id in ((store, "large"), (store, "c"), (old, "old")):
        with pytest.raises(NotFoundError):
            kept.find(id, "response_id")
