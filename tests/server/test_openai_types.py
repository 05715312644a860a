"""Every answer and event of OpenAI's routes is what OpenAI's published description says (`tests/data/openai_types.json`).

The file holds the schemas of the answers, with all that they refer to and without their prose.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from octavo.config.serve import ServeConfig
from octavo.frontend.server.routes import chat as chat_route
from octavo.frontend.server.routes import responses as responses_route
from tests.server.fake_service import FakeService
from tests.server.harness import CHAT, TEXT, client, run
from tests.server.scripted import CUT, EVENTS, script

SCHEMAS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "openai_types.json").read_text("utf-8"))


def _plain(schema: Any) -> Any:
    """Return a schema with `nullable`, a word of OpenAPI 3.0, in JSON Schema's words."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: _plain(one) for name, one in schema.items() if name != "nullable"}
    return {"anyOf": [plain, {"type": "null"}]} if schema.get("nullable") is True else plain


SCHEMAS = _plain(SCHEMAS)
# Before its end a response has no usage: OpenAI's own service sends null in its place, and Open Responses asks for that.
SCHEMAS["ResponseUsage"] = {"anyOf": [SCHEMAS["ResponseUsage"], {"type": "null"}]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
FUNCTION = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}
LOGPROBS = {"logprobs": True, "top_logprobs": 2}
RESPONSE = {"model": "tiny", "input": "Hi", "max_output_tokens": 4}
CHAT_ROUTE, TEXT_ROUTE, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


def _checker(name: str) -> Any:
    schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": SCHEMAS}}
    return jsonschema_rs.Draft202012Validator(schema)


def _check(name: str, *values: Any) -> None:
    checker = _checker(name)
    assert values
    for value in values:
        errors = [
            f"{'.'.join(map(str, error.instance_path))}: {error.message[:300]}" for error in checker.iter_errors(value)
        ]
        assert errors == [], json.dumps(value)


def _asked(service: FakeService, config: ServeConfig, path: str, body: dict[str, Any]) -> list[Any]:
    """Return the answer, or the events of a stream."""

    async def ask() -> list[Any]:
        async with client(service, config) as http:
            answer = await http.post(path, json=body)
        if not body.get("stream"):
            return [answer.json()]
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    return run(ask())


CHATS: list[dict[str, Any]] = [{}, {"n": 3}, LOGPROBS, {"return_token_ids": True, "echo": True}, {"prompt_logprobs": 1}]
STREAMS: list[dict[str, Any]] = [{}, {"n": 3}, LOGPROBS, {"stream_options": {"include_usage": True}}]
STREAMS += [{"stream_options": {"include_usage": True, "continuous_usage_stats": True}}, {"return_token_ids": True}]


@pytest.mark.parametrize("fields", CHATS, ids=str)
def test_chats(service: FakeService, config: ServeConfig, fields: dict[str, Any]) -> None:
    _check("CreateChatCompletionResponse", *_asked(service, config, CHAT_ROUTE, {**CHAT, **fields}))


@pytest.mark.parametrize("fields", STREAMS, ids=str)
def test_chunks_of_chats(service: FakeService, config: ServeConfig, fields: dict[str, Any]) -> None:
    chunks = _asked(service, config, CHAT_ROUTE, {**CHAT, "stream": True, **fields})
    _check("CreateChatCompletionStreamResponse", *chunks)


@pytest.mark.parametrize(("events", "finish"), [(EVENTS, "tool_calls"), (CUT, "length")])
def test_chats_with_thoughts_and_calls(
    config: ServeConfig, service: FakeService, monkeypatch: pytest.MonkeyPatch, events: Any, finish: str
) -> None:
    script(monkeypatch, chat_route, events, finish)
    body = {**CHAT, "tools": TOOLS, "tool_choice": "required"}
    monkeypatch.setattr(chat_route.ChatEncoder, "_prompt_ids", lambda _self: {})
    whole = _asked(service, config, CHAT_ROUTE, {**body, "stream": True})
    _check("CreateChatCompletionStreamResponse", *whole)
    assert whole[-1]["choices"][0]["finish_reason"] == finish


@pytest.mark.parametrize(
    "fields", [{}, {"n": 2}, {"logprobs": 2}, {"echo": True, "logprobs": 0}, {"prompt": ["a", "b"]}], ids=str
)
@pytest.mark.parametrize("stream", [False, True])
def test_completions(service: FakeService, config: ServeConfig, fields: dict[str, Any], stream: bool) -> None:
    found = _asked(service, config, TEXT_ROUTE, {**TEXT, **fields, "stream": stream})
    if stream:
        # OpenAI publishes no type for chunks: they are answers whose choices have not ended yet.
        assert {choice["finish_reason"] for chunk in found for choice in chunk["choices"]} == {None, "length"}
        for chunk in found:
            for choice in chunk["choices"]:
                choice["finish_reason"] = choice["finish_reason"] or "stop"
    if fields.get("echo"):
        # The first token of a prompt has no log-probability; OpenAI's service says null too, and its description forgets it.
        for column in ("token_logprobs", "top_logprobs"):
            assert found[0]["choices"][0]["logprobs"][column].pop(0) is None
    _check("CreateCompletionResponse", *found)


RESPONSE_FIELDS: list[dict[str, Any]] = [{}, {"instructions": "Be brief.", "metadata": {"a": "b"}, "temperature": 0.5}]
RESPONSE_FIELDS += [{"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "weather"}}]
RESPONSE_FIELDS += [{"reasoning": {"effort": "low"}, "store": False, "text": {"format": {"type": "text"}}}]


@pytest.mark.parametrize("fields", RESPONSE_FIELDS, ids=str)
@pytest.mark.parametrize(("events", "finish"), [(EVENTS, "tool_calls"), (CUT, "length")])
def test_responses(
    config: ServeConfig, service: FakeService, monkeypatch: pytest.MonkeyPatch, fields: Any, events: Any, finish: str
) -> None:
    script(monkeypatch, responses_route, events, finish)
    _check("Response", *_asked(service, config, RESPONSES, {**RESPONSE, **fields}))
    told = _asked(service, config, RESPONSES, {**RESPONSE, **fields, "stream": True})
    _check("ResponseStreamEvent", *told)
    _check("Response", told[0]["response"], told[-1]["response"])


def test_a_response_that_fails(config: ServeConfig, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, responses_route, CUT, fails=True)
    told = _asked(service, config, RESPONSES, {**RESPONSE, "stream": True})
    _check("ResponseStreamEvent", *told)
    assert told[-1]["type"] == "response.failed"


def test_models_and_errors(service: FakeService, config: ServeConfig) -> None:
    async def ask() -> list[Any]:
        async with client(service, config) as http:
            paths = ("/v1/models", "/v1/models/tiny", "/v1/models/none")
            return [(await http.get(path)).json() for path in paths]

    models, model, missing = run(ask())
    _check("ListModelsResponse", models)
    _check("Model", model)
    wrong = [{"temperature": -1}, {"model": "gpt-9"}, {"messages": None}, {"n": "x"}, {"audio": {}}]
    errors = [_asked(service, config, CHAT_ROUTE, {**CHAT, **fields})[0] for fields in wrong]
    _check("ErrorResponse", missing, *errors)


def test_the_check_sees_what_is_wrong() -> None:
    good = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": []}
    assert _checker("CreateChatCompletionResponse").is_valid(good)
    for wrong in ({"created": "now"}, {"object": "chat"}, {"choices": [{"index": 0}]}, {"system_fingerprint": None}):
        assert not _checker("CreateChatCompletionResponse").is_valid({**good, **wrong})
