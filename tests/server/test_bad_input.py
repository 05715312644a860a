"""No body, however bad, gets anything but a 4xx that names the field, and the next good request is answered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from octavo.config.serve import ServeConfig
from tests.server.fake_service import FakeService, answer_text
from tests.server.harness import CHAT, TEXT, client, events_of, run

CHAT_ROUTE, TEXT_ROUTE = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "Hi"}


def _tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def _calling(arguments: str) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


# (name, route, body or what to change in a good body, status, param)
CASES: list[tuple[str, str, Any, int, str | None]] = [
    ("empty body", CHAT_ROUTE, b"", 400, None),
    ("broken JSON", CHAT_ROUTE, b'{"messages": [', 400, None),
    ("trailing text", TEXT_ROUTE, b'{"prompt":"x"} y', 400, None),
    ("array body", TEXT_ROUTE, b"[]", 400, None),
    ("null body", CHAT_ROUTE, b"null", 400, None),
    ("string body", CHAT_ROUTE, b'"hello"', 400, None),
    ("not UTF-8", TEXT_ROUTE, b'{"prompt":"\xff"}', 400, None),
    ("lone surrogate", TEXT_ROUTE, b'{"prompt":"\\ud800"}', 400, None),
    ("lone surrogate beside NaN", TEXT_ROUTE, b'{"prompt":"\\ud800","temperature":NaN}', 400, None),
    ("a name that is not UTF-8", TEXT_ROUTE, b'{"prompt":"x","\xff":1}', 400, None),
    ("nested too deeply", TEXT_ROUTE, b'{"x":' + b"[" * 9000 + b"]" * 9000 + b"}", 400, None),
    ("body too large", TEXT_ROUTE, {"prompt": "x" * 30_000}, 413, None),
    ("NaN temperature", TEXT_ROUTE, b'{"prompt":"x","temperature":NaN}', 400, "temperature"),
    ("infinite top_p", CHAT_ROUTE, b'{"messages":[{"role":"user","content":"x"}],"top_p":-Infinity}', 400, "top_p"),
    ("NaN in a list", TEXT_ROUTE, b'{"prompt":[1,NaN]}', 400, "prompt[1]"),
    ("temperature beyond floats", TEXT_ROUTE, b'{"prompt":"x","temperature":1e400}', 400, "temperature"),
    ("temperature a string", TEXT_ROUTE, {"temperature": "hot"}, 400, "temperature"),
    ("negative temperature", CHAT_ROUTE, {"temperature": -0.1}, 400, "temperature"),
    ("top_p 0", TEXT_ROUTE, {"top_p": 0}, 400, "top_p"),
    ("top_p 1.5", CHAT_ROUTE, {"top_p": 1.5}, 400, "top_p"),
    ("top_k -5", TEXT_ROUTE, {"top_k": -5}, 400, "top_k"),
    ("top_k a fraction", TEXT_ROUTE, {"top_k": 2.5}, 400, "top_k"),
    ("min_p 1.1", TEXT_ROUTE, {"min_p": 1.1}, 400, "min_p"),
    ("presence_penalty 2.5", CHAT_ROUTE, {"presence_penalty": 2.5}, 400, "presence_penalty"),
    ("presence_penalty a string", CHAT_ROUTE, {"presence_penalty": "much"}, 400, "presence_penalty"),
    ("frequency_penalty -3", TEXT_ROUTE, {"frequency_penalty": -3}, 400, "frequency_penalty"),
    ("NaN frequency_penalty", TEXT_ROUTE, b'{"prompt":"x","frequency_penalty":NaN}', 400, "frequency_penalty"),
    ("repetition_penalty 0", TEXT_ROUTE, {"repetition_penalty": 0}, 400, "repetition_penalty"),
    ("logit_bias a list", CHAT_ROUTE, {"logit_bias": [5]}, 400, "logit_bias"),
    ("logit_bias of a word", CHAT_ROUTE, {"logit_bias": {"five": 1}}, 400, "logit_bias"),
    ("logit_bias of -1", TEXT_ROUTE, {"logit_bias": {"-1": 1}}, 400, "logit_bias"),
    ("logit_bias 101", TEXT_ROUTE, {"logit_bias": {"5": 101}}, 400, "logit_bias"),
    ("logit_bias beyond vocabulary", CHAT_ROUTE, {"logit_bias": {"1000000": 1}}, 400, "logit_bias"),
    ("allowed_token_ids empty", TEXT_ROUTE, {"allowed_token_ids": []}, 400, "allowed_token_ids"),
    ("allowed id beyond vocabulary", CHAT_ROUTE, {"allowed_token_ids": [5, 1000000]}, 400, "allowed_token_ids"),
    ("allowed id a string", TEXT_ROUTE, {"allowed_token_ids": ["5"]}, 400, "allowed_token_ids[0]"),
    ("bad word empty", TEXT_ROUTE, {"bad_words": ["a", ""]}, 400, "bad_words"),
    ("bad word a number", CHAT_ROUTE, {"bad_words": [3]}, 400, "bad_words[0]"),
    ("min_tokens a string", CHAT_ROUTE, {"min_tokens": "3"}, 400, "min_tokens"),
    ("include_stop_str_in_output 1", TEXT_ROUTE, {"include_stop_str_in_output": 1}, 400, "include_stop_str_in_output"),
    ("skip_special_tokens no", CHAT_ROUTE, {"skip_special_tokens": "no"}, 400, "skip_special_tokens"),
    ("truncate_prompt_tokens 0", TEXT_ROUTE, {"truncate_prompt_tokens": 0}, 400, "truncate_prompt_tokens"),
    ("stream_interval 0", TEXT_ROUTE, {"stream_interval": 0}, 400, "stream_interval"),
    ("vllm_xargs a list", TEXT_ROUTE, {"vllm_xargs": [1]}, 400, "vllm_xargs"),
    ("vllm_xargs beyond 64 bits", TEXT_ROUTE, {"vllm_xargs": {"a": [2**64]}}, 400, "vllm_xargs"),
    ("prompt_logprobs -2", TEXT_ROUTE, {"prompt_logprobs": -2}, 400, "prompt_logprobs"),
    ("prompt_logprobs true", CHAT_ROUTE, {"prompt_logprobs": True}, 400, "prompt_logprobs"),
    ("prompt_logprobs in a stream", CHAT_ROUTE, {"prompt_logprobs": 1, "stream": True}, 400, "prompt_logprobs"),
    ("echo a number", TEXT_ROUTE, {"echo": 1}, 400, "echo"),
    ("beams in a stream", TEXT_ROUTE, {"use_beam_search": True, "stream": True}, 400, "stream"),
    ("beams with a bias", CHAT_ROUTE, {"use_beam_search": True, "logit_bias": {"5": 1}}, 400, "logit_bias"),
    ("beams of 257", TEXT_ROUTE, {"use_beam_search": True, "n": 257}, 400, "n"),
    ("length_penalty 11", TEXT_ROUTE, {"use_beam_search": True, "length_penalty": 11}, 400, "length_penalty"),
    (
        "patterns of nothing",
        TEXT_ROUTE,
        {"repetition_detection": {"max_pattern_size": 2}},
        400,
        "repetition_detection.min_count",
    ),
    ("patterns unknown", CHAT_ROUTE, {"repetition_detection": {"size": 2}}, 400, "repetition_detection"),
    ("logprob id negative", TEXT_ROUTE, {"logprob_token_ids": [-1]}, 400, "logprob_token_ids"),
    ("seed 2**63", TEXT_ROUTE, {"seed": 2**63}, 400, "seed"),
    ("n 0", CHAT_ROUTE, {"n": 0}, 400, "n"),
    ("n true", CHAT_ROUTE, {"n": True}, 400, "n"),
    ("n huge", TEXT_ROUTE, {"n": 10**9}, 400, "n"),
    ("n times prompts huge", TEXT_ROUTE, {"prompt": ["a", "b"], "n": 16384}, 400, "n"),
    ("max_tokens 0", TEXT_ROUTE, {"max_tokens": 0}, 400, "max_tokens"),
    ("max_completion_tokens -1", CHAT_ROUTE, {"max_completion_tokens": -1}, 400, "max_completion_tokens"),
    ("max_tokens beyond 31 bits", TEXT_ROUTE, {"max_tokens": 2**31}, 400, "max_tokens"),
    ("min_tokens over max_tokens", TEXT_ROUTE, {"min_tokens": 9}, 400, "min_tokens"),
    ("stop empty", TEXT_ROUTE, {"stop": ""}, 400, "stop"),
    ("stop of numbers", TEXT_ROUTE, {"stop": [1]}, 400, "stop[0]"),
    ("too many stops", CHAT_ROUTE, {"stop": ["x"] * 65}, 400, "stop"),
    ("stop id negative", TEXT_ROUTE, {"stop_token_ids": [-1]}, 400, "stop_token_ids"),
    ("stop id beyond vocabulary", TEXT_ROUTE, {"stop_token_ids": [1000000]}, 400, "stop_token_ids"),
    ("prompt missing", TEXT_ROUTE, b'{"model":"tiny"}', 400, "prompt"),
    ("prompt empty", TEXT_ROUTE, {"prompt": ""}, 400, "prompt"),
    ("prompt empty list", TEXT_ROUTE, {"prompt": []}, 400, "prompt"),
    ("second prompt empty", TEXT_ROUTE, {"prompt": ["a", ""]}, 400, "prompt[1]"),
    ("second prompt no ids", TEXT_ROUTE, {"prompt": [[5], []]}, 400, "prompt[1]"),
    ("prompt mixed", TEXT_ROUTE, {"prompt": ["a", 5]}, 400, "prompt"),
    ("prompt an object", TEXT_ROUTE, {"prompt": {"text": "a"}}, 400, "prompt"),
    ("prompt of fractions", TEXT_ROUTE, {"prompt": [1.5]}, 400, "prompt[0]"),
    ("prompt of booleans", TEXT_ROUTE, {"prompt": [True]}, 400, "prompt[0]"),
    ("prompt id beyond vocabulary", TEXT_ROUTE, {"prompt": [0, 5, 10**9]}, 400, "prompt"),
    ("prompt id negative", TEXT_ROUTE, {"prompt": [-1]}, 400, "prompt"),
    ("prompt too long", TEXT_ROUTE, {"prompt": "x" * 64}, 400, "prompt"),
    ("too many prompts", TEXT_ROUTE, {"prompt": ["a"] * 1025}, 400, "prompt"),
    ("logprobs a boolean", TEXT_ROUTE, {"logprobs": True}, 400, "logprobs"),
    ("logprobs over the limit", TEXT_ROUTE, {"logprobs": 6}, 400, "logprobs"),
    ("logprobs -1", TEXT_ROUTE, {"logprobs": -1}, 400, "logprobs"),
    ("chat logprobs a number", CHAT_ROUTE, {"logprobs": 2}, 400, "logprobs"),
    ("top_logprobs alone", CHAT_ROUTE, {"top_logprobs": 2}, 400, "top_logprobs"),
    ("top_logprobs 10**6", CHAT_ROUTE, {"logprobs": True, "top_logprobs": 10**6}, 400, "top_logprobs"),
    ("messages missing", CHAT_ROUTE, b'{"model":"tiny"}', 400, "messages"),
    ("messages empty", CHAT_ROUTE, {"messages": []}, 400, "messages"),
    ("messages a string", CHAT_ROUTE, {"messages": "Hi"}, 400, "messages"),
    ("message a string", CHAT_ROUTE, {"messages": [USER, "Hi"]}, 400, "messages[1]"),
    ("role unknown", CHAT_ROUTE, {"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages[0].role"),
    ("role missing", CHAT_ROUTE, {"messages": [{"content": "x"}]}, 400, "messages[0].role"),
    ("role a number", CHAT_ROUTE, {"messages": [USER, {"role": 1, "content": "x"}]}, 400, "messages[1].role"),
    (
        "a result without id",
        CHAT_ROUTE,
        {"messages": [{"role": "tool", "content": "x"}]},
        400,
        "messages[0].tool_call_id",
    ),
    ("role function", CHAT_ROUTE, {"messages": [{"role": "function", "content": "x"}]}, 400, "messages[0].role"),
    (
        "a call of old",
        CHAT_ROUTE,
        {"messages": [{"role": "assistant", "function_call": {"name": "f"}}]},
        400,
        "messages[0].function_call",
    ),
    (
        "calls that are none",
        CHAT_ROUTE,
        {"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "a"}]}]},
        400,
        "messages[1].tool_calls[0].function",
    ),
    (
        "arguments that are no JSON",
        CHAT_ROUTE,
        {"messages": [USER, _calling('{"v": ')]},
        400,
        "messages[1].tool_calls[0].function.arguments",
    ),
    (
        "arguments that are a list",
        CHAT_ROUTE,
        {"messages": [USER, _calling("[]")]},
        400,
        "messages[1].tool_calls[0].function.arguments",
    ),
    (
        "arguments that are a word",
        CHAT_ROUTE,
        {"messages": [USER, _calling('"x"')]},
        400,
        "messages[1].tool_calls[0].function.arguments",
    ),
    ("tools in words", CHAT_ROUTE, {"tools": "f"}, 400, "tools"),
    ("a tool without function", CHAT_ROUTE, {"tools": [{"type": "function"}]}, 400, "tools[0].function"),
    (
        "a tool of another kind",
        CHAT_ROUTE,
        {"tools": [{"type": "custom", "function": {"name": "f"}}]},
        400,
        "tools[0].type",
    ),
    (
        "a tool without name",
        CHAT_ROUTE,
        {"tools": [{"type": "function", "function": {}}]},
        400,
        "tools[0].function.name",
    ),
    ("a tool with a strange name", CHAT_ROUTE, {"tools": [_tool("a b")]}, 400, "tools[0].function.name"),
    ("two tools of a name", CHAT_ROUTE, {"tools": [_tool("f"), _tool("f")]}, 400, "tools[1].function.name"),
    (
        "parameters that are none",
        CHAT_ROUTE,
        {"tools": [_tool("f", parameters="x")]},
        400,
        "tools[0].function.parameters",
    ),
    ("required without tools", CHAT_ROUTE, {"tool_choice": "required"}, 400, "tool_choice"),
    ("a choice nobody knows", CHAT_ROUTE, {"tools": [_tool("f")], "tool_choice": "any"}, 400, "tool_choice"),
    (
        "a tool nobody knows",
        CHAT_ROUTE,
        {"tools": [_tool("f")], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        400,
        "tool_choice",
    ),
    ("tools with beams", CHAT_ROUTE, {"tools": [_tool("f")], "use_beam_search": True}, 400, "tools"),
    ("content missing", CHAT_ROUTE, {"messages": [{"role": "user"}]}, 400, "messages[0].content"),
    ("content a number", CHAT_ROUTE, {"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content"),
    (
        "content an image",
        CHAT_ROUTE,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        400,
        "messages[0].content[0].type",
    ),
    (
        "text part without text",
        CHAT_ROUTE,
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        400,
        "messages[0].content[0].text",
    ),
    ("conversation too long", CHAT_ROUTE, {"messages": [{"role": "user", "content": "x" * 70}]}, 400, "messages"),
    ("stream a string", CHAT_ROUTE, {"stream": "yes"}, 400, "stream"),
    ("stream_options alone", CHAT_ROUTE, {"stream_options": {"include_usage": True}}, 400, "stream_options"),
    ("stream_options a list", CHAT_ROUTE, {"stream": True, "stream_options": []}, 400, "stream_options"),
    ("cache_salt empty", TEXT_ROUTE, {"cache_salt": ""}, 400, "cache_salt"),
    ("priority a fraction", TEXT_ROUTE, {"priority": 0.5}, 400, "priority"),
    ("response_format of no kind", CHAT_ROUTE, {"response_format": {"type": "xml"}}, 400, "response_format.type"),
    ("response_format no object", CHAT_ROUTE, {"response_format": "json"}, 400, "response_format"),
    (
        "response_format without a schema",
        CHAT_ROUTE,
        {"response_format": {"type": "json_schema"}},
        400,
        "response_format.json_schema.schema",
    ),
    ("structured_outputs empty", TEXT_ROUTE, {"structured_outputs": {"regex": ""}}, 400, "structured_outputs.regex"),
    ("structured_outputs unknown", TEXT_ROUTE, {"structured_outputs": {"xml": "a"}}, 400, "structured_outputs"),
    (
        "two forms",
        TEXT_ROUTE,
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        400,
        "response_format",
    ),
    ("thinking_token_budget -1", CHAT_ROUTE, {"thinking_token_budget": -1}, 400, "thinking_token_budget"),
    ("unknown model", CHAT_ROUTE, {"model": "gpt-9"}, 404, "model"),
    ("model a number", TEXT_ROUTE, {"model": 3}, 400, "model"),
]

# Known fields that are not supported yet: (route, field, value that would change the answer).
REFUSED: list[tuple[str, str, Any]] = [
    (TEXT_ROUTE, "best_of", 2),
    (TEXT_ROUTE, "suffix", "end"),
    (CHAT_ROUTE, "modalities", ["text", "audio"]),
    (CHAT_ROUTE, "audio", {"voice": "alloy"}),
    (CHAT_ROUTE, "add_special_tokens", True),
]

# The same fields with values that change nothing, and fields nobody knows.
HARMLESS: dict[str, Any] = {
    "tools": [],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "logit_bias": {},
    "presence_penalty": 0.0,
    "frequency_penalty": None,
    "repetition_penalty": 1,
    "best_of": 1,
    "echo": False,
    "modalities": ["text"],
    "temperature": None,
    "stop": None,
    "n": None,
    "model": None,
    "stream_options": None,
    "user": "somebody",
    "store": True,
    "some_new_field": {"a": [1]},
}


def _bytes(route: str, body: Any) -> bytes:
    good = CHAT if route == CHAT_ROUTE else TEXT
    return body if isinstance(body, bytes) else json.dumps({**good, **body}).encode()


async def _assert_refused(service: FakeService, config: ServeConfig, route: str, data: bytes) -> tuple[int, Any]:
    async with client(service, config) as http:
        bad = await http.post(route, content=data)
        good = await http.post(CHAT_ROUTE, json=CHAT)
    assert good.status_code == 200
    assert good.json()["choices"][0]["message"]["content"] == answer_text(0, 4)
    assert len(service.requests) - len(service.aborted) == 1
    assert not service.open
    return bad.status_code, bad.json()["error"]


@pytest.mark.parametrize(("route", "body", "status", "param"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_bad_input(
    service: FakeService, config: ServeConfig, route: str, body: Any, status: int, param: str | None
) -> None:
    got, error = run(_assert_refused(service, config, route, _bytes(route, body)))
    assert (got, error["param"]) == (status, param), error
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
    assert error["code"] in (None, "unsupported_parameter", "model_not_found")
    if param is not None:
        assert param.split("[")[0] in error["message"] or "prompt" in error["message"]
    assert "`$" not in error["message"]


@pytest.mark.parametrize(("route", "field", "value"), REFUSED, ids=[f"{c[1]}={c[2]}" for c in REFUSED])
def test_not_supported_yet(service: FakeService, config: ServeConfig, route: str, field: str, value: Any) -> None:
    status, error = run(_assert_refused(service, config, route, _bytes(route, {field: value})))
    assert (status, error["param"], error["code"]) == (400, field, "unsupported_parameter")
    assert "not supported yet" in error["message"]


@pytest.mark.parametrize("field", HARMLESS)
def test_harmless_values_and_unknown_fields_pass(service: FakeService, config: ServeConfig, field: str) -> None:
    async def ask() -> list[int]:
        async with client(service, config) as http:
            answers = [
                await http.post(CHAT_ROUTE, json={**CHAT, field: HARMLESS[field]}),
                await http.post(TEXT_ROUTE, json={**TEXT, field: HARMLESS[field]}),
            ]
        return [answer.status_code for answer in answers]

    assert run(ask()) == [200, 200]


def test_unknown_routes_and_methods(service: FakeService, config: ServeConfig) -> None:
    async def ask() -> list[Any]:
        async with client(service, config) as http:
            return [
                await http.get("/v1/nothing"),
                await http.post("/v1/completions/", json=TEXT),
                await http.get(CHAT_ROUTE),
                await http.post("/health"),
            ]

    missing, slash, method, health = run(ask())
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    assert "/v1/nothing" in missing.json()["error"]["message"]
    assert slash.status_code == 404
    assert (method.status_code, method.headers["allow"]) == (405, "POST")
    assert method.json()["error"]["code"] is None
    assert health.status_code == 405


def test_queue_full_says_when_to_retry(service: FakeService, config: ServeConfig) -> None:
    service.queue_full = True

    async def ask() -> Any:
        async with client(service, config) as http:
            return await http.post(TEXT_ROUTE, json={**TEXT, "stream": True})

    answer = run(ask())
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert answer.json()["error"]["type"] == "overloaded_error"


def test_who_waited_too_long_may_come_again(service: FakeService, config: ServeConfig) -> None:
    service.expires = True

    async def ask() -> list[Any]:
        async with client(service, config) as http:
            asked = [{**TEXT, "prompt": prompts} for prompts in ("Hi", ["a", "b"])]
            whole = [await http.post(TEXT_ROUTE, json=body) for body in asked]
            streams = [await http.post(TEXT_ROUTE, json={**body, "stream": True}) for body in asked]
            return [*whole, *streams, await http.get("/metrics")]

    *whole, one, two, page = run(ask())
    error = {"message": "the request waited for 3 seconds", "type": "queue_timeout_error", "param": None, "code": None}
    for answer in whole:
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"] == error
    for stream in (one, two):  # Its head is out already.
        events = events_of(stream.text)
        assert (json.loads(events[-2])["error"], events[-1]) == (error, "[DONE]")
    assert 'octavo:admission_rejections_total{model_name="tiny",reason="queue_timeout"} 4.0' in page.text
    assert not service.open


def test_too_large_body_without_a_declared_length(service: FakeService, config: ServeConfig) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b" " * 1000

    async def ask() -> Any:
        async with client(service, config) as http:
            return await http.post(TEXT_ROUTE, content=parts())

    assert run(ask()).status_code == 413


def test_defects_are_500_in_the_same_shape_without_details(service: FakeService, config: ServeConfig) -> None:
    async def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("secret")

    service.generate = broken  # pyright: ignore[reportAttributeAccessIssue]

    async def ask() -> Any:
        async with client(service, config) as http:
            return await http.post(TEXT_ROUTE, json=TEXT)

    answer = run(ask())
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.json()["error"]["type"] == "internal_error"
