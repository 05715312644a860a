"""Two processes that answer HTTP for one engine: every answer is right, every token is counted once, nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import httpx

from tests.real.serving import free_port, healthy, wait_until
from tests.server.harness import samples

BODY = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}


def _counter(url: str, name: str) -> float:
    """Return a counter as any of the fronts tells it."""
    return samples(httpx.get(url + "/metrics", timeout=10).text)[f'octavo:{name}_total{{model_name="demo"}}']


def test_two_fronts_share_one_engine() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "octavo.cli.main", "serve", "demo", "--port", str(port), "--max-model-len", "256"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # noqa: TID251
    server = subprocess.Popen([*command, "--api-server-count", "2"], env=environment)
    try:
        wait_until(lambda: healthy(url), 120)
        # A connection each, so that both fronts are asked.
        answers = [httpx.post(url + "/v1/completions", json=BODY, timeout=60).json() for _ in range(12)]
        assert {answer["choices"][0]["text"] for answer in answers} == {answers[0]["choices"][0]["text"]}
        assert all(answer["usage"]["completion_tokens"] == 4 for answer in answers)
        # What the other front counted is known within half a second.
        wait_until(lambda: _counter(url, "generation_tokens") == 48, 10)
        assert [_counter(url, "prompt_tokens") for _ in range(4)] == [12 * answers[0]["usage"]["prompt_tokens"]] * 4
        children = subprocess.run(["pgrep", "-P", str(server.pid)], capture_output=True, text=True, check=True)
        assert len(children.stdout.split()) == 3
        refused = httpx.post(url + "/v1/responses", json={"input": "Hi", "background": True}, timeout=10)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "background")
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    assert not healthy(url)
