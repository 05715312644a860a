"""An engine that died is started again: who asked hears why, probes and metrics tell it, and then all is as before."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.faults.serving import TRUTH_SECONDS, Server, serve, within
from tests.faults.test_fatal import stream

FLAGS = ("--max-model-len", "2048", "--num-pages", "512", "--max-num-seqs", "8")
LABELS = '{model_name="tiny"}'


def statuses(server: Server) -> list[int]:
    """Return what the probes say: /live, /ready, /health, /ping."""
    return [httpx.get(server.url + path, timeout=5).status_code for path in ("/live", "/ready", "/health", "/ping")]


def agreed(server: Server, expected: list[int]) -> bool:
    """Return whether every front says so: connections go to whichever takes them first."""
    return all(statuses(server) == expected for _ in range(4))


def kill_engine(server: Server) -> None:
    os.kill(server.pid_of("octavo.engine.process"), signal.SIGKILL)


@pytest.mark.parametrize("fronts", ["1", "2"])
def test_a_killed_engine_comes_back(tiny, fronts):
    with serve(tiny, *FLAGS, "--api-server-count", fronts) as server, ThreadPoolExecutor(2) as threads:
        text = server.text([1, 2, 3])
        for number in (1.0, 2.0):
            running = [threads.submit(stream, server) for _ in range(2)]
            within(10, lambda: server.metrics()["octavo:num_requests_running"] == 2)
            kill_engine(server)
            within(2 * TRUTH_SECONDS, lambda: agreed(server, [200, 503, 503, 503]))
            asked = server.ask([1, 2, 3])
            assert (asked.status_code, asked.json()["error"]["type"]) == (503, "engine_starting_error")
            assert asked.headers["retry-after"] == "1"
            for one in running:
                events = one.result(10)
                assert events[-1] == "[DONE]"
                assert '"engine_dead_error"' in events[-2]
            within(30, lambda: agreed(server, [200] * 4))
            assert server.text([1, 2, 3]) == text
            assert server.metrics()["octavo:engine_restarts_total"] == number
            assert server.idle()
        errors = server.metrics()['octavo:request_success_total{finished_reason="error"}']
        assert errors == 4


@pytest.mark.parametrize("fronts", ["1", "2"])
def test_an_engine_that_dies_again_and_again_ends_the_server(tiny, fronts):
    flags = ("--max-restarts", "1", "--api-server-count", fronts)
    with serve(tiny, *FLAGS, *flags) as server:
        kill_engine(server)
        within(10, lambda: agreed(server, [200, 503, 503, 503]))
        within(30, lambda: agreed(server, [200] * 4))
        server.ends = None
        kill_engine(server)
        assert server.process.wait(15) == 1


def test_probes_answer_while_the_model_loads_and_a_signal_ends_that(tiny):
    with serve(tiny, *FLAGS, waits=False) as server:
        within(20, lambda: answers(server))
        # The engine reads torch now, which takes longer than the tokenizer.
        found = statuses(server)
        asked = server.ask([1, 2])
        assert found == [200, 503, 503, 503]
        assert (asked.status_code, asked.json()["error"]["type"]) == (503, "engine_starting_error")
        server.ends = None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 143


def answers(server: Server) -> bool:
    try:
        return httpx.get(server.url + "/live", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def test_a_stopped_engine_is_not_alive_and_one_that_goes_on_is(tiny):
    with serve(tiny, *FLAGS) as server:
        pid = server.pid_of("octavo.engine.process")
        os.kill(pid, signal.SIGSTOP)
        within(TRUTH_SECONDS, lambda: statuses(server) == [503] * 4)
        os.kill(pid, signal.SIGCONT)
        within(5, lambda: statuses(server) == [200] * 4)
        assert server.text([1, 2])
        assert server.metrics()["octavo:engine_restarts_total"] == 0


def test_an_engine_that_dies_while_it_is_told_to_end_is_not_started_again(tiny):
    with serve(tiny, *FLAGS) as server, ThreadPoolExecutor(1) as threads:
        running = threads.submit(stream, server)
        within(10, lambda: server.metrics()["octavo:num_requests_running"] == 1)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        kill_engine(server)
        assert '"engine_dead_error"' in running.result(10)[-2]
        assert server.process.wait(10) == 0
