"""Several models behind one server: loaded on first use, the least recently used makes room; nothing is lost meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from octavo.base.errors import CheckpointError, EngineDeadError
from octavo.cli.main import main
from octavo.config.serve import ServeConfig
from octavo.frontend.server.app import create_library
from octavo.frontend.server.shelf import Shelf
from octavo.protocol.output import EngineStats
from tests.server.fake_service import FakeService, answer_text
from tests.server.harness import CHAT, run, samples


class _Engines:
    """Starts fake engines, and keeps what happened."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.running: dict[str, FakeService] = {}
        self.delay = 0.0
        self.broken: set[str] = set()

    async def start(self, name: str) -> FakeService:
        self.told.append(f"+{name}")
        await asyncio.sleep(0.01)
        if name in self.broken:
            raise CheckpointError(f"{name} cannot be read")
        service = _Closing(self, name)
        service.delay = self.delay
        service.figures = EngineStats(num_running=len(name), num_pages=10, used_pages=5)
        self.running[name] = service
        return service


class _Closing(FakeService):
    def __init__(self, engines: _Engines, name: str) -> None:
        super().__init__()
        self._engines, self._name = engines, name

    async def close(self) -> None:
        assert not self.open, "requests are lost"
        self._engines.told.append(f"-{self._name}")
        del self._engines.running[self._name]


@contextlib.asynccontextmanager
async def _library(
    engines: _Engines, most: int = 1, max_waiting: int = 0, **options: Any
) -> AsyncGenerator[tuple[httpx.AsyncClient, Shelf]]:
    models = {name: lambda name=name: engines.start(name) for name in ("a", "bb", "ccc")}
    config = ServeConfig(max_loaded_models=most, **options)
    app, shelf = create_library(models, config, max_waiting=max_waiting)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        yield http, shelf


async def _chat(http: httpx.AsyncClient, model: str | None, **fields: Any) -> httpx.Response:
    body = {**CHAT, "model": model, **fields}
    return await http.post("/v1/chat/completions", json={k: v for k, v in body.items() if v is not None})


def test_a_model_is_loaded_when_asked_for_and_the_one_used_least_recently_goes() -> None:
    engines = _Engines()

    async def go() -> None:
        async with _library(engines, most=2) as (http, _):
            assert engines.told == []
            for name in ("a", "bb", "a", "ccc"):
                answer = (await _chat(http, name)).json()
                assert (answer["model"], answer["choices"][0]["message"]["content"]) == (name, answer_text(0, 4))
            assert engines.told == ["+a", "+bb", "-bb", "+ccc"]
            # Routes of other protocols find it in the same way.
            ollama = {"model": "bb:latest", "messages": CHAT["messages"], "stream": False}
            assert (await http.post("/api/chat", json=ollama)).status_code == 200
            claude = {"model": "bb", "messages": CHAT["messages"], "max_tokens": 4}
            assert (await http.post("/v1/messages", json=claude)).json()["model"] == "bb"
            assert (await http.post("/tokenize", json={"model": "ccc", "prompt": "Hi"})).json()["count"] == 3
            assert engines.told[4:] == ["-a", "+bb"]

    run(go())


def test_who_has_to_go_finishes_what_it_has_and_comes_back_for_who_waits() -> None:
    engines = _Engines()
    engines.delay = 0.02

    async def go() -> None:
        async with _library(engines) as (http, _):
            streams = [asyncio.create_task(_chat(http, "a", stream=True)) for _ in range(3)]
            while len(engines.running.get("a", FakeService()).open) < 3:
                await asyncio.sleep(0.001)
            others = [asyncio.create_task(_chat(http, name)) for name in ("bb", "bb")]
            await asyncio.sleep(0.005)
            late = asyncio.create_task(_chat(http, "a"))
            answers = await asyncio.gather(*streams, *others, late)
            assert [answer.status_code for answer in answers] == [200] * 6
            assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers[:3])
            assert engines.told == ["+a", "-a", "+bb", "-bb", "+a"]

    run(go())


def test_many_that_ask_at_once_start_one_engine() -> None:
    engines = _Engines()

    async def go() -> None:
        async with _library(engines) as (http, _):
            answers = await asyncio.gather(*(_chat(http, "a") for _ in range(8)))
            assert {answer.status_code for answer in answers} == {200}
            assert engines.told == ["+a"]

    run(go())


def test_a_model_that_cannot_be_loaded_harms_no_other() -> None:
    engines = _Engines()
    engines.broken = {"bb"}

    async def go() -> None:
        async with _library(engines, most=2) as (http, _):
            failed = await _chat(http, "bb")
            assert (failed.status_code, failed.json()["error"]["message"]) == (
                CheckpointError.status,
                "bb cannot be read",
            )
            assert (await _chat(http, "a")).status_code == 200
            engines.broken = set()
            assert (await _chat(http, "bb")).status_code == 200
            # An engine that died is started again.
            engines.running["a"].dead = True
            assert (await _chat(http, "a")).status_code == 200
            assert engines.told == ["+bb", "+a", "+bb", "-a", "+a"]

    run(go())


def test_a_request_names_a_model_that_there_is() -> None:
    engines = _Engines()

    async def go() -> None:
        async with _library(engines, max_body_bytes=5000) as (http, _):
            none, unknown = await _chat(http, None), await _chat(http, "dd")
            assert (none.status_code, none.json()["error"]["param"]) == (400, "model")
            assert "a, bb, ccc" in none.json()["error"]["message"]
            assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
            for content, status in ((b"{", 400), (b"[]", 400), (b'{"model": 3}', 400), (b" " * 5001, 413)):
                assert (await http.post("/v1/messages", content=content)).status_code == status
            broken = await http.post("/v1/messages", content=b"{")
            assert broken.json()["type"] == "error"
            for path in ("/v1/nowhere", "/", "/v1/responses/x", "/v1/completions/"):
                answer = await http.post(path, json={"prompt": "x"})
                assert (path, answer.status_code) == (path, 405 if path in ("/", "/v1/responses/x") else 404)
            assert (await http.get("/v1/completions")).status_code == 405
            assert engines.told == []

    run(go())


def test_what_needs_no_model_tells_of_all() -> None:
    engines = _Engines()

    async def go() -> None:
        async with _library(engines, most=2) as (http, _):
            assert (await http.get("/health")).status_code == 200
            cards = (await http.get("/v1/models")).json()["data"]
            assert [card["id"] for card in cards] == ["a", "bb", "ccc"]
            assert (await http.get("/v1/models/bb")).json()["id"] == "bb"
            assert (await http.get("/v1/models/dd")).status_code == 404
            tags = (await http.get("/api/tags")).json()["models"]
            assert [tag["name"] for tag in tags] == ["a", "bb", "ccc"]
            await _chat(http, "a")
            await _chat(http, "ccc", max_tokens=7)
            shown = samples((await http.get("/metrics")).text)
            tokens = {
                name: shown[f'octavo:generation_tokens_total{{model_name="{name}"}}'] for name in ("a", "bb", "ccc")
            }
            assert tokens == {"a": 4, "bb": 0, "ccc": 7}
            running = {
                name: shown[f'octavo:num_requests_running{{model_name="{name}"}}'] for name in ("a", "bb", "ccc")
            }
            assert running == {"a": 1, "bb": 0, "ccc": 3}
            page = (await http.get("/metrics")).text
            assert page.count("# TYPE octavo:generation_tokens_total counter") == 1
            stats = (await http.get("/stats")).json()
            assert (stats["num_running"], stats["num_pages"], stats["server_load"]) == (4, 20, 0)
            assert (await http.post("/reset_prefix_cache")).json() == {"success": True}
            assert {name: service.num_resets for name, service in engines.running.items()} == {"a": 1, "ccc": 1}
            # Counters stay when a model goes.
            await _chat(http, "bb")
            shown = samples((await http.get("/metrics")).text)
            assert shown['octavo:generation_tokens_total{model_name="a"}'] == 4

    run(go())


def test_answers_are_found_when_their_model_is_gone() -> None:
    engines = _Engines()

    async def go() -> None:
        async with _library(engines) as (http, _):
            made = (await http.post("/v1/responses", json={"model": "a", "input": "Hi"})).json()
            await _chat(http, "bb")
            assert engines.told == ["+a", "-a", "+bb"]
            assert (await http.get(f"/v1/responses/{made['id']}")).json()["output"] == made["output"]
            more = {"model": "bb", "input": "On", "previous_response_id": made["id"]}
            assert (await http.post("/v1/responses", json=more)).status_code == 200
            assert (await http.delete(f"/v1/responses/{made['id']}")).status_code == 200
            assert (await http.get(f"/v1/responses/{made['id']}")).status_code == 404
            assert engines.told == ["+a", "-a", "+bb"]

    run(go())


def test_those_that_wait_for_a_model_are_bounded_and_an_end_is_orderly() -> None:
    engines = _Engines()
    engines.delay = 0.02

    async def go() -> None:
        async with _library(engines, max_waiting=2) as (http, shelf):
            running = asyncio.create_task(_chat(http, "a"))
            while not engines.running:
                await asyncio.sleep(0.001)
            waiting = [asyncio.create_task(_chat(http, "bb")) for _ in range(2)]
            await asyncio.sleep(0.005)
            full = await _chat(http, "bb")
            assert (full.status_code, full.headers["retry-after"]) == (429, "1")
            assert (await http.get("/load")).json() == {"server_load": 3}
            assert await shelf.drain(5.0)
            assert (await http.get("/health")).status_code == 503
            answers = await asyncio.gather(running, *waiting)
            assert [answer.status_code for answer in answers] == [200, 503, 503]
            await shelf.close()
            assert engines.running == {}

    run(go())


def test_who_leaves_while_it_waits_leaves_its_place_to_others() -> None:
    engines = _Engines()
    engines.delay = 0.2

    async def go() -> None:
        async with _library(engines, max_waiting=1) as (http, shelf):
            running = asyncio.create_task(_chat(http, "a", max_tokens=3))
            while not engines.running:
                await asyncio.sleep(0.001)
            gone, sent = asyncio.Event(), list[Any]()
            messages = [{"type": "http.request", "body": json.dumps({**CHAT, "model": "ccc"}).encode()}]

            async def receive() -> Any:
                if messages:
                    return messages.pop()
                await gone.wait()
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                sent.append(message)

            scope = {
                "type": "http",
                "method": "POST",
                "path": "/v1/chat/completions",
                "headers": [],
                "query_string": b"",
            }
            leaving = asyncio.create_task(http._transport.app(scope, receive, send))  # pyright: ignore
            await asyncio.sleep(0.005)
            assert (await _chat(http, "bb")).status_code == 429
            gone.set()
            await leaving
            assert sent[0]["status"] == 499
            assert shelf.num_open == 1
            assert (await _chat(http, "bb")).status_code == (await running).status_code == 200
            assert engines.told == ["+a", "-a", "+bb"]

    run(go())


def test_an_engine_that_dies_while_it_answers_is_told(service: FakeService) -> None:
    engines = _Engines()

    async def go() -> None:
        async with _library(engines) as (http, _):
            await _chat(http, "a")

            async def generate(*_: Any, **__: Any) -> Any:
                raise EngineDeadError("it died")

            engines.running["a"].generate = generate  # type: ignore[method-assign]
            assert (await _chat(http, "a")).status_code == 503

    run(go())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "demo"], "2 models need as many different names (--served-model-name)"),
        (["demo", "./none", "--port", "0"], "./none"),
        (["demo", "other", "--api-server-count", "2"], "--api-server-count"),
    ],
)
def test_a_wrong_command_line_is_an_error_before_anything_starts(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *arguments]) in (1, 2)
    assert words in capsys.readouterr().err


def test_bodies_are_read_once() -> None:
    engines = _Engines()

    async def go() -> None:
        async with _library(engines) as (http, _):
            body = json.dumps({**CHAT, "model": "a"}).encode()

            async def pieces() -> AsyncGenerator[bytes]:
                for place in range(0, len(body), 7):
                    yield body[place : place + 7]

            answer = await http.post("/v1/chat/completions", content=pieces())
            assert answer.status_code == 200

    run(go())


def test_the_environment_has_flags_too_and_the_command_line_goes_before_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_SERVE_ARGS", "--api-server-count 70 --root-path '/a b'")
    assert main(["serve", "demo"]) == 2
    assert "api_server_count must be between 1 and 64, not 70" in capsys.readouterr().err
    assert main(["serve", "demo", "--api-server-count", "80"]) == 2
    assert "not 80" in capsys.readouterr().err
    monkeypatch.setenv("OCTAVO_SERVE_ARGS", "--no-such-flag")
    with pytest.raises(SystemExit):
        main(["serve", "demo"])
    assert "unknown flag --no-such-flag" in capsys.readouterr().err
