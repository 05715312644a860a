"""Token ids in and out: POST /inference/v1/generate, and `return_token_ids` of the completion routes."""

from __future__ import annotations

import json
from typing import Any

from octavo.config.serve import ServeConfig
from tests.server.fake_service import FakeService, answer_ids
from tests.server.harness import CHAT, TEXT, client, events_of, run

PATH = "/inference/v1/generate"
BODY: dict[str, Any] = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 3, "n": 2, "logprobs": 1, "seed": 4}}


async def _ask(service: FakeService, config: ServeConfig, path: str, body: Any) -> Any:
    async with client(service, config) as http:
        answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        return answer.json()
    events = events_of(answer.text)
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def test_whole_and_streamed(service: FakeService, config: ServeConfig) -> None:
    whole = run(_ask(service, config, PATH, {**BODY, "priority": 2, "cache_salt": "s"}))
    tokens, params, options = service.requests[0]
    assert (tokens, params.seed, params.detokenize) == ([5, 6, 7], 4, False)
    assert (options["priority"], options["cache_salt"]) == (2, "s")
    assert [one["token_ids"] for one in whole["choices"]] == [answer_ids(0, 3), answer_ids(1, 3)]
    assert whole["choices"][0]["logprobs"][0] == [{"token_id": 0, "logprob": -0.5, "rank": 1}]
    assert [entry["token_id"] for entry in whole["choices"][1]["logprobs"][0]] == [3, 4]
    assert (whole["usage"]["completion_tokens"], whole["prompt_logprobs"]) == (6, None)
    events = run(_ask(service, config, PATH, {**BODY, "stream": True}))
    assert events.pop()["usage"] == whole["usage"]
    # The choices come interleaved, and each adds up to the whole one.
    assert [event["choices"][0]["index"] for event in events] == [0, 1] * 3
    for index, one in enumerate(whole["choices"]):
        pieces = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert [token for piece in pieces for token in piece["token_ids"]] == one["token_ids"]
        assert [entry for piece in pieces for entry in piece["logprobs"]] == one["logprobs"]
        assert [piece["finish_reason"] for piece in pieces] == [None, None, "length"]


def test_scores_of_the_prompt(service: FakeService, config: ServeConfig) -> None:
    whole = run(_ask(service, config, PATH, {"token_ids": [5, 6], "sampling_params": {"prompt_logprobs": 0}}))
    assert whole["prompt_logprobs"] == [None, [{"token_id": 6, "logprob": -0.5, "rank": 1}]]
    assert whole["choices"][0]["logprobs"] is None


def test_completions_tell_token_ids(service: FakeService, config: ServeConfig) -> None:
    body = {**TEXT, "prompt": ["a", "b"], "n": 2, "return_token_ids": True}
    whole = run(_ask(service, config, "/v1/completions", body))["choices"]
    prompts = [service.words.encode("a")] * 2 + [service.words.encode("b")] * 2
    assert [one["prompt_token_ids"] for one in whole] == prompts
    assert [one["token_ids"] for one in whole] == [answer_ids(index % 2, 4) for index in range(4)]
    pieces = [one for event in run(_ask(service, config, "/v1/completions", {**body, "stream": True}))
              for one in event["choices"]]  # fmt: skip
    for index, one in enumerate(whole):
        own = [piece for piece in pieces if piece["index"] == index]
        assert [piece["prompt_token_ids"] for piece in own] == [one["prompt_token_ids"], None, None, None]
        assert [token for piece in own for token in piece["token_ids"]] == one["token_ids"]
    plain = run(_ask(service, config, "/v1/completions", TEXT))["choices"][0]
    assert "token_ids" not in plain


def test_chats_tell_token_ids(service: FakeService, config: ServeConfig) -> None:
    whole = run(_ask(service, config, "/v1/chat/completions", {**CHAT, "n": 2, "return_token_ids": True}))
    assert whole["prompt_token_ids"] == service.requests[0][0]
    assert [one["token_ids"] for one in whole["choices"]] == [answer_ids(0, 4), answer_ids(1, 4)]
    events = run(_ask(service, config, "/v1/chat/completions", {**CHAT, "return_token_ids": True, "stream": True}))
    assert events[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert [token for event in events for token in event["choices"][0].get("token_ids", ())] == answer_ids(0, 4)
    plain = run(_ask(service, config, "/v1/chat/completions", CHAT))
    assert "prompt_token_ids" not in plain
