"""Calls and thoughts that a grammar makes a random model have: what parsers read is what grammars wrote, streamed and whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from octavo import launch
from octavo.config.engine import EngineConfig
from octavo.config.serve import ServeConfig
from octavo.frontend.service import TextService
from tests.reported.padded import save_padded
from tests.server.harness import client, events_of

CITY = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Köln", "{x", "a\\b", "🙂"]},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 2},
        "deep": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
    },
    "required": ["city", "days", "deep"],
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}},
    {"type": "function", "function": {"name": "time", "parameters": NOTHING}},
]
NAMED = {"type": "function", "function": {"name": "weather"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


class Served:
    """An engine, in front of which applications with other options are put."""

    def __init__(self, runner: asyncio.Runner, service: TextService) -> None:
        self._runner, self._service = runner, service

    def chat(self, config: ServeConfig, **body: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the only choice of a chat, whole, and the same as a stream joined it."""
        asked = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 1.0, "max_tokens": 250, **body}

        async def go() -> list[Any]:
            async with client(self._service, config) as http:  # pyright: ignore[reportArgumentType]
                path = "/v1/chat/completions"
                return [await http.post(path, json=asked), await http.post(path, json={**asked, "stream": True})]

        whole, stream = self._runner.run(asyncio.wait_for(go(), 30))
        assert whole.status_code == stream.status_code == 200, whole.text
        return whole.json()["choices"][0], _joined(events_of(stream.text))


def _joined(events: list[str]) -> dict[str, Any]:
    assert events.pop() == "[DONE]"
    found: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "finish_reason": None}
    for event in events:
        (choice,) = json.loads(event)["choices"]
        assert found["finish_reason"] is None
        delta = choice["delta"]
        found["content"] += delta.get("content") or ""
        found["reasoning"] += delta.get("reasoning") or ""
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(found["calls"]):
                found["calls"].append([call["function"]["name"], ""])
            found["calls"][call["index"]][1] += call["function"]["arguments"]
        found["finish_reason"] = choice["finish_reason"]
    return found


def _parts(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning") or "",
        "calls": [[c["function"]["name"], c["function"]["arguments"]] for c in message.get("tool_calls") or ()],
        "finish_reason": choice["finish_reason"],
    }


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = save_padded(tmp_path_factory.mktemp("padded"))
    with asyncio.Runner() as runner:
        options = {"model": str(folder), "max_model_len": 512, "max_num_seqs": 8, "dtype": "float32"}
        service = runner.run(launch.start_service(EngineConfig.from_options(options)))
        yield Served(runner, service)
        runner.run(service.close())


# JSON, JSON with other words, tags whose text has no quotes, and Python; each by one way to ask or the other.
@pytest.mark.parametrize(
    ("dialect", "choice"),
    [
        ("hermes", "required"),
        ("llama3_json", NAMED),
        ("mistral", "required"),
        ("deepseek_v3", NAMED),
        ("kimi_k2", "required"),
        ("qwen3_coder", NAMED),
        ("glm45", NAMED),
        ("pythonic", "required"),
    ],
    ids=lambda value: value if isinstance(value, str) else "named",
)
def test_calls_that_must_be_are_read_as_they_were_written(served: Served, dialect: str, choice: Any) -> None:
    config = ServeConfig(tool_call_parser=dialect, reasoning_parser="none")
    ended = 0
    for seed in range(3):
        whole, streamed = served.chat(config, tools=TOOLS, tool_choice=choice, seed=seed)
        parts = _parts(whole)
        assert parts == streamed
        if parts["finish_reason"] == "length":
            continue
        ended += 1
        assert parts["finish_reason"] == "tool_calls"
        assert parts["content"].strip() == ""
        assert 1 <= len(parts["calls"]) <= (1 if choice == NAMED else 2)
        for name, arguments in parts["calls"]:
            schema = CITY if name == "weather" else NOTHING
            assert name in (("weather",) if choice == NAMED else ("weather", "time"))
            jsonschema_rs.validate(schema, json.loads(arguments))
    assert ended


def test_one_call_at_a_time(served: Served) -> None:
    config = ServeConfig(tool_call_parser="hermes", reasoning_parser="none")
    for seed in range(4):
        fields = {"tools": TOOLS[1:], "tool_choice": "required", "parallel_tool_calls": False}
        whole, streamed = served.chat(config, **fields, seed=seed)
        assert _parts(whole) == streamed
        assert (streamed["calls"], streamed["finish_reason"]) == ([["time", "{}"]], "tool_calls")


@pytest.mark.parametrize("budget", [1, 5, 20])
def test_the_form_begins_behind_the_thoughts(served: Served, budget: int) -> None:
    config = ServeConfig(reasoning_parser="deepseek_r1", tool_call_parser="none")
    thoughts = set[str]()
    for seed in range(4):
        whole, streamed = served.chat(config, response_format=FORM, thinking_token_budget=budget, seed=seed)
        parts = _parts(whole)
        assert parts == streamed
        assert parts["finish_reason"] == "stop"
        jsonschema_rs.validate(SCHEMA, json.loads(parts["content"]))
        assert "think>" not in parts["content"] + parts["reasoning"]
        thoughts.add(parts["reasoning"])
    assert len(thoughts) > 1


def test_without_thoughts_the_form_begins_at_once(served: Served) -> None:
    whole, streamed = served.chat(ServeConfig(reasoning_parser="none"), response_format=FORM, seed=3)
    assert _parts(whole) == streamed
    assert (streamed["reasoning"], streamed["finish_reason"]) == ("", "stop")
    jsonschema_rs.validate(SCHEMA, json.loads(streamed["content"]))
