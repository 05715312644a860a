"""Bad requests to the protocols that are not OpenAI's completions: a 4xx in the protocol's own shape that names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.config.serve import ServeConfig
from tests.server.fake_service import FakeService
from tests.server.harness import client, run

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
RESPONSES = "/v1/responses"
TOKENS = "/inference/v1/generate"
OLLAMA, GENERATE, SHOW = "/api/chat", "/api/generate", "/api/show"
USER = {"role": "user", "content": "Hi"}
GOOD: dict[str, dict[str, Any]] = {
    MESSAGES: {"model": "tiny", "max_tokens": 4, "messages": [USER]},
    COUNT: {"model": "tiny", "messages": [USER]},
    OLLAMA: {"model": "tiny", "messages": [USER]},
    GENERATE: {"model": "tiny", "prompt": "Hi"},
    SHOW: {"model": "tiny"},
    TOKENS: {"token_ids": [5], "sampling_params": {"max_tokens": 4}},
    RESPONSES: {"model": "tiny", "input": "Hi", "max_output_tokens": 4},
}
_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
_RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "x"}

# (name, route, body or what to change in a good body, status, field)
CASES: list[tuple[str, str, Any, int, str | None]] = [
    ("message: nothing", MESSAGES, b"", 400, None),
    ("message: an array", MESSAGES, b"[]", 400, None),
    ("message: too large", MESSAGES, {"system": "x" * 30_000}, 413, None),
    ("message: no model", MESSAGES, b'{"max_tokens":4,"messages":[]}', 400, "model"),
    ("message: a stranger", MESSAGES, {"model": "claude"}, 404, "model"),
    ("message: no max_tokens", MESSAGES, b'{"model":"tiny","messages":[]}', 400, "max_tokens"),
    ("message: max_tokens 0", MESSAGES, {"max_tokens": 0}, 400, "max_tokens"),
    ("message: no messages", MESSAGES, {"messages": []}, 400, "messages"),
    ("message: of a wizard", MESSAGES, {"messages": [{**USER, "role": "wizard"}]}, 400, "messages[0].role"),
    ("message: too long", MESSAGES, {"messages": [{**USER, "content": "x" * 70}]}, 400, "messages"),
    ("message: an image", MESSAGES, {"messages": [{**USER, "content": [_IMAGE]}]}, 400, "messages[0].content[0].type"),
    ("message: a block without type", MESSAGES, {"messages": [{**USER, "content": [{"text": "x"}]}]}, 400,
     "messages[0].content[0].type"),
    ("message: a block without text", MESSAGES, {"messages": [{**USER, "content": [{"type": "text"}]}]}, 400,
     "messages[0].content[0].text"),
    ("message: a result of the assistant's", MESSAGES, {"messages": [USER, {"role": "assistant", "content": [_RESULT]}]},
     400, "messages[1].content[0].type"),
    ("message: a call by the user", MESSAGES,
     {"messages": [{**USER, "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]}, 400,
     "messages[0].content[0].type"),
    ("message: temperature -1", MESSAGES, {"temperature": -1}, 400, "temperature"),
    ("message: temperature NaN", MESSAGES, b'{"temperature":NaN}', 400, "temperature"),
    ("message: top_k a fraction", MESSAGES, {"top_k": 1.5}, 400, "top_k"),
    ("message: stop empty", MESSAGES, {"stop_sequences": [""]}, 400, "stop_sequences"),
    ("message: stream in words", MESSAGES, {"stream": "yes"}, 400, "stream"),
    ("message: a system of numbers", MESSAGES, {"system": [1]}, 400, "system[0]"),
    ("message: a tool without schema", MESSAGES, {"tools": [{"name": "f"}]}, 400, "tools[0].input_schema"),
    ("message: a tool of Anthropic's", MESSAGES, {"tools": [{"name": "f", "type": "web_search_20250305"}]}, 400,
     "tools[0].type"),
    ("message: a nameless choice", MESSAGES, {"tool_choice": {"type": "tool"}}, 400, "tool_choice.name"),
    ("message: a strange choice", MESSAGES, {"tool_choice": {"type": "some"}}, 400, "tool_choice.type"),
    ("message: strange thoughts", MESSAGES, {"thinking": {"type": "deep"}}, 400, "thinking.type"),
    ("message: a schema", MESSAGES, {"output_config": {"format": {"type": "json_schema"}}}, 400, "output_config.format"),
    ("count: no messages", COUNT, {"messages": []}, 400, "messages"),
    ("count: a stranger", COUNT, {"model": "claude"}, 404, "model"),
    ("count: an image", COUNT, {"messages": [{**USER, "content": [_IMAGE]}]}, 400, "messages[0].content[0].type"),
    ("ollama: nothing", OLLAMA, b"", 400, None),
    ("ollama: a stranger", OLLAMA, {"model": "llama3"}, 404, "model"),
    ("ollama: no messages", OLLAMA, {"messages": []}, 400, "messages"),
    ("ollama: of a wizard", OLLAMA, {"messages": [{**USER, "role": "wizard"}]}, 400, "messages[0].role"),
    ("ollama: without content", OLLAMA, {"messages": [{"role": "user"}]}, 400, "messages[0].content"),
    ("ollama: an image", OLLAMA, {"messages": [{**USER, "images": ["x"]}]}, 400, "messages[0].images"),
    ("ollama: too long", OLLAMA, {"messages": [{**USER, "content": "x" * 70}]}, 400, "messages"),
    ("ollama: a schema", OLLAMA, {"format": 3}, 400, "format"),
    ("ollama: num_predict 0", OLLAMA, {"options": {"num_predict": 0}}, 400, "num_predict"),
    ("ollama: repeat_penalty 0", OLLAMA, {"options": {"repeat_penalty": 0}}, 400, "repeat_penalty"),
    ("ollama: temperature in words", OLLAMA, {"options": {"temperature": "hot"}}, 400, "options.temperature"),
    ("ollama: a tool of words", OLLAMA, {"tools": ["f"]}, 400, "tools[0]"),
    ("ollama: stream in words", OLLAMA, {"stream": "no"}, 400, "stream"),
    ("generate: no prompt", GENERATE, b'{"model":"tiny"}', 400, "prompt"),
    ("generate: an empty prompt", GENERATE, {"prompt": "", "raw": True}, 400, "prompt"),
    ("generate: too long", GENERATE, {"prompt": "x" * 70}, 400, "prompt"),
    ("generate: a suffix", GENERATE, {"suffix": "x"}, 400, "suffix"),
    ("generate: an image", GENERATE, {"images": ["x"]}, 400, "images"),
    ("generate: a schema", GENERATE, {"format": 3}, 400, "format"),
    ("show: nobody", SHOW, b"{}", 400, "model"),
    ("show: a stranger", SHOW, {"model": "llama3"}, 404, "model"),
    ("tokens: none", TOKENS, b"{}", 400, "token_ids"),
    ("tokens: empty", TOKENS, {"token_ids": []}, 400, "token_ids"),
    ("tokens: a text", TOKENS, {"token_ids": "Hi"}, 400, "token_ids"),
    ("tokens: negative", TOKENS, {"token_ids": [-1]}, 400, "token_ids"),
    ("tokens: beyond the vocabulary", TOKENS, {"token_ids": [10**6]}, 400, "token_ids"),
    ("tokens: too many", TOKENS, {"token_ids": [5] * 70}, 400, "token_ids"),
    ("tokens: a stranger", TOKENS, {"model": "gpt-9"}, 404, "model"),
    ("tokens: parameters in a list", TOKENS, {"sampling_params": []}, 400, "sampling_params"),
    ("tokens: an unknown parameter", TOKENS, {"sampling_params": {"temprature": 1}}, 400, "sampling_params"),
    ("tokens: with text", TOKENS, {"sampling_params": {"detokenize": True}}, 400, "sampling_params"),
    ("tokens: temperature in words", TOKENS, {"sampling_params": {"temperature": "hot"}}, 400,
     "sampling_params.temperature"),
    ("tokens: n null", TOKENS, {"sampling_params": {"n": None}}, 400, "sampling_params.n"),
    ("tokens: stop a number", TOKENS, {"sampling_params": {"stop": 5}}, 400, "sampling_params"),
    ("tokens: stop strings", TOKENS, {"sampling_params": {"stop": "x"}}, 400, "sampling_params.stop"),
    ("tokens: ids in words", TOKENS, {"sampling_params": {"stop_token_ids": ["x"]}}, 400,
     "sampling_params.stop_token_ids"),
    ("tokens: a bias in a list", TOKENS, {"sampling_params": {"logit_bias": [1]}}, 400, "sampling_params.logit_bias"),
    ("tokens: functions", TOKENS, {"sampling_params": {"logits_processors": ["f"]}}, 400,
     "sampling_params.logits_processors"),
    ("tokens: a pattern in words", TOKENS, {"sampling_params": {"repetition_detection": "x"}}, 400, "sampling_params"),
    ("tokens: output_kind", TOKENS, {"sampling_params": {"output_kind": "x"}}, 400, "sampling_params"),
    ("tokens: priority in words", TOKENS, {"priority": "high"}, 400, "priority"),
    ("response: nothing", RESPONSES, b"", 400, None),
    ("response: an array", RESPONSES, b"[]", 400, None),
    ("response: a stranger", RESPONSES, {"model": "gpt-9"}, 404, "model"),
    ("response: no input", RESPONSES, b"{}", 400, "input"),
    ("response: empty input", RESPONSES, {"input": []}, 400, "input"),
    ("response: too long", RESPONSES, {"input": "x" * 70}, 400, "input"),
    ("response: an input of numbers", RESPONSES, {"input": [1]}, 400, "input[0]"),
    ("response: of a wizard", RESPONSES, {"input": [{**USER, "role": "wizard"}]}, 400, "input[0].role"),
    ("response: of nobody", RESPONSES, {"input": [{"content": "x"}]}, 400, "input[0].role"),
    ("response: without content", RESPONSES, {"input": [{"role": "user"}]}, 400, "input[0].content"),
    ("response: an image", RESPONSES, {"input": [{**USER, "content": [{"type": "input_image"}]}]}, 400,
     "input[0].content[0].type"),
    ("response: a part without text", RESPONSES, {"input": [{**USER, "content": [{"type": "input_text"}]}]}, 400,
     "input[0].content[0].text"),
    ("response: a reference", RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, 400, "input[0].type"),
    ("response: a nameless call", RESPONSES, {"input": [{"type": "function_call", "call_id": "x"}]}, 400,
     "input[0].name"),
    ("response: a call without id", RESPONSES, {"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]},
     400, "input[0].call_id"),
    ("response: a result of nothing", RESPONSES, {"input": [{"type": "function_call_output", "call_id": "x"}]}, 400,
     "input[0].output"),
    ("response: max_output_tokens 0", RESPONSES, {"max_output_tokens": 0}, 400, "max_output_tokens"),
    ("response: temperature -1", RESPONSES, {"temperature": -1}, 400, "temperature"),
    ("response: top_p in words", RESPONSES, {"top_p": "all"}, 400, "top_p"),
    ("response: a stranger's thread", RESPONSES, {"previous_response_id": "resp_x"}, 404, "previous_response_id"),
    ("response: a conversation", RESPONSES, {"conversation": "conv_x"}, 400, "conversation"),
    ("response: a prompt of OpenAI's", RESPONSES, {"prompt": {"id": "p"}}, 400, "prompt"),
    ("response: log-probabilities", RESPONSES, {"top_logprobs": 2}, 400, "top_logprobs"),
    ("response: them by include", RESPONSES, {"include": ["message.output_text.logprobs"]}, 400, "include"),
    ("response: truncation", RESPONSES, {"truncation": "auto"}, 400, "truncation"),
    ("response: strange truncation", RESPONSES, {"truncation": "some"}, 400, "truncation"),
    ("response: a schema", RESPONSES, {"text": {"format": {"type": "json_schema"}}}, 400, "text.format.json_schema.schema"),
    ("response: a background stream", RESPONSES, {"background": True, "stream": True}, 400, "stream"),
    ("response: a background unkept", RESPONSES, {"background": True, "store": False}, 400, "store"),
    ("response: a hosted tool", RESPONSES, {"tools": [{"type": "web_search"}]}, 400, "tools[0].type"),
    ("response: a nameless tool", RESPONSES, {"tools": [{"type": "function"}]}, 400, "tools[0].name"),
    ("response: a strange choice", RESPONSES, {"tool_choice": "some"}, 400, "tool_choice"),
    ("response: a hosted choice", RESPONSES, {"tool_choice": {"type": "mcp", "name": "x"}}, 400, "tool_choice.type"),
    ("response: effort a number", RESPONSES, {"reasoning": {"effort": 1}}, 400, "reasoning"),
    ("response: metadata of numbers", RESPONSES, {"metadata": {"a": 1}}, 400, "metadata"),
]  # fmt: skip

WRONG_METHODS = [
    ("POST", "/live"),
    ("POST", "/ready"),
    ("POST", "/api/tags"),
    ("PUT", "/api/version"),
    ("GET", "/api/chat"),
    ("GET", MESSAGES),
    ("PUT", COUNT),
]


def _message(route: str, body: dict[str, Any]) -> tuple[str, str | None]:
    """Return the message of an error, and the field if the protocol has a place for it; checks the shape."""
    if route.startswith("/v1/messages"):
        assert set(body) == {"type", "error"}
        assert body["type"] == "error"
        assert set(body["error"]) == {"type", "message"}
        return body["error"]["message"], None
    if route.startswith("/api/"):
        assert set(body) == {"error"}
        return body["error"], None
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]["message"], body["error"]["param"]


@pytest.mark.parametrize(("route", "body", "status", "field"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_bad_protocols(
    service: FakeService, config: ServeConfig, route: str, body: Any, status: int, field: str | None
) -> None:
    data = body if isinstance(body, bytes) else json.dumps({**GOOD[route], **body}).encode()

    async def ask() -> tuple[Any, Any]:
        async with client(service, config) as http:
            bad = await http.post(route, content=data)
            return bad, await http.post(route, json=GOOD[route])

    bad, good = run(ask())
    message, named = _message(route, bad.json())
    assert bad.status_code == status, message
    assert field is None or field in (named or message)
    assert 10 <= len(message) <= 300
    assert (good.status_code, service.open, service.aborted) == (200, set(), [])


@pytest.mark.parametrize(("method", "route"), WRONG_METHODS)
def test_wrong_methods(service: FakeService, config: ServeConfig, method: str, route: str) -> None:
    async def ask() -> Any:
        async with client(service, config) as http:
            return await http.request(method, route)

    answer = run(ask())
    assert (answer.status_code, _message(route, answer.json())[0]) == (405, f"{method} is not allowed on {route}")
