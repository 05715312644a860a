"""Faults that show only behind HTTP with an engine at work: a tiny model in a process of its own, asked by priority."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import httpx
import pytest

from octavo import launch
from octavo.config.engine import EngineConfig
from octavo.config.serve import ServeConfig
from octavo.frontend.service import TextService
from tests.reported.padded import NUM_IDS, save_padded
from tests.server.harness import client, events_of, loopback

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "Hi"}]
OPTIONS = {"max_model_len": 256, "max_num_seqs": 16, "dtype": "float32", "scheduling_policy": "priority"}


class Server:
    """The application over one engine, called from tests that know no loop."""

    def __init__(self, runner: asyncio.Runner, service: TextService) -> None:
        self._runner, self.service = runner, service

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(asyncio.wait_for(work, 30))

    async def post(self, route: str, **body: Any) -> httpx.Response:
        async with client(self.service, ServeConfig()) as http:  # pyright: ignore[reportArgumentType]
            return await http.post(route, json=body)

    def ask(self, route: str, **body: Any) -> Any:
        """Return what a good request is answered; no number in it may be one that JSON does not have."""
        answer = self.run(self.post(route, **body))
        assert answer.status_code == 200, answer.text
        return json.loads(answer.text, parse_constant=_no_number)

    def stream(self, route: str, **body: Any) -> list[Any]:
        """Return the events of a stream but the last, which must be there."""
        events = events_of(self.run(self.post(route, **body, stream=True)).text)
        assert events.pop() == "[DONE]"
        return [json.loads(event, parse_constant=_no_number) for event in events]

    def joined(self, **body: Any) -> dict[int, tuple[str, str]]:
        """Return text and reason of every choice of a streamed completion."""
        found: dict[int, tuple[str, str]] = {}
        for event in self.stream(TEXT, **body):
            for choice in event["choices"]:
                text, reason = found.get(choice["index"], ("", None))
                assert reason is None, "a chunk came after the end"
                found[choice["index"]] = (text + choice["text"], choice["finish_reason"])
        return found

    def is_well(self) -> bool:
        """Whether the next request is answered and nothing stays behind."""
        form = {"regex": "[ab]{3}"}
        text = self.ask(TEXT, prompt="x", max_tokens=9, structured_outputs=form)["choices"][0]["text"]

        async def idle() -> bool:
            while (stats := self.service.stats()) is None or stats.num_running or stats.used_slots:
                await asyncio.sleep(0.01)
            return stats.num_waiting == self.service.num_open == 0

        return len(text) == 3 and self.run(idle())


def _no_number(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = save_padded(tmp_path_factory.mktemp("padded"))
    with asyncio.Runner() as runner:
        config = EngineConfig.from_options({"model": str(folder), **OPTIONS})
        service = runner.run(launch.start_service(config, max_logprobs=20))
        yield Server(runner, service)
        runner.run(service.close())


@pytest.mark.parametrize("route", [CHAT, TEXT])
def test_cached_tokens_are_told_also_where_there_are_none(server: Server, route: str) -> None:
    prompt = f"What is said twice on {route}, and is longer than a block or two are."
    body: dict[str, Any] = {"prompt": prompt} if route == TEXT else {"messages": [{"role": "user", "content": prompt}]}
    first = server.ask(route, **body, max_tokens=2)["usage"]
    again = server.ask(route, **body, max_tokens=2)["usage"]
    streamed = server.stream(route, **body, max_tokens=2, stream_options={"include_usage": True})[-1]["usage"]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in (first, again, streamed)]
    assert cached[0] == 0
    assert cached[1] == cached[2] >= 48
    assert cached[1] < again["prompt_tokens"]


@pytest.mark.parametrize("length", [15, 16, 17, 33])
def test_scores_of_a_prompt_are_whole_the_second_time_too(server: Server, length: int) -> None:
    ids = [(7 * i + length) % 250 for i in range(length)]
    body = {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    first, again = (server.ask(TEXT, **body)["choices"][0]["logprobs"] for _ in range(2))
    assert len(first["tokens"]) == length + 1
    assert (first["token_logprobs"][0], first["top_logprobs"][0]) == (None, None)
    assert all(value < 0 for value in first["token_logprobs"][1:])
    assert again["token_logprobs"][1:] == pytest.approx(first["token_logprobs"][1:], abs=1e-4)
    # Without a new token: the same, and nothing else.
    alone = server.ask(TEXT, **{**body, "max_tokens": 0})
    assert alone["usage"]["completion_tokens"] == 0
    scores = alone["choices"][0]["logprobs"]["token_logprobs"]
    assert scores[1:] == pytest.approx(first["token_logprobs"][1:-1], abs=1e-4)


def test_what_cannot_come_has_a_number_in_json(server: Server) -> None:
    server.ask(TEXT, prompt="ab", echo=True, logprobs=5, temperature=1, top_k=1, max_tokens=4)
    for form in ({"regex": "[ab]{4}"}, {"json": {"const": 1}}):
        body = {"structured_outputs": form, "max_tokens": 9, "temperature": 1}
        choice = server.ask(TEXT, prompt="ab", logprobs=5, **body)["choices"][0]
        assert len(choice["logprobs"]["token_logprobs"]) >= 1
        chat = server.ask(CHAT, messages=USER, logprobs=True, top_logprobs=5, **body)["choices"][0]
        for entry in chat["logprobs"]["content"]:
            assert all(isinstance(one["logprob"], float) for one in entry["top_logprobs"])


@pytest.mark.parametrize(
    "field", ["truncate_prompt_tokens", "min_tokens", "max_tokens", "top_k", "prompt_logprobs", "n"]
)
def test_whole_numbers_about_the_length_of_a_prompt(server: Server, field: str) -> None:
    """Places within a prompt and just beyond it, and numbers that nobody means."""
    prompt = "abcdefghij"
    seen: dict[int, int] = {}
    for value in (-1, 0, 1, 9, 10, 11, 246, 247, 255, 256, 257, NUM_IDS, NUM_IDS + 1, 2**31, 2**63, -(2**63), 2**70):
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "seed": 1, field: value}
        if field == "n" and 16 < value < 1000:
            continue  # Allowed, and long.
        answer = server.run(server.post(TEXT, **body))
        assert answer.status_code in (200, 400), answer.text
        if answer.status_code == 400:
            assert answer.json()["error"]["param"] in (field, "prompt")
        seen[value] = answer.status_code
    good = {
        "truncate_prompt_tokens": [-1, 1, 9, 10, 11, 256],
        "min_tokens": [0, 1],
        "max_tokens": [1, 10, 246, 247, 256, 257],
        "top_k": [-1, 0, 1, 10, NUM_IDS, NUM_IDS + 1],
        "prompt_logprobs": [0, 1, 9, 10, 11],
        "n": [1, 9, 10, 11],
    }[field]
    assert [seen[value] for value in good] == [200] * len(good)
    assert {seen[value] for value in (2**63, -(2**63), 2**70)} == {400}
    # As many as there are is more than the server allows.
    assert field != "prompt_logprobs" or {seen[value] for value in (-1, 246, NUM_IDS)} == {400}
    assert server.is_well()


def test_requests_of_one_id_are_each_answered(server: Server) -> None:
    """At once, a little apart, and again right behind one that was left."""

    async def go() -> list[Any]:
        async with client(server.service, ServeConfig()) as http:  # pyright: ignore[reportArgumentType]

            async def one(digit: str, delay: float) -> Any:
                await asyncio.sleep(delay)
                body = {"prompt": "x", "max_tokens": 90, "structured_outputs": {"regex": f"{digit}{{80}}"}}
                return await http.post(TEXT, json=body, headers={"X-Request-Id": "same"})

            left = asyncio.create_task(one("9", 0))
            await asyncio.sleep(0.05)
            left.cancel()
            return await asyncio.gather(*(one(str(i), 0.02 * (i // 2)) for i in range(6)))

    answers = server.run(go())
    assert [answer.json()["choices"][0]["text"] for answer in answers] == [str(i) * 80 for i in range(6)]
    assert server.is_well()


def test_the_likeliest_token_is_that_of_every_way_to_ask_for_it(server: Server) -> None:
    ways: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1, "top_k": 1},
        {"temperature": 1, "top_p": 1e-9},
        {"temperature": 1, "min_p": 1.0},
        *({"temperature": value} for value in (1e-5, 1e-6, 1e-12, 1e-300)),
    ]
    answers = [
        server.ask(TEXT, prompt="abc", max_tokens=20, ignore_eos=True, return_token_ids=True, **way)["choices"][0]
        for way in ways
    ]
    assert [one["token_ids"] for one in answers] == [answers[0]["token_ids"]] * len(ways)
    assert len(answers[0]["token_ids"]) == 20


def test_choices_of_a_stream_all_come_to_their_end(server: Server) -> None:
    body = {"prompt": "abc", "n": 4, "seed": 1, "temperature": 1.0, "max_tokens": 24}
    body["structured_outputs"] = {"regex": "[a-z]{40}"}
    plain = server.joined(**body)
    assert len({text for text, _ in plain.values()}) == 4
    assert [reason for _, reason in plain.values()] == ["length"] * 4
    assert server.joined(**body) == plain
    # One ends early, on a text that only it has; the others are as before.
    text, others = plain[0][0], [plain[index][0] for index in (1, 2, 3)]
    stop = next(text[i : i + 3] for i in range(2, 20) if not any(text[i : i + 3] in other for other in others))
    cut = server.joined(**body, stop=stop)
    assert cut[0] == (text[: text.index(stop)], "stop")
    assert [cut[index] for index in (1, 2, 3)] == [plain[index] for index in (1, 2, 3)]


def test_priorities_and_several_choices(server: Server) -> None:
    async def go() -> list[httpx.Response]:
        asked = [
            server.post(CHAT, messages=USER, n=2, max_tokens=30, ignore_eos=True, priority=-(i % 3), seed=i)
            for i in range(12)
        ]
        return await asyncio.gather(*asked, server.post(CHAT, messages=USER, n=2, max_tokens=5, ignore_eos=True))

    for answer in server.run(go()):
        assert answer.status_code == 200
        assert [choice["index"] for choice in answer.json()["choices"]] == [0, 1]
    assert server.is_well()


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(
    ("stop", "kept"), [("beta ga", "alpha "), ("ph", "al"), ("a ", "alph"), ("gamma", "alpha beta "), ("x", "alpha beta gamma")]
)  # fmt: skip
def test_stop_strings_over_the_borders_of_tokens(server: Server, stop: str, kept: str, include: bool) -> None:
    body = {"prompt": "x", "max_tokens": 40, "structured_outputs": {"regex": "alpha beta gamma"}, "stop": [stop]}
    body["include_stop_str_in_output"] = include
    whole = server.ask(TEXT, **body)["choices"][0]
    met = stop != "x"
    assert whole["text"] == kept + (stop if include and met else "")
    assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", stop if met else None)
    assert server.joined(**body) == {0: (whole["text"], "stop")}


def test_characters_of_several_tokens_come_whole(server: Server) -> None:
    text = "😀你好é‚€"
    body = {"prompt": "x", "n": 2, "max_tokens": 60, "structured_outputs": {"regex": text}}

    async def go() -> list[httpx.Response]:
        return await asyncio.gather(*(server.post(TEXT, **body, stream=stream) for stream in (False, True) * 4))

    for number, answer in enumerate(server.run(go())):
        bodies = [json.loads(event) for event in events_of(answer.text)[:-1]] if number % 2 else [answer.json()]
        for index in range(2):
            pieces = [c["text"] for one in bodies for c in one["choices"] if c["index"] == index]
            assert "".join(pieces) == text
            assert not any("\ufffd" in piece for piece in pieces)
    chat = server.ask(CHAT, messages=USER, logprobs=True, top_logprobs=2, **{**body, "prompt": None})["choices"][0]
    entries = chat["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"] or ()).decode() == text
    assert all(len(entry["bytes"]) == 1 for entry in entries if entry["token"] != "</s>")


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"properties": {"foo": "bar"}}}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}},
        {"structured_outputs": {"regex": "("}},
        {"structured_outputs": {"grammar": "root ::= foo bar ::="}},
        {"structured_outputs": {"json_object": False}},
        {"structured_outputs": {"json": ""}},
        {"structured_outputs": {"structural_tag": ""}},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_a_broken_form_is_400(server: Server, form: Any, stream: bool) -> None:
    for route, body in ((CHAT, {"messages": USER}), (TEXT, {"prompt": "x"})):
        answer = server.run(server.post(route, **body, **form, max_tokens=4, stream=stream))
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"].split(".")[0] in (next(iter(form)), "structured_outputs")
    assert server.is_well()


def test_nothing_left_to_choose_is_an_error_and_nothing_else_comes(server: Server) -> None:
    body = {"prompt": "x", "max_tokens": 4, "allowed_token_ids": [97, 98], "bad_words": ["a", "b"]}
    answer = server.run(server.post(TEXT, **body))
    assert answer.status_code == 500
    assert "no token is left" in answer.json()["error"]["message"]
    assert server.stream(TEXT, **body)[-1]["error"]["message"] == answer.json()["error"]["message"]
    assert server.is_well()


def test_health_does_not_wait_for_long_prompts(server: Server) -> None:
    async def go() -> tuple[list[httpx.Response], list[float]]:
        waits: list[float] = []
        async with (
            loopback(server.service, ServeConfig()) as url,  # pyright: ignore[reportArgumentType]
            httpx.AsyncClient(base_url=url, timeout=30) as http,
            httpx.AsyncClient(base_url=url, timeout=30) as other,
        ):
            bodies = [json.dumps({"prompt": "word " * 200_000}).encode() for _ in range(8)]
            asked = [asyncio.create_task(http.post(TEXT, content=body)) for body in bodies]
            while not all(one.done() for one in asked):
                began = time.monotonic()
                assert (await other.get("/health")).status_code == 200
                waits.append(time.monotonic() - began)
                await asyncio.sleep(0.02)
            return [one.result() for one in asked], waits

    answers, waits = server.run(go())
    assert [answer.status_code for answer in answers] == [400] * 8
    assert all("1000000 tokens" in answer.json()["error"]["message"] for answer in answers)
    assert len(waits) > 5
    assert sorted(waits)[int(0.9 * len(waits))] < 0.2
    assert server.is_well()
