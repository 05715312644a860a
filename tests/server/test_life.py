"""Clients that leave, engines that die, servers that shut down: nobody hangs and nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from octavo.config.serve import ServeConfig
from tests.server.fake_service import FakeService
from tests.server.harness import CHAT, TEXT, client, events_of, loopback, run, samples


async def _until(condition: Any, seconds: float = 2.0) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < end, "it did not happen in time"
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/chat/completions", {**CHAT, "n": 2}),
        ("/v1/completions", TEXT),
        ("/v1/completions", {**TEXT, "prompt": ["a", "b", "c"]}),
        ("/v1/messages", CHAT),
        ("/inference/v1/generate", {"token_ids": [5], "sampling_params": {"max_tokens": 50}}),
        ("/api/chat", {**CHAT, "options": {"num_predict": 50}}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 50}),
    ],
)
def test_a_client_that_leaves_aborts_its_request(
    service: FakeService, config: ServeConfig, route: str, body: Any, stream: bool
) -> None:
    service.delay = 0.02
    num_streams = len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1

    async def leave() -> str:
        async with loopback(service, config) as url, httpx.AsyncClient() as http:
            asking = asyncio.create_task(http.post(url + route, json={**body, "max_tokens": 50, "stream": stream}))
            await _until(lambda: len(service.open) == num_streams)
            await asyncio.sleep(0.1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await _until(lambda: not service.open)
            assert (await http.get(url + "/health")).status_code == 200
            return (await http.get(url + "/metrics")).text

    counters = samples(run(leave()))
    assert len(service.aborted) == num_streams
    choices = num_streams * body.get("n", 1)
    assert counters['octavo:request_success_total{finished_reason="abort",model_name="tiny"}'] == choices
    assert counters['octavo:e2e_request_latency_seconds_count{model_name="tiny"}'] == 0


def test_a_socket_closed_in_mid_stream(service: FakeService, config: ServeConfig) -> None:
    service.delay = 0.02

    async def leave() -> None:
        async with loopback(service, config) as url, httpx.AsyncClient() as http:
            body = {**CHAT, "max_tokens": 50, "stream": True}
            async with http.stream("POST", url + "/v1/chat/completions", json=body) as response:
                async for line in response.aiter_lines():
                    if "Oktav" in line:
                        break
            await _until(lambda: not service.open)

    run(leave())
    assert len(service.aborted) == 1


def test_a_client_that_reads_slowly_holds_up_its_own_stream_and_loses_nothing(
    service: FakeService, config: ServeConfig
) -> None:
    told = {"logprobs": True, "top_logprobs": 5, "stream": True}
    body = json.dumps({**CHAT, "n": 128, "max_tokens": 40, **told}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"

    async def ask() -> tuple[int, int, bytes]:
        async with loopback(service, config) as url:
            with socket.socket() as slow:
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                slow.connect(("127.0.0.1", urlsplit(url).port))
                slow.sendall(head % len(body) + body)
                await _until(lambda: service.open)
                stream = next(iter(service.open))
                given = -1
                while stream.num_given != given:
                    given = stream.num_given
                    await asyncio.sleep(0.1)
                async with httpx.AsyncClient() as http:
                    status = (await http.get(url + "/health")).status_code
                slow.setblocking(False)
                reader, writer = await asyncio.open_connection(sock=slow)
                data = await reader.read()
                writer.close()
                await writer.wait_closed()
                return given, status, data

    given, status, data = run(ask())
    assert (0 < given < 40, status) == (True, 200)
    assert data.count(b'"finish_reason":"length"') == 128
    # Each choice begins with its role and ends with its reason, and the stream with [DONE].
    assert data.count(b"\ndata: ") == 128 * (1 + 40 + 1) + 1


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
def test_an_error_in_mid_stream_is_an_error_event(service: FakeService, config: ServeConfig, route: str) -> None:
    service.fail_at = 2
    body = {**(CHAT if "chat" in route else TEXT), "stream": True, "n": 2}

    async def ask() -> tuple[list[str], Any, str]:
        async with client(service, config) as http:
            stream = await http.post(route, json=body)
            whole = await http.post(route, json={**body, "stream": False})
            service.fail_at = None
            assert (await http.post(route, json=body)).status_code == 200
            return events_of(stream.text), whole, (await http.get("/metrics")).text

    events, whole, metrics = run(ask())
    assert events[-1] == "[DONE]"
    error = json.loads(events[-2])
    expected = {"message": "the logits are not numbers", "type": "generation_error", "param": None, "code": None}
    assert error == {"error": expected}
    assert all(choice["finish_reason"] is None for event in events[:-2] for choice in json.loads(event)["choices"])
    assert (whole.status_code, whole.json()) == (500, error)
    assert not service.open
    assert samples(metrics)['octavo:request_success_total{finished_reason="error",model_name="tiny"}'] == 4


def test_a_dead_engine_says_so(service: FakeService, config: ServeConfig) -> None:
    service.delay = 0.02

    async def ask() -> list[Any]:
        async with client(service, config) as http:
            streaming = asyncio.create_task(http.post("/v1/completions", json={**TEXT, "stream": True}))
            waiting = asyncio.create_task(http.post("/v1/completions", json={**TEXT, "prompt": ["a", "b"]}))
            await _until(lambda: len(service.open) == 3)
            await asyncio.sleep(0.03)
            service.dead = True
            later = await http.post("/v1/completions", json=TEXT)
            found = [await streaming, await waiting, later, await http.get("/health"), await http.get("/v1/models")]
            return [*found, await http.get("/metrics")]

    streaming, waiting, later, health, models, metrics = run(ask())
    counted = samples(metrics.text)
    assert counted['octavo:request_success_total{finished_reason="error",model_name="tiny"}'] == 3
    assert counted['octavo:request_success_total{finished_reason="abort",model_name="tiny"}'] == 0
    events = events_of(streaming.text)
    assert json.loads(events[-2])["error"]["type"] == "engine_dead_error"
    assert events[-1] == "[DONE]"
    assert (waiting.status_code, later.status_code, health.status_code, models.status_code) == (503, 503, 503, 200)
    assert health.json()["error"]["type"] == "engine_dead_error"
    assert not service.open


def test_draining_finishes_what_runs_and_refuses_what_is_new(service: FakeService, config: ServeConfig) -> None:
    service.delay = 0.02

    async def ask() -> list[Any]:
        async with client(service, config) as http:
            running = asyncio.create_task(http.post("/v1/completions", json=TEXT))
            await _until(lambda: service.open)
            draining = asyncio.create_task(service.drain(5.0))
            await asyncio.sleep(0)
            refused = await http.post("/v1/chat/completions", json={**CHAT, "stream": True})
            health = await http.get("/health")
            return [await running, refused, health, await draining]

    running, refused, health, drained = run(ask())
    assert (running.status_code, refused.status_code, health.status_code, drained) == (200, 503, 503, True)
    assert running.json()["usage"]["completion_tokens"] == 4
    assert refused.json()["error"]["type"] == health.json()["error"]["type"] == "shutting_down_error"
    assert refused.headers["retry-after"] == "1"


def test_what_does_not_finish_before_the_shutdown_gets_an_error(service: FakeService, config: ServeConfig) -> None:
    service.delay = 0.02

    async def ask() -> list[Any]:
        async with client(service, config) as http:
            body = {**TEXT, "max_tokens": 50}
            stream = asyncio.create_task(http.post("/v1/completions", json={**body, "stream": True}))
            whole = asyncio.create_task(http.post("/v1/completions", json=body))
            await _until(lambda: len(service.open) == 2)
            assert not await service.drain(0.05)
            return [await stream, await whole]

    stream, whole = run(ask())
    events = events_of(stream.text)
    assert json.loads(events[-2])["error"]["type"] == "shutting_down_error"
    assert events[-1] == "[DONE]"
    assert whole.status_code == 503


def test_two_running_requests_may_have_the_same_id(service: FakeService, config: ServeConfig) -> None:
    service.delay = 0.01

    async def ask() -> list[Any]:
        async with client(service, config) as http:
            headers = {"X-Request-Id": "same"}
            asked = [http.post("/v1/completions", json=TEXT, headers=headers) for _ in range(2)]
            return await asyncio.gather(*asked)

    first, second = run(ask())
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.json()["id"] == second.json()["id"] == "cmpl-same"


def test_a_request_that_fails_to_start_leaves_nothing_queued(service: FakeService, config: ServeConfig) -> None:
    async def ask() -> Any:
        async with client(service, config) as http:
            return await http.post("/v1/completions", json={**TEXT, "prompt": ["a", "b", "x" * 64]})

    answer = run(ask())
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt[2]")
    assert len(service.aborted) == 2
    assert not service.open


@pytest.mark.parametrize(("route", "interval", "told"), [
    ("/v1/chat/completions", 0.02, True), ("/v1/messages", 0.02, True), ("/api/chat", 0.02, False),
    ("/v1/completions", 0.0, False), ("/v1/completions", 5.0, False),
])  # fmt: skip
def test_a_stream_that_waits_shows_that_it_lives(service: FakeService, route: str, interval: float, told: bool) -> None:
    service.delay = 0.1
    config = ServeConfig(served_model_name=("tiny",), sse_keep_alive_interval=interval)
    body = {**(TEXT if route == "/v1/completions" else CHAT), "max_tokens": 2, "stream": True}

    async def ask() -> str:
        async with loopback(service, config) as url, httpx.AsyncClient() as http:
            answer = await http.post(url + route, json={**body, "options": {"num_predict": 2}})
            assert (await http.get(url + "/health")).status_code == 200
            return answer.text

    text = run(ask())
    assert (": alive\n\n" in text) == told
    lines = [line for line in text.splitlines() if line and line != ": alive"]
    assert len(lines) == {"/v1/messages": 16, "/api/chat": 3, "/v1/completions": 3}.get(route, 5)
