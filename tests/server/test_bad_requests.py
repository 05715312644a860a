"""Bad requests to every route: the wrong method, the wrong body, no key. Each gets a clear 4xx, and the server lives on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.routing import Route

from octavo.config.serve import ServeConfig
from octavo.frontend.server.app import create_app
from tests.host.cli.test_bad_command_lines import CASES as COMMAND_LINES
from tests.server.fake_service import FakeService, answer_text
from tests.server.harness import CHAT, client, run
from tests.server.test_bad_input import CASES as BODIES
from tests.server.test_bad_input import REFUSED
from tests.server.test_bad_protocols import CASES as PROTOCOLS
from tests.server.test_bad_protocols import WRONG_METHODS

USER = {"role": "user", "content": "Hi"}
CHAT_ROUTE, TEXT_ROUTE = "/v1/chat/completions", "/v1/completions"

# (name, method, path, body, status, param)
CASES: list[tuple[str, str, str, Any, int, str | None]] = [
    ("tokenize nothing", "POST", "/tokenize", b"", 400, None),
    ("tokenize an array", "POST", "/tokenize", [], 400, None),
    ("tokenize neither", "POST", "/tokenize", {}, 400, "prompt"),
    ("tokenize both", "POST", "/tokenize", {"prompt": "a", "messages": [USER]}, 400, "prompt"),
    ("tokenize a number", "POST", "/tokenize", {"prompt": 5}, 400, "prompt"),
    ("tokenize ids", "POST", "/tokenize", {"prompt": [5]}, 400, "prompt"),
    ("tokenize no messages", "POST", "/tokenize", {"messages": []}, 400, "messages"),
    ("tokenize a wizard", "POST", "/tokenize", {"messages": [{"role": "wizard"}]}, 400, "messages[0].role"),
    ("tokenize no content", "POST", "/tokenize", {"messages": [{"role": "user"}]}, 400, "messages[0].content"),
    ("tokenize tools", "POST", "/tokenize", {"messages": [USER], "tools": [{"type": "function"}]}, 400, "tools[0].function"),
    ("tokenize a flag in words", "POST", "/tokenize", {"prompt": "a", "add_special_tokens": "no"}, 400,
     "add_special_tokens"),
    ("tokenize for a stranger", "POST", "/tokenize", {"prompt": "a", "model": "gpt-9"}, 404, "model"),
    ("tokenize too much", "POST", "/tokenize", {"prompt": "x" * 30_000}, 413, None),
    ("tokenize what is not UTF-8", "POST", "/tokenize", b'{"prompt":"\xff"}', 400, None),
    ("tokenize by GET", "GET", "/tokenize", None, 405, None),
    ("detokenize nothing", "POST", "/detokenize", {}, 400, "tokens"),
    ("detokenize null", "POST", "/detokenize", {"tokens": None}, 400, "tokens"),
    ("detokenize a text", "POST", "/detokenize", {"tokens": "abc"}, 400, "tokens"),
    ("detokenize texts", "POST", "/detokenize", {"tokens": ["5"]}, 400, "tokens[0]"),
    ("detokenize booleans", "POST", "/detokenize", {"tokens": [1, True]}, 400, "tokens[1]"),
    ("detokenize fractions", "POST", "/detokenize", {"tokens": [1.5]}, 400, "tokens[0]"),
    ("detokenize a negative id", "POST", "/detokenize", {"tokens": [-1]}, 400, "tokens"),
    ("detokenize beyond the vocabulary", "POST", "/detokenize", {"tokens": [1000]}, 400, "tokens"),
    ("detokenize beyond 64 bits", "POST", "/detokenize", {"tokens": [2**70]}, 400, "tokens"),
    ("detokenize NaN", "POST", "/detokenize", b'{"tokens":[NaN]}', 400, "tokens[0]"),
    ("detokenize for a stranger", "POST", "/detokenize", {"tokens": [1], "model": "x"}, 404, "model"),
    ("detokenize by GET", "GET", "/detokenize", None, 405, None),
    ("models by POST", "POST", "/v1/models", {}, 405, None),
    ("no such response", "GET", "/v1/responses/resp_x", None, 404, "response_id"),
    ("a response as a stream", "GET", "/v1/responses/resp_x?stream=true", None, 400, "stream"),
    ("no such response to forget", "DELETE", "/v1/responses/resp_x", None, 404, "response_id"),
    ("no such response to stop", "POST", "/v1/responses/resp_x/cancel", None, 404, "response_id"),
    ("a response by PUT", "PUT", "/v1/responses/resp_x", {}, 405, None),
    ("a model by DELETE", "DELETE", "/v1/models/tiny", None, 405, None),
    ("no such model", "GET", "/v1/models/gpt-9", None, 404, "model"),
    ("a model with a strange name", "GET", "/v1/models/%00%ff", None, 404, "model"),
    ("health by POST", "POST", "/health", {}, 405, None),
    ("ping by PUT", "PUT", "/ping", {}, 405, None),
    ("load by POST", "POST", "/load", {}, 405, None),
    ("version by POST", "POST", "/version", {}, 405, None),
    ("metrics by POST", "POST", "/metrics", {}, 405, None),
    ("reset by GET", "GET", "/reset_prefix_cache", None, 405, None),
    ("chat by GET", "GET", CHAT_ROUTE, None, 405, None),
    ("completions by PUT", "PUT", TEXT_ROUTE, {}, 405, None),
    ("no route", "POST", "/v2/chat/completions", CHAT, 404, None),
    ("a slash too many", "POST", CHAT_ROUTE + "/", CHAT, 404, None),
    ("the root by POST", "POST", "/", {}, 405, None),
    ("stats by POST", "POST", "/stats", {}, 405, None),
    ("docs by POST", "POST", "/docs", {}, 405, None),
    ("the description by POST", "POST", "/openapi.json", {}, 405, None),
    ("a way up", "GET", "/v1/../etc/passwd", None, 404, None),
    ("a form", "POST", CHAT_ROUTE, b"model=tiny&messages=Hi", 400, None),
    ("a byte order mark", "POST", CHAT_ROUTE, b"\xef\xbb\xbf" + json.dumps(CHAT).encode(), 400, None),
    ("UTF-16", "POST", CHAT_ROUTE, json.dumps(CHAT).encode("utf-16"), 400, None),
    ("two objects", "POST", CHAT_ROUTE, json.dumps(CHAT).encode() * 2, 400, None),
    ("a comment", "POST", CHAT_ROUTE, b'{"messages": [] /* none */}', 400, None),
    ("a number with a plus", "POST", TEXT_ROUTE, b'{"prompt":"x","seed":+1}', 400, None),
    ("usage in words", "POST", CHAT_ROUTE, {**CHAT, "stream": True, "stream_options": {"include_usage": "yes"}}, 400,
     "stream_options.include_usage"),
    ("usage all along, a number", "POST", TEXT_ROUTE,
     {"prompt": "x", "stream": True, "stream_options": {"continuous_usage_stats": 1}}, 400,
     "stream_options.continuous_usage_stats"),
    ("template variables a list", "POST", CHAT_ROUTE, {**CHAT, "chat_template_kwargs": []}, 400, "chat_template_kwargs"),
    ("generation prompt in words", "POST", CHAT_ROUTE, {**CHAT, "add_generation_prompt": "no"}, 400,
     "add_generation_prompt"),
    ("a template of one's own", "POST", CHAT_ROUTE, {**CHAT, "chat_template": "{{ 1 }}"}, 400, "chat_template"),
    ("salt too long", "POST", TEXT_ROUTE, {"prompt": "x", "cache_salt": "s" * 1025}, 400, "cache_salt"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_bad_requests(
    service: FakeService, config: ServeConfig, method: str, path: str, body: Any, status: int, param: str | None
) -> None:
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()

    async def ask() -> Any:
        async with client(service, config) as http:
            bad = await http.request(method, path, content=data)
            good = await http.post(CHAT_ROUTE, json=CHAT)
            assert good.json()["choices"][0]["message"]["content"] == answer_text(0, 4)
            return bad

    bad = run(ask())
    error = bad.json()["error"]
    assert (bad.status_code, error["param"]) == (status, param), error
    assert set(error) == {"message", "type", "param", "code"}
    assert 10 <= len(error["message"]) <= 300
    assert "\n" not in error["message"]
    assert "Traceback" not in error["message"]
    assert param is None or param.split("[")[0] in error["message"]
    assert (len(service.requests), service.num_resets, service.open) == (1, 0, set())


def test_the_tables_reach_every_route_and_hold_enough_cases(service: FakeService) -> None:
    routes = [route for route in create_app(service, ServeConfig(), model="m").routes if isinstance(route, Route)]
    asked = (
        {(case[1], case[2]) for case in CASES}
        | {("POST", case[1]) for case in (*BODIES, *PROTOCOLS)}
        | set(WRONG_METHODS)
    )
    unasked = [route.path for route in routes if not any(route.path_regex.match(path) for _, path in asked)]
    assert unasked == []
    assert len(BODIES) + len(REFUSED) + len(CASES) + len(COMMAND_LINES) >= 120
    assert len(CASES) + len(COMMAND_LINES) >= 100
