"""Bodies of every route, damaged: never answered with 500, never in the log, and the next good one is answered."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest
from hypothesis import given

from octavo.config.serve import ServeConfig
from tests.fuzz.mutation import changed_bytes, changed_json, fuzz
from tests.server.fake_service import FakeService
from tests.server.harness import client, run
from tests.server.test_openapi import DESCRIBED, GOOD

SECRET = "swordfish"
# What a client may say beside what it must.
_TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
}
_MORE: dict[str, Any] = {
    "temperature": 0.5, "top_p": 0.9, "n": 2, "stop": ["x"], "seed": 3, "logprobs": 2, "stream": True, "logit_bias": {"5": 1},
    "stream_options": {"include_usage": True}, "user": SECRET,
}  # fmt: skip
_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}}
_CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": SECRET},
        {"role": "user", "content": [{"type": "text", "text": SECRET}]},
        {"role": "assistant", "content": None, "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": SECRET},
    ],
    "tools": [_TOOL],
    "tool_choice": "auto",
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
}
EXAMPLES: dict[str, dict[str, Any]] = {
    path: {**good, **({"prompt": SECRET} if "prompt" in good else {})} for path, good in GOOD.items()
}
EXAMPLES["/v1/completions"] |= {**_MORE, "echo": True}
EXAMPLES["/v1/chat/completions"] |= {**_MORE, **_CHAT, "logprobs": True, "top_logprobs": 2}
EXAMPLES["/v1/responses"] |= {"input": [{"role": "user", "content": SECRET}], "instructions": SECRET, "store": False}
EXAMPLES["/inference/v1/generate"] |= {"sampling_params": {"temperature": 0.5, "n": 2, "logprobs": 1}}


def fields_of(path: str) -> tuple[str, ...]:
    """Return the names of all fields that a route takes."""
    schema = DESCRIBED["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    while "$ref" in schema:
        schema = DESCRIBED["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return tuple(sorted(schema["properties"]))


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.mark.parametrize("path", EXAMPLES)
def test_no_damage_is_answered_with_500(path: str) -> None:
    example, lines = EXAMPLES[path], _Lines()
    config = ServeConfig(
        served_model_name=("tiny",), max_body_bytes=2**16, enable_log_requests=True, enable_access_log=True
    )
    statuses: set[int] = set()

    def send(body: bytes) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with client(FakeService(), config) as http:
                headers = {"Content-Type": "application/json"}
                return await asyncio.wait_for(http.post(path, content=body, headers=headers), 10)

        answer = run(ask())
        statuses.add(answer.status_code)
        assert answer.status_code < 500, answer.text
        if answer.status_code != 200:
            error = answer.json()["error"]
            assert error if isinstance(error, str) else error["message"]
        return answer

    @fuzz(60)
    @given(changed_json(example, fields_of(path)))
    def parts(body: Any) -> None:
        send(json.dumps(body).encode())

    @fuzz(30)
    @given(changed_bytes(json.dumps(example).encode()))
    def damage(body: bytes) -> None:
        send(body)

    logger = logging.getLogger("octavo")
    level = logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.DEBUG)
    try:
        assert send(json.dumps(example).encode()).status_code == 200
        parts()
        damage()
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)
    assert 400 in statuses
    # What people write is nobody's business, whatever is wrong with it.
    assert len(lines.lines) > 30
    assert [line for line in lines.lines if SECRET in line] == []
