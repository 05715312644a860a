"""POST /v1/chat/completions: shapes, roles, usage and logprobs, whole and streamed alike."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import httpx
import pytest

from octavo.config.serve import ServeConfig
from octavo.frontend.server.routes.logprobs import FLOOR, CompletionLogprobs, chat_entries
from octavo.protocol.output import Logprob
from tests.server.fake_service import FakeService, answer_text
from tests.server.harness import CHAT, client, events_of, run

_OPTIONS: dict[str, Any] = {
    "add_generation_prompt": True,
    "continue_final_message": False,
    "chat_template": None,
    "template_kwargs": {},
}


async def _ask(service: FakeService, config: ServeConfig, headers: Any = None, **fields: Any) -> Any:
    async with client(service, config) as http:
        answer = await http.post("/v1/chat/completions", json={**CHAT, **fields}, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json() if not fields.get("stream") else events_of(answer.text)


def test_whole_answer(service: FakeService, config: ServeConfig) -> None:
    body = run(_ask(service, config, n=2))
    assert body.pop("id").startswith("chatcmpl-")
    assert body.pop("created") > 1_700_000_000
    assert body.pop("usage") == {
        "prompt_tokens": 3,
        "completion_tokens": 8,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": answer_text(index, 4), "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
        for index in range(2)
    ]
    assert body == {"object": "chat.completion", "model": "tiny", "choices": choices}


def test_a_chat_brings_its_own_template_only_where_clients_are_trusted(
    service: FakeService, config: ServeConfig
) -> None:
    trusting = dataclasses.replace(config, trust_request_chat_template=True)
    run(_ask(service, trusting, chat_template="{{ messages[0].content }}"))
    assert service.conversations.pop()[1] == {**_OPTIONS, "chat_template": "{{ messages[0].content }}"}

    async def ask(asked: ServeConfig, path: str) -> httpx.Response:
        async with client(service, asked) as http:
            return await http.post(path, json={"messages": CHAT["messages"], "chat_template": "{{ 1 }}"})

    for path in ("/v1/chat/completions", "/tokenize"):
        refused = run(ask(config, path))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "chat_template")
        assert run(ask(trusting, path)).status_code == 200
    assert len(service.conversations) == 2


def test_tokens_of_logprobs_are_told_by_their_ids(service: FakeService, config: ServeConfig) -> None:
    body = run(_ask(service, config, logprobs=True, top_logprobs=1, max_tokens=2, return_tokens_as_token_ids=True))
    first, second = body["choices"][0]["logprobs"]["content"]
    # The bytes stay the token's own.
    assert (first["token"], first["bytes"]) == ("token_id:0", list(b"Ein"))
    assert [one["token"] for one in second["top_logprobs"]] == ["token_id:2"]
    plain = run(_ask(service, config, logprobs=True, top_logprobs=1, max_tokens=2))
    assert plain["choices"][0]["logprobs"]["content"][0]["token"] == "Ein"


def test_messages_reach_the_template_as_sent(service: FakeService, config: ServeConfig) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": parts, "name": "Ann"}]
    kwargs = {"enable_thinking": False}
    run(_ask(service, config, messages=messages, chat_template_kwargs=kwargs, add_generation_prompt=False))
    assert service.conversations == [
        (messages, {**_OPTIONS, "add_generation_prompt": False, "template_kwargs": kwargs})
    ]
    run(_ask(service, config))
    assert service.conversations[1][1] == _OPTIONS
    own = dataclasses.replace(config, default_chat_template_kwargs={"enable_thinking": True, "date": "today"})
    run(_ask(service, own, chat_template_kwargs=kwargs))
    assert service.conversations[2][1]["template_kwargs"] == {"enable_thinking": False, "date": "today"}


def test_usage_is_told_all_along_and_at_the_end(service: FakeService, config: ServeConfig) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = run(_ask(service, config, stream=True, max_tokens=3, stream_options=options))[:-1]
    usages = [json.loads(event)["usage"]["completion_tokens"] for event in events]
    # The role's chunk comes with the first token, the reason of the end with the last.
    assert usages == [1, 1, 2, 3, 3, 3]
    alone = run(_ask(service, config, stream=True, stream_options={"continuous_usage_stats": True}))
    assert all("usage" not in json.loads(event) for event in alone[:-1])
    forced = dataclasses.replace(config, enable_force_include_usage=True)
    last = json.loads(run(_ask(service, forced, stream=True, max_tokens=3))[-2])
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 3)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_tokens": None}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": None, "max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
    ],
)
def test_length_limits(service: FakeService, config: ServeConfig, fields: Any, expected: int | None) -> None:
    run(_ask(service, config, **fields))
    assert service.requests[0][1].max_tokens == expected


@pytest.mark.parametrize(("top", "names"), [(None, []), (0, []), (2, [" hat", " Blätter"])])
def test_logprobs_shape(service: FakeService, config: ServeConfig, top: int | None, names: list[str]) -> None:
    body = run(_ask(service, config, logprobs=True, top_logprobs=top, n=2, max_tokens=2))
    first, second = body["choices"]
    assert [entry["token"] for entry in first["logprobs"]["content"]] == ["Ein", " Oktav"]
    entry = second["logprobs"]["content"][1]
    assert (entry["token"], entry["logprob"], bytes(entry["bytes"]).decode()) == (" Blätter", -0.5, " Blätter")
    assert len(entry["top_logprobs"]) == len(names)
    tops = [one["token"] for one in first["logprobs"]["content"][1]["top_logprobs"]]
    assert tops == ([" hat", " Oktav"] if names else [])  # falling, the likeliest first


def test_impossible_tokens_have_a_finite_logprob() -> None:
    alternatives = {5: Logprob(logprob=-math.inf, rank=2, decoded_token="a")}
    alternatives |= {6: Logprob(logprob=math.nan, rank=1, decoded_token="b")}
    (entry,) = chat_entries([5], [alternatives], 2, lambda _, text: text.encode())
    assert entry["logprob"] == FLOOR
    assert {one["logprob"] for one in entry["top_logprobs"]} == {FLOOR}
    assert CompletionLogprobs(2, lambda token, text: b"").piece([5], [alternatives])["token_logprobs"] == [FLOOR]


def test_bytes_of_a_part_of_a_character() -> None:
    alternatives = {5: Logprob(logprob=-1.0, rank=1, decoded_token="\ufffd")}
    (entry,) = chat_entries([5], [alternatives], 0, lambda token, _: b"\xe2\x80" if token == 5 else b"")
    assert entry["bytes"] == [0xE2, 0x80]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("logprobs", [False, True])
def test_stream_equals_whole(service: FakeService, config: ServeConfig, n: int, logprobs: bool) -> None:
    fields = {"n": n, "logprobs": logprobs, "max_tokens": 6}
    whole = run(_ask(service, config, **fields))
    events = run(_ask(service, config, **fields, stream=True, stream_options={"include_usage": True}))
    assert events.pop() == "[DONE]"
    *chunks, last = [json.loads(event) for event in events]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    joined: dict[int, Any] = {}
    for chunk in chunks:
        assert chunk["usage"] is None
        (choice,) = chunk["choices"]
        if choice["index"] not in joined:
            assert choice["delta"] == {"role": "assistant", "content": ""}
            joined[choice["index"]] = {"text": "", "entries": [], "finish_reason": None}
            continue
        known = joined[choice["index"]]
        assert known["finish_reason"] is None, "a chunk came after the end"
        assert "role" not in choice["delta"]
        known["text"] += choice["delta"].get("content", "")
        known["entries"] += (choice["logprobs"] or {"content": []})["content"]
        known["finish_reason"] = choice["finish_reason"]
        assert choice["finish_reason"] is None or choice["delta"] == {}
    for choice in whole["choices"]:
        known = joined[choice["index"]]
        assert known["text"] == choice["message"]["content"]
        assert known["finish_reason"] == choice["finish_reason"] == "length"
        assert known["entries"] == (choice["logprobs"] or {"content": []})["content"]
    assert (last["choices"], last["usage"]) == ([], whole["usage"])


def test_request_ids(service: FakeService, config: ServeConfig) -> None:
    async def ask() -> list[Any]:
        async with client(service, config) as http:
            named = {"X-Request-Id": "my-id.1"}
            bad = {"X-Request-Id": "two words"}
            return [
                await http.post("/v1/chat/completions", json=CHAT, headers=named),
                await http.post("/v1/chat/completions", json={**CHAT, "stream": True}, headers=named),
                await http.post("/v1/chat/completions", json=CHAT, headers=bad),
                await http.post("/v1/chat/completions", json=CHAT),
            ]

    whole, stream, bad, plain = run(ask())
    assert whole.json()["id"] == "chatcmpl-my-id.1"
    assert whole.headers["x-request-id"] == stream.headers["x-request-id"] == "my-id.1"
    assert '"id":"chatcmpl-my-id.1"' in stream.text
    assert "two words" not in bad.text
    assert bad.json()["id"] != plain.json()["id"]


def test_other_names_of_the_model(service: FakeService, config: ServeConfig) -> None:
    assert run(_ask(service, config, model="small"))["model"] == "small"
    assert run(_ask(service, config, model=None))["model"] == "tiny"
