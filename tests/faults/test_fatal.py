"""Faults that end an engine or a server: everybody hears why, health and metrics say so at once, and nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from tests.faults.serving import TRUTH_SECONDS, Server, serve, within
from tests.faults.worker import BREAKING_SEED

FLAGS = ("--max-model-len", "2048", "--num-pages", "512", "--max-num-seqs", "8", "--restart-policy", "never")


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as some:
        yield some


def stream(server: Server, on_first: Callable[[], None] = lambda: None, **options) -> list[str]:
    """Return the data of all events of a long stream."""
    body = {"prompt": [9, 8, 7], "max_tokens": 1900, "ignore_eos": True, "temperature": 0, "stream": True, **options}
    found: list[str] = []
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            if line:
                if not found:
                    on_first()
                found.append(line.removeprefix("data: "))
    return found


def check_dead(server: Server, streams: list[Future[list[str]]], says: str) -> None:
    """Assert that everybody was told what has happened, and that health and metrics tell it within a second."""
    within(TRUTH_SECONDS, lambda: not server.healthy() and server.idle())
    for one in streams:
        *_, error, done = one.result(10)
        assert done == "[DONE]"
        told = json.loads(error)["error"]
        assert told["type"] == "engine_dead_error"
        assert says in told["message"]
    later = server.ask([1, 2])
    assert (later.status_code, later.json()["error"]["type"]) == (503, "engine_dead_error")
    assert says in later.json()["error"]["message"]


def start_streams(server: Server, threads: ThreadPoolExecutor, count: int) -> list[Future[list[str]]]:
    """Start long streams and wait until all of them run."""
    streams = [threads.submit(stream, server) for _ in range(count)]
    within(10, lambda: server.metrics()["octavo:num_requests_running"] == count)
    return streams


def test_a_killed_engine(tiny, threads):
    with serve(tiny, *FLAGS) as server:
        streams = start_streams(server, threads, 3)
        os.kill(server.pid_of("octavo.engine.process"), signal.SIGKILL)
        check_dead(server, streams, "killed by SIGKILL")


def test_a_worker_that_raises_in_mid_answer(tiny, threads):
    with serve(tiny, *FLAGS, "--logits-processors", "tests.faults.worker:Breaks") as server:
        streams = start_streams(server, threads, 2)
        streams.append(threads.submit(stream, server, seed=BREAKING_SEED))
        assert len(streams[-1].result(10)) > 2
        check_dead(server, streams, "the worker broke on purpose")


def test_a_killed_rank(tiny, threads):
    with serve(tiny, *FLAGS, "--tensor-parallel-size", "2") as server:
        streams = start_streams(server, threads, 2)
        os.kill(server.pid_of("octavo.worker.executors.rank", 1), signal.SIGKILL)
        check_dead(server, streams, "rank 1 was killed by SIGKILL")


def test_a_killed_front_ends_the_server_and_the_other_fronts_answers_are_whole(tiny, threads):
    with serve(tiny, *FLAGS, "--api-server-count", "2") as server:
        streams = [threads.submit(_until_cut, server) for _ in range(4)]
        within(10, lambda: server.metrics()["octavo:num_requests_running"] == 4)
        os.kill(server.pid_of("octavo.cli.fronts"), signal.SIGKILL)
        ends = [one.result(30) for one in streams]
        # Connections go to whichever front takes them first.
        assert set(ends) <= {"cut", "whole"}
        assert server.process.wait(15) == 9
        server.ends = None


def _until_cut(server: Server) -> str:
    try:
        events = stream(server, max_tokens=400)
    except httpx.TransportError:
        return "cut"
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"
    return "whole"


def test_the_killed_owner_of_fronts_and_engine_leaves_none_of_them(tiny, threads):
    with serve(tiny, *FLAGS, "--api-server-count", "2") as server:
        lines = " ".join(server.family().values())
        modules = ("octavo.cli.main", "octavo.cli.fronts", "octavo.engine.process", "template_process")
        assert [lines.count(module) for module in modules] == [1, 2, 1, 2]
        server.ends = None
        server.process.kill()
        server.process.wait()
