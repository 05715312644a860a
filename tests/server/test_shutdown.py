"""The socket and the end of a real server process."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.base.errors import ConfigError
from octavo.config.serve import ServeConfig
from octavo.frontend.server.serve import bind, url_of
from tests.server.harness import TEXT

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def _server(delay: float, timeout: float) -> Generator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "tests.server.serve_fake", str(delay), str(timeout)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            for _ in range(500):
                with contextlib.suppress(httpx.TransportError):
                    if httpx.get(url + "/health").status_code == 200:
                        break
                time.sleep(0.01)
            yield process, url
        finally:
            process.kill()


def _stream(http: httpx.Client, url: str) -> Any:
    return http.stream("POST", url + "/v1/completions", json={**TEXT, "max_tokens": 20, "stream": True})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_with_status_0(number: signal.Signals) -> None:
    with _server(0.0, 30.0) as (process, _):
        process.send_signal(number)
        assert process.wait(5) == 0


def test_sigterm_lets_running_requests_finish_and_refuses_new_ones() -> None:
    with _server(0.05, 30.0) as (process, url), httpx.Client() as http, _stream(http, url) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        refused = httpx.post(url + "/v1/completions", json=TEXT)
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "shutting_down_error")
        assert httpx.get(url + "/health").status_code == 503
        rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert process.wait(5) == 0


def test_what_outlives_the_timeout_gets_an_error_event_and_the_status_is_0() -> None:
    with _server(0.1, 0.3) as (process, url), httpx.Client() as http, _stream(http, url) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        events = [line for line in lines if line]
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2].removeprefix("data: "))["error"]["type"] == "shutting_down_error"
        assert process.wait(5) == 0


def test_a_second_signal_ends_at_once() -> None:
    with _server(1.0, 30.0) as (process, url), httpx.Client() as http, _stream(http, url) as response:
        lines = response.iter_lines()
        next(lines)
        began = time.perf_counter()
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 1
        assert time.perf_counter() - began < 2


def test_a_port_in_use_is_an_error_at_once() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}") as caught:
            bind(ServeConfig(port=port))
        assert caught.value.field == "port"


def test_an_address_that_is_not_one() -> None:
    with pytest.raises(ConfigError, match="host"):
        bind(ServeConfig(host="no such host", port=0))


def test_connections_are_refused_until_the_server_is_ready() -> None:
    with bind(ServeConfig(port=0)) as taken:
        assert url_of(taken) == f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(httpx.ConnectError):
            httpx.get(url_of(taken) + "/health")
        taken.listen()
        with socket.create_connection(taken.getsockname(), timeout=1):
            pass
