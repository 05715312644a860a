"""Faults that a server survives: the others' answers are as if nothing had happened, and everything comes back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.faults.serving import TRUTH_SECONDS, Server, serve, within
from tests.faults.tiny import POISON

PROMPTS = [[5, 17, 90, 33], [5, 17, 90, 34, 8], [140, 3, 3, 77, 21, 9], [60] * 40]
# Five pages of 16 tokens: a sequence of 70 tokens fits alone.
NUM_PAGES = 5


@pytest.fixture(scope="module")
def server(tiny) -> Iterator[Server]:
    with serve(tiny, "--max-model-len", "2048", "--max-num-seqs", "8", "--kv-cache-memory", str(2**22)) as running:
        yield running


@pytest.fixture(scope="module")
def expected(server) -> list[str]:
    """What the prompts are answered when nothing is wrong."""
    return [server.text(prompt) for prompt in PROMPTS]


@contextlib.contextmanager
def others(server: Server, expected: list[str]) -> Iterator[None]:
    """While something happens, ask all prompts three times over; every answer must be right."""
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(server.text, prompt) for prompt in PROMPTS * 3]
        yield
        assert [one.result(30) for one in asked] == expected * 3


def long_request(server: Server, **options) -> bytes:
    """A stream of a few megabytes, as bytes."""
    body = {"prompt": [9, 8, 7], "max_tokens": 1500, "ignore_eos": True, "temperature": 0, "stream": True, **options}
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def port_of(server: Server) -> int:
    return int(server.url.rpartition(":")[2])


_CLIENT = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as line:
    line.sendall(sys.stdin.buffer.read())
    while data := line.recv(4096):
        print("got", len(data), flush=True)
"""


def test_a_client_that_is_killed_gives_everything_back(server, expected):
    command = [sys.executable, "-S", "-c", _CLIENT, str(port_of(server))]
    with (
        others(server, expected),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as killed,
    ):
        assert killed.stdin is not None
        assert killed.stdout is not None
        killed.stdin.write(long_request(server))
        killed.stdin.close()
        assert killed.stdout.readline().startswith(b"got")
        assert killed.stdout.readline().startswith(b"got")
        before = server.metrics()
        killed.kill()
        aborted = 'octavo:request_success_total{finished_reason="abort"}'
        within(TRUTH_SECONDS, lambda: server.metrics()[aborted] == before[aborted] + 1)
    within(TRUTH_SECONDS, server.idle)
    assert server.metrics()["octavo:generation_tokens_total"] < before["octavo:generation_tokens_total"] + 1400


def test_a_socket_that_is_never_read_holds_up_nobody(server, expected):
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(("127.0.0.1", port_of(server)))
        line.sendall(long_request(server, n=8, logprobs=20, max_tokens=1000))
        with others(server, expected):
            within(5, lambda: server.metrics()["octavo:num_requests_running"] > 0)
        # What it did not read waits in one place, not the engine for it.
        within(30, server.idle)
        assert load_of(server) == 1
        assert server.healthy()
        assert server.text(PROMPTS[0]) == expected[0]
    within(TRUTH_SECONDS, lambda: load_of(server) == 0)


def load_of(server: Server) -> int:
    return httpx.get(server.url + "/load", timeout=10).json()["server_load"]


def test_numbers_that_break_are_one_requests_own(server, expected):
    before = server.metrics()["octavo:corrupted_requests_total"]
    with others(server, expected):
        for prompt in ([5, 17, POISON, 33], [POISON] * 30, [POISON]):
            broken = server.ask(prompt)
            assert broken.status_code == 500
            assert broken.json()["error"]["type"] == "generation_error"
            assert "not finite" in broken.json()["error"]["message"]
    within(TRUTH_SECONDS, server.idle)
    assert server.metrics()["octavo:corrupted_requests_total"] == before + 3
    # Its pages hold what is no number, and are somebody else's now.
    assert [server.text(prompt) for prompt in PROMPTS] == expected


def test_a_stopped_engine_is_said_to_be_unwell_and_goes_on_where_it_was(server, expected):
    engine = server.pid_of("octavo.engine.process")
    with ThreadPoolExecutor(1) as threads:
        long = threads.submit(server.text, [9, 8, 7], max_tokens=600)
        within(5, lambda: server.metrics()["octavo:num_requests_running"] > 0)
        os.kill(engine, signal.SIGSTOP)
        try:
            within(TRUTH_SECONDS, lambda: not server.healthy())
        finally:
            os.kill(engine, signal.SIGCONT)
        with others(server, expected):
            assert len(long.result(30).split()) == 600
    within(2 * TRUTH_SECONDS, server.healthy)
    within(TRUTH_SECONDS, server.idle)


def test_memory_that_does_not_suffice_is_said_on_admission_and_shared_otherwise(tiny):
    with serve(tiny, "--max-model-len", "2048", "--num-pages", str(NUM_PAGES)) as small:
        alone = [small.text(prompt, max_tokens=24) for prompt in PROMPTS]
        began = time.monotonic()
        refused = small.ask(PROMPTS[0], max_tokens=1000)
        assert time.monotonic() - began < TRUTH_SECONDS
        assert refused.status_code in (400, 500)
        assert "pages" in refused.json()["error"]["message"]
        with ThreadPoolExecutor(8) as threads:
            together = list(threads.map(lambda prompt: small.text(prompt, max_tokens=24), PROMPTS * 2))
        assert together == alone * 2
        within(TRUTH_SECONDS, small.idle)


def test_a_disk_that_fills_up_costs_nobody_anything(tiny, expected):
    with serve(tiny, "--max-model-len", "2048", "--num-pages", "64", "--api-server-count", "2") as server:
        assert [server.text(prompt) for prompt in PROMPTS] == expected
        server.fill_disk()
        assert [server.text(prompt) for prompt in PROMPTS] == expected
        # So long that every front has tried to write what it counted.
        time.sleep(0.6)
        # Each connection goes to one of the fronts.
        assert all(server.healthy() and server.idle() for _ in range(6))
        assert [server.text(prompt) for prompt in PROMPTS] == expected


_ON_A_FULL_DISK = """
import resource, runpy
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
runpy.run_module("octavo.cli.main", run_name="__main__")
"""


def test_a_start_on_a_full_disk_says_so(tiny):
    command = [sys.executable, "-c", _ON_A_FULL_DISK, "serve", str(tiny), "--port", "0"]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 2
    assert "no folder for the engine's sockets" in ended.stderr
    assert "TMPDIR" in ended.stderr
    assert "Traceback" not in ended.stderr
