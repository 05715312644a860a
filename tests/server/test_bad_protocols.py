"""Bad requests to the protocols that are not OpenAI's completions: a 4xx in the protocol's own shape that names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.config.serve import ServeConfig
from tests.server.fake_service import FakeService
from tests.server.harness import client, run

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
USER = {"role": "user", "content": "Hi"}
GOOD: dict[str, dict[str, Any]] = {
    MESSAGES: {"model": "tiny", "max_tokens": 4, "messages": [USER]},
    COUNT: {"model": "tiny", "messages": [USER]},
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
]  # fmt: skip


def _message(route: str, body: dict[str, Any]) -> tuple[str, str | None]:
    """Return the message of an error, and the field if the protocol has a place for it; checks the shape."""
    if route.startswith("/v1/messages"):
        assert set(body) == {"type", "error"}
        assert body["type"] == "error"
        assert set(body["error"]) == {"type", "message"}
        return body["error"]["message"], None
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
