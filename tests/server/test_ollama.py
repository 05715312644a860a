"""Ollama's protocol: lines of JSON, whose pieces add up to the whole."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from octavo.base.version import VERSION
from octavo.config.serve import ServeConfig
from octavo.frontend.server.routes import ollama as route
from tests.server.fake_service import FakeService, answer_text
from tests.server.harness import client, run
from tests.server.scripted import CUT, EVENTS, script

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "options": {"num_predict": 4}}
GENERATE: dict[str, Any] = {"model": "tiny:latest", "prompt": "Hi", "options": {"num_predict": 4}}


async def _ask(service: FakeService, config: ServeConfig, path: str, body: Any) -> list[dict[str, Any]]:
    async with client(service, config) as http:
        answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    kind = "application/json" if body.get("stream") is False else "application/x-ndjson"
    assert answer.headers["content-type"].startswith(kind)
    lines = [json.loads(line) for line in answer.text.splitlines()]
    for line in lines:
        assert line["model"] == "tiny"
        assert datetime.fromisoformat(line["created_at"]).tzinfo is not None
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    return lines


@pytest.mark.parametrize(("path", "body"), [("/api/chat", CHAT), ("/api/generate", GENERATE)])
def test_text_whole_and_streamed(service: FakeService, config: ServeConfig, path: str, body: Any) -> None:
    def text(line: dict[str, Any]) -> str:
        return line["message"]["content"] if path == "/api/chat" else line["response"]

    (whole,) = run(_ask(service, config, path, {**body, "stream": False}))
    lines = run(_ask(service, config, path, body))
    assert (text(whole), whole["done_reason"]) == (answer_text(0, 4), "length")
    assert [text(line) for line in lines] == [*(answer_text(0, n + 1)[len(answer_text(0, n)) :] for n in range(4)), ""]
    assert (whole["prompt_eval_count"], whole["eval_count"]) == (3, 4)
    assert {**lines[-1], "eval_count": 4}.keys() == whole.keys()


def test_thoughts_and_calls(service: FakeService, config: ServeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = script(monkeypatch, route, EVENTS)
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    body = {**CHAT, "tools": tools, "think": "high"}
    (whole,) = run(_ask(service, config, "/api/chat", {**body, "stream": False}))
    message = whole["message"]
    assert (message["thinking"], message["content"]) == ("Let me think. 八", "I will look. 🙂Done.")
    calls = [("weather", {"city": "Paris {x"}), ("time", {})]
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]] == calls
    lines = [line["message"] for line in run(_ask(service, config, "/api/chat", body))]
    for field in ("thinking", "content"):
        assert "".join(line.get(field, "") for line in lines) == message[field]
    assert [call for line in lines for call in line.get("tool_calls", ())] == message["tool_calls"]
    conversation, _ = asked[0]
    assert (list(conversation.tools), conversation.reasoning_effort) == (tools, "high")
    assert conversation.template_variables == {"enable_thinking": True}


def test_a_call_that_was_cut_off(service: FakeService, config: ServeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, route, CUT, "length")
    (whole,) = run(_ask(service, config, "/api/chat", {**CHAT, "stream": False}))
    assert whole["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": {}}


def test_options_and_messages(service: FakeService, config: ServeConfig) -> None:
    options = {"num_predict": -1, "temperature": 0, "repeat_penalty": 1.5, "stop": ["x"], "seed": 3, "num_ctx": 99}
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    turns = [
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_name": "f"},
    ]
    run(_ask(service, config, "/api/chat", {**CHAT, "messages": [*CHAT["messages"], *turns], "options": options}))
    params = service.requests[0][1]
    assert (params.max_tokens, params.temperature, params.repetition_penalty) == (None, 0, 1.5)
    assert (params.stop, params.seed) == (("x",), 3)
    assert service.conversations[0][0][1:] == [
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]},
        turns[1],
    ]


def test_prompts(service: FakeService, config: ServeConfig) -> None:
    run(_ask(service, config, "/api/generate", {**GENERATE, "system": "Be brief."}))
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert service.conversations[0][0] == messages
    run(_ask(service, config, "/api/generate", {**GENERATE, "raw": True}))
    assert (len(service.conversations), service.requests[1][0]) == (1, service.words.encode("Hi"))


def test_an_error_in_mid_stream(service: FakeService, config: ServeConfig) -> None:
    service.fail_at = 1

    async def ask() -> str:
        async with client(service, config) as http:
            return (await http.post("/api/chat", json=CHAT)).text

    assert json.loads(run(ask()).splitlines()[-1]) == {"error": "the logits are not numbers"}


def test_what_is_served(service: FakeService, config: ServeConfig) -> None:
    async def ask() -> list[Any]:
        async with client(service, config) as http:
            shown = await http.post("/api/show", json={"model": "small"})
            return [(await http.get("/api/tags")).json(), shown.json(), (await http.get("/api/version")).json()]

    tags, shown, version = run(ask())
    assert [model["name"] for model in tags["models"]] == ["tiny", "small"]
    assert shown["model_info"]["octavo.context_length"] == service.max_model_len
    assert version == {"version": VERSION}
