"""An engine in a process of its own: start, signals, death of either side, nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from octavo.base.errors import ConfigError, EngineDeadError
from octavo.engine.client import EngineClient
from octavo.engine.spawn import EngineElsewhere
from octavo.protocol.arrays import int32
from octavo.protocol.control import ResetPrefixCache
from octavo.protocol.request import Request
from octavo.protocol.sampling import SamplingParams
from tests.engine_process.starting import running_client, start_process


def request(key: int, tokens: bytes = b"abc", max_tokens: int = 4) -> Request:
    return Request(key=key, tokens=int32(tokens), sampling=SamplingParams(), stop_ids=(), max_tokens=max_tokens, seed=0)


async def read(client: EngineClient, inbox, woken: asyncio.Event) -> list[int]:
    """Return all ids of a single-choice request."""
    ids: list[int] = []
    while True:
        await asyncio.wait_for(woken.wait(), 5)
        woken.clear()
        if inbox.error is not None:
            raise inbox.error
        for news in inbox.take().values():
            ids += news.ids
            if news.finish is not None:
                client.forget(inbox.key)
                return ids


def gone(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_requests_go_in_and_tokens_come_out():
    async def run() -> None:
        async with running_client() as (client, process):
            assert client.healthy
            # Gauges are right before anything has been asked.
            assert (client.stats.num_pages, client.stats.num_steps) == (40, 0)
            woken = asyncio.Event()
            inbox = client.submit(request(client.new_key()), woken.set)
            assert await read(client, inbox, woken) == list(b"abca")
            assert len(client._streams) == 0
            assert client.stats.num_steps >= 4
            assert (await client.control(ResetPrefixCache())).ok
            pid, folder = process.pid, process.home
        assert gone(pid, 5)
        assert not os.path.exists(folder)
        with pytest.raises(EngineDeadError, match="shut down"):
            client.submit(request(99), woken.set)

    asyncio.run(run())


def test_what_stops_a_start_is_raised_as_itself():
    async def run() -> None:
        process = start_process(fail="max_model_len must be at most 7")
        client = EngineClient(process)
        with pytest.raises(ConfigError, match="at most 7"):
            await client.start()
        assert not client.healthy
        await client.close()
        assert not os.path.exists(process.home)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("options", "says"),
    [({"crash_at": 3}, "RuntimeError: the fake worker broke"), ({"exit_at": 3}, "ended with status 3")],
)
def test_an_engine_that_dies_fails_every_open_request(options, says):
    async def run() -> None:
        async with running_client(step_seconds=0.01, **options) as (client, _):
            events = [asyncio.Event() for _ in range(3)]
            inboxes = [client.submit(request(client.new_key(), max_tokens=1000), event.set) for event in events]
            for inbox, event in zip(inboxes, events, strict=True):
                with pytest.raises(EngineDeadError, match=says):
                    await read(client, inbox, event)
            assert not client.healthy
            with pytest.raises(EngineDeadError, match=says):
                client.submit(request(77), events[0].set)

    asyncio.run(run())


def test_a_killed_engine_is_noticed_within_a_second_also_when_idle():
    async def run() -> None:
        async with running_client() as (client, process):
            waiting = asyncio.create_task(client.control(ResetPrefixCache()))
            await waiting
            os.kill(process.pid, signal.SIGKILL)
            began = time.monotonic()
            while client.healthy:
                assert time.monotonic() - began < 1.0
                await asyncio.sleep(0.01)
            assert "killed by SIGKILL" in str(client.dead)

    asyncio.run(run())


def test_an_engine_killed_while_it_loads_fails_the_start():
    async def run() -> None:
        process = start_process(load_seconds=30)
        client = EngineClient(process)
        starting = asyncio.create_task(client.start())
        await asyncio.sleep(0.2)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await asyncio.wait_for(starting, 2)
        await client.close()

    asyncio.run(run())


def test_a_stopped_engine_is_not_called_healthy(monkeypatch):
    monkeypatch.setattr("octavo.engine.client._MISSED_BEATS", 1.5)

    async def run() -> None:
        async with running_client() as (client, process):
            await asyncio.sleep(2)
            assert client.healthy
            os.kill(process.pid, signal.SIGSTOP)
            await asyncio.sleep(2)
            assert not client.healthy
            os.kill(process.pid, signal.SIGCONT)
            await asyncio.sleep(1.2)
            assert client.healthy

    asyncio.run(run())


def test_signals_leave_the_decision_to_the_front():
    async def run() -> None:
        async with running_client() as (client, process):
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                os.kill(process.pid, number)
            woken = asyncio.Event()
            inbox = client.submit(request(client.new_key()), woken.set)
            assert await read(client, inbox, woken) == list(b"abca")

    asyncio.run(run())


_PARENT = """
import sys, time
from tests.engine_process.starting import start_process
from octavo.engine.transport.channel import FrontChannel
process = start_process(load_seconds=float(sys.argv[1]))
channel = FrontChannel(process.folder)
print(process.pid, process.home, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("load_seconds", [0, 60])
def test_a_killed_parent_leaves_no_process_and_no_socket(load_seconds):
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, str(load_seconds)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, folder = parent.stdout.readline().split()
    time.sleep(0.5)
    assert Path(f"/proc/{pid}").exists()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(int(pid), 8)
    assert not os.path.exists(folder)


def test_the_engine_process_starts_without_torch_and_fast():
    async def run() -> float:
        began = time.monotonic()
        async with running_client():
            return time.monotonic() - began

    assert asyncio.run(run()) < 3.0
    code = "import octavo.engine.process, octavo.engine.client, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_two_fronts_of_one_engine_hear_their_own_tokens_and_of_its_end():
    async def run() -> None:
        process = start_process(num_fronts=2)
        clients = [EngineClient(process), EngineClient(EngineElsewhere(process.home, 1))]
        try:
            await asyncio.gather(*(client.start() for client in clients))
            asked = [(asyncio.Event(), client) for client in clients for _ in range(3)]
            tokens = [b"abc", b"def", b"gh", b"ij", b"k", b"lmn"]
            inboxes = [
                client.submit(request(client.new_key(), text, max_tokens=5), woken.set)
                for (woken, client), text in zip(asked, tokens, strict=True)
            ]
            reading = [read(client, inbox, woken) for (woken, client), inbox in zip(asked, inboxes, strict=True)]
            assert await asyncio.gather(*reading) == [list((text * 5)[:5]) for text in tokens]
            acks = await asyncio.gather(*(client.control(ResetPrefixCache()) for client in clients))
            assert [ack.ok for ack in acks] == [True, True]
            await clients[1].close()  # Of no consequence for an engine that is another's.
            assert process.ending() is None
            other = EngineClient(EngineElsewhere(process.home, 1))
            clients.append(other)
            loading = asyncio.ensure_future(other.start())
            await asyncio.sleep(0)
            await asyncio.to_thread(process.stop)
            with pytest.raises(EngineDeadError, match="has ended"):
                await asyncio.wait_for(loading, 5)
        finally:
            for client in clients:
                await client.close()

    asyncio.run(run())
