"""POST /v1/completions: shapes, choices, usage and logprobs, whole and streamed alike."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.base.errors import InvalidRequestError
from octavo.config.serve import ServeConfig
from octavo.frontend.server.routes.completions import _one_kind
from tests.server.fake_service import WORDS, FakeService, answer_ids, answer_text
from tests.server.harness import CHAT, TEXT, client, events_of, run


async def _ask(service: FakeService, config: ServeConfig, **fields: Any) -> Any:
    async with client(service, config) as http:
        answer = await http.post("/v1/completions", json={**TEXT, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json() if not fields.get("stream") else events_of(answer.text)


def test_whole_answer(service: FakeService, config: ServeConfig) -> None:
    service.num_cached = 2
    body = run(_ask(service, config, max_tokens=3, seed=7, stop=["x"], priority=-2, cache_salt="s"))
    identity, created = body.pop("id"), body.pop("created")
    assert identity.startswith("cmpl-")
    assert created > 1_700_000_000
    assert body == {
        "object": "text_completion",
        "model": "tiny",
        "choices": [
            {"index": 0, "text": "Ein Oktav hat", "logprobs": None, "finish_reason": "length", "stop_reason": None}
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 3,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
    }
    tokens, params, options = service.requests[0]
    assert tokens[0] == 1  # the beginning of the sequence
    assert (params.seed, params.stop, params.max_tokens, params.logprobs) == (7, ("x",), 3, None)
    assert (options["priority"], options["cache_salt"], options["request_id"]) == (-2, "s", identity)


def test_default_is_16_tokens_and_every_parameter_arrives(service: FakeService, config: ServeConfig) -> None:
    extras = {"top_k": 5, "min_p": 0.1, "stop_token_ids": [9], "ignore_eos": True, "min_tokens": 2, "top_p": 0.5}
    extras |= {"skip_special_tokens": False, "include_stop_str_in_output": True, "temperature": 0.25}
    run(_ask(service, config, max_tokens=None, **extras))
    _, params, _ = service.requests[0]
    assert params.max_tokens == 16
    assert {name: getattr(params, name) for name in extras} == {**extras, "stop_token_ids": (9,)}


def test_the_models_own_defaults_take_the_place_of_ours(service: FakeService, config: ServeConfig) -> None:
    async def both() -> None:
        async with client(service, config) as http:
            await http.post("/v1/completions", json={**TEXT, "top_k": 3})
            await http.post("/v1/chat/completions", json={**CHAT, "temperature": None, "top_k": 3})

    service.sampling = {"temperature": 0.6, "top_k": 20}
    run(both())
    found = [(params.temperature, params.top_k, params.top_p) for _, params, _ in service.requests]
    assert found == [(0.6, 3, 1.0)] * 2


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("ab", [[1, 353, 354]]),
        (["ab", "b"], [[1, 353, 354], [1, 354]]),
        ([5, 6], [[5, 6]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ],
)
def test_every_kind_of_prompt(service: FakeService, config: ServeConfig, prompt: Any, tokens: list[list[int]]) -> None:
    body = run(_ask(service, config, prompt=prompt))
    assert [asked for asked, _, _ in service.requests] == tokens
    assert [choice["index"] for choice in body["choices"]] == list(range(len(tokens)))
    assert body["usage"]["prompt_tokens"] == sum(map(len, tokens))
    assert body["usage"]["completion_tokens"] == 4 * len(tokens)


def test_add_special_tokens_false(service: FakeService, config: ServeConfig) -> None:
    run(_ask(service, config, prompt=["a", "b"], add_special_tokens=False))
    assert [asked for asked, _, _ in service.requests] == [[353], [354]]


def test_choices_are_numbered_prompt_by_prompt(service: FakeService, config: ServeConfig) -> None:
    body = run(_ask(service, config, prompt=["a", "b"], n=3, max_tokens=2))
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3, 4, 5]
    assert [choice["text"] for choice in body["choices"]] == [answer_text(i % 3, 2) for i in range(6)]
    assert body["usage"]["completion_tokens"] == 12
    assert body["usage"]["prompt_tokens"] == 4  # once a prompt, not once a choice


def test_logprobs_shape(service: FakeService, config: ServeConfig) -> None:
    body = run(_ask(service, config, max_tokens=3, logprobs=1))
    assert body["choices"][0]["logprobs"] == {
        "tokens": ["Ein", " Oktav", " hat"],
        "token_logprobs": [-0.5, -1.0, -0.5],
        # The likeliest one, and the chosen one in any case.
        "top_logprobs": [{"Ein": -0.5}, {" hat": -0.5, " Oktav": -1.0}, {" hat": -0.5}],
        "text_offset": [0, 3, 9],
    }


def test_tokens_are_told_by_their_ids(service: FakeService, config: ServeConfig) -> None:
    body = run(_ask(service, config, max_tokens=3, logprobs=1, return_tokens_as_token_ids=True))
    assert body["choices"][0]["logprobs"] == {
        "tokens": ["token_id:0", "token_id:1", "token_id:2"],
        "token_logprobs": [-0.5, -1.0, -0.5],
        "top_logprobs": [{"token_id:0": -0.5}, {"token_id:2": -0.5, "token_id:1": -1.0}, {"token_id:2": -0.5}],
        # Of the text, as ever.
        "text_offset": [0, 3, 9],
    }


def test_logprobs_0_reports_the_chosen_tokens(service: FakeService, config: ServeConfig) -> None:
    logprobs = run(_ask(service, config, max_tokens=2, logprobs=0))["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [-0.5, -1.0]
    assert logprobs["top_logprobs"] == [{"Ein": -0.5}, {" Oktav": -1.0}]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize("prompt", ["a", ["a", "bc", "d"]])
def test_stream_equals_whole(
    service: FakeService, config: ServeConfig, n: int, logprobs: int | None, prompt: Any
) -> None:
    fields = {"n": n, "logprobs": logprobs, "prompt": prompt, "max_tokens": 7}
    whole = run(_ask(service, config, **fields))
    events = run(_ask(service, config, **fields, stream=True, stream_options={"include_usage": True}))
    assert events.pop() == "[DONE]"
    *chunks, last = [json.loads(event) for event in events]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    joined: dict[int, Any] = {}
    for chunk in chunks:
        assert chunk["usage"] is None
        (choice,) = chunk["choices"]
        known = joined.setdefault(choice["index"], {**choice, "text": "", "logprobs": None, "finish_reason": None})
        assert known["finish_reason"] is None, "a chunk came after the end"
        known["text"] += choice["text"]
        known["finish_reason"] = choice["finish_reason"]
        if choice["logprobs"] is not None:
            pieces = known["logprobs"] = known["logprobs"] or {name: [] for name in choice["logprobs"]}
            for name, values in choice["logprobs"].items():
                pieces[name] += values
    assert [joined[index] for index in sorted(joined)] == whole["choices"]
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]


def test_usage_is_in_a_stream_only_when_asked_for(service: FakeService, config: ServeConfig) -> None:
    for options in (None, {}, {"include_usage": False}):
        events = run(_ask(service, config, stream=True, stream_options=options))
        assert events[-1] == "[DONE]"
        assert all("usage" not in json.loads(event) for event in events[:-1])
        assert all(json.loads(event)["choices"] for event in events[:-1])


def test_text_offsets_count_characters(service: FakeService, config: ServeConfig) -> None:
    choice = run(_ask(service, config, max_tokens=8, logprobs=0))["choices"][0]
    for offset, token in zip(choice["logprobs"]["text_offset"], answer_ids(0, 8), strict=True):
        assert choice["text"][offset:].startswith(WORDS[token])


class Unread(list):
    """A prompt that nobody has the time to look at, on the loop that serves everybody else."""

    def __iter__(self):
        raise AssertionError("read")


def test_of_a_prompt_beyond_any_context_only_the_beginning_is_looked_at() -> None:
    ids = Unread(range(100_000))
    assert _one_kind(ids, 64)[0] is ids
    assert _one_kind(["a", "b"], 64) == ["a", "b"]
    with pytest.raises(InvalidRequestError, match="must not mix"):
        _one_kind([*range(64), "a"], 64)


EXTRAS = {
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.25,
    "logit_bias": {"7": 1.5},
    "allowed_token_ids": [1, 7],
    "bad_words": ["x"],
    "spaces_between_special_tokens": False,
    "truncate_prompt_tokens": 3,
    "stream_interval": 2,
    "prompt_logprobs": 0,
    "vllm_xargs": {"factor": 2},
}
ARRIVED = {
    **EXTRAS,
    "logit_bias": {7: 1.5},
    "allowed_token_ids": (1, 7),
    "bad_words": ("x",),
    "extra_args": {"factor": 2},
}


@pytest.mark.parametrize(("route", "body"), [("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)])
def test_every_field_of_sampling_arrives_by_both_routes(
    service: FakeService, config: ServeConfig, route: str, body: dict[str, Any]
) -> None:
    async def ask() -> None:
        async with client(service, config) as http:
            answer = await http.post(route, json={**body, **EXTRAS})
            assert answer.status_code == 200, answer.text

    run(ask())
    _, params, _ = service.requests[0]
    assert {name: getattr(params, name) for name in ARRIVED if name != "vllm_xargs"} == {
        name: value for name, value in ARRIVED.items() if name != "vllm_xargs"
    }


@pytest.mark.parametrize("prompt", ["Hi", [5, 9, 12], [[5, 9], [3]]])
@pytest.mark.parametrize("logprobs", [None, 0, 2])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_an_echo_is_the_same_streamed_and_whole(
    service: FakeService, config: ServeConfig, prompt: Any, logprobs: int | None, count: int
) -> None:
    fields = {"prompt": prompt, "echo": True, "logprobs": logprobs, "max_tokens": count, "n": 2}
    whole = run(_ask(service, config, **fields))
    events = run(_ask(service, config, **fields, stream=True))
    assert events.pop() == "[DONE]"
    prompts = [request[0] for request in service.requests[: len(whole["choices"]) // 2]]
    for choice in whole["choices"]:
        tokens = prompts[choice["index"] // 2]
        shown = "Hi" if prompt == "Hi" else "".join(WORDS[i % len(WORDS)] for i in tokens)
        assert choice["text"] == shown + (answer_text(choice["index"] % 2, count) if count else "")
        if logprobs is not None:
            piece = choice["logprobs"]
            assert len(piece["tokens"]) == len(tokens) + count
            assert piece["token_logprobs"][0] is piece["top_logprobs"][0] is None
            assert None not in piece["token_logprobs"][1:]
            assert piece["text_offset"] == [len("".join(piece["tokens"][:i])) for i in range(len(piece["tokens"]))]
        parts = [c for event in events for c in json.loads(event)["choices"] if c["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        if logprobs is not None:
            for name, values in choice["logprobs"].items():
                assert [one for part in parts if part["logprobs"] for one in part["logprobs"][name]] == values
    assert whole["usage"]["completion_tokens"] == count * len(whole["choices"])


def test_prompt_logprobs_have_ids_ranks_and_texts(service: FakeService, config: ServeConfig) -> None:
    (choice,) = run(_ask(service, config, prompt=[4, 6], prompt_logprobs=1))["choices"]
    assert choice["prompt_logprobs"] == [None, {"6": {"logprob": -0.5, "rank": 1, "decoded_token": WORDS[6]}}]


def test_max_tokens_0_without_echo_is_refused(service: FakeService, config: ServeConfig) -> None:
    async def ask() -> Any:
        async with client(service, config) as http:
            return await http.post("/v1/completions", json={**TEXT, "max_tokens": 0})

    answer = run(ask())
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")


def test_a_chat_echoes_the_turn_that_it_continues(service: FakeService, config: ServeConfig) -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}]

    async def ask(messages: Any, **fields: Any) -> Any:
        async with client(service, config) as http:
            return await http.post("/v1/chat/completions", json={**CHAT, "messages": messages, **fields})

    body = run(ask(turns, echo=True, prompt_logprobs=0)).json()
    assert body["choices"][0]["message"]["content"] == "Well," + answer_text(0, 4)
    assert body["prompt_logprobs"][0] is None
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]
    assert run(ask(turns[:1], echo=True)).json()["choices"][0]["message"]["content"] == answer_text(0, 4)
    events = events_of(run(ask(turns, echo=True, stream=True)).text)[:-1]
    pieces = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(pieces) == "Well," + answer_text(0, 4)
