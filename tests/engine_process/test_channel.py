"""The wire between front and engine: privacy, noise, and a reader that does not read."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import threading

import pytest
import zmq

from octavo.engine.transport import channel as channel_module
from octavo.engine.transport.channel import EngineChannel, FrontChannel
from octavo.engine.transport.endpoints import engine_endpoint, front_endpoint, make_folder, remove_folder
from octavo.protocol.arrays import int64
from octavo.protocol.output import Failure
from octavo.protocol.request import Abort


class Pair:
    """Both ends in one process."""

    def __init__(self) -> None:
        self.folder = make_folder()
        self.stopping = threading.Event()
        self.wake, self.waker = os.pipe()
        self.front = FrontChannel(self.folder)
        self.engine = EngineChannel(self.folder, stopping=self.stopping, wake_fd=self.wake)

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *exc: object) -> None:
        self.front.close()
        self.engine.close()
        os.close(self.wake)
        os.close(self.waker)
        remove_folder(self.folder)

    def push(self, address: str) -> zmq.Socket:
        socket = zmq.Context.instance().socket(zmq.PUSH)
        socket.connect(address)
        return socket


@pytest.fixture
def seen(caplog):
    """Records of the `octavo` logger, which does not propagate."""
    logger = logging.getLogger("octavo")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


def received(engine: EngineChannel) -> list:
    engine.wait()
    return list(engine.receive())


def test_sockets_are_files_that_only_this_user_reaches():
    with Pair() as pair:
        assert stat.S_IMODE(os.stat(pair.folder).st_mode) == 0o700
        assert sorted(os.listdir(pair.folder)) == ["engine", "front-0"]
    assert not os.path.exists(pair.folder)


def test_a_deep_temporary_folder_does_not_break_the_socket_path(monkeypatch, tmp_path):
    deep = tmp_path / ("x" * 90)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with Pair() as pair:
        assert pair.folder.startswith("/tmp/octavo-")


def test_bytes_that_are_no_message_are_logged_and_ignored(seen):
    with Pair() as pair:
        stranger = pair.push(engine_endpoint(pair.folder))
        for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 40, b"", b"\x81\xa4type\xa5abort"):
            stranger.send(noise)
        got = []
        while len(seen.records) < 4:
            got += received(pair.engine)
        pair.front.send(Abort(keys=int64([4])))
        while not got:
            got += received(pair.engine)
        assert got[0].keys.tolist() == [4]
        assert len(got) == 1
        stranger.close(linger=0)


def test_noise_from_the_engines_side_is_ignored_too(seen):
    async def run() -> object:
        with Pair() as pair:
            stranger = pair.push(front_endpoint(pair.folder, 0))
            stranger.send(b"\x00nonsense")
            reading = asyncio.create_task(pair.front.receive())
            while not seen.records:
                await asyncio.sleep(0.01)
            pair.engine.send(Failure(kind="A", message="b"))
            message = await asyncio.wait_for(reading, 5)
            stranger.close(linger=0)
            return message

    assert asyncio.run(run()) == Failure(kind="A", message="b")


def test_a_front_that_does_not_read_pauses_the_engine_and_nothing_is_lost(monkeypatch, seen):
    monkeypatch.setattr(channel_module, "HIGH_WATER", 4)
    big = Failure(kind="k", message="x" * 100_000)
    count = 60
    with Pair() as pair:
        sent = []

        def produce() -> None:
            for index in range(count):
                pair.engine.send(big)
                sent.append(index)

        producer = threading.Thread(target=produce)
        producer.start()
        producer.join(0.5)
        assert producer.is_alive(), "the engine should wait for its reader"
        assert len(sent) < count
        assert any("pauses" in record.getMessage() for record in seen.records)

        async def read_all() -> int:
            for _ in range(count):
                await asyncio.wait_for(pair.front.receive(), 5)
            return count

        assert asyncio.run(read_all()) == count
        producer.join(5)
        assert not producer.is_alive()


def test_an_engine_that_waits_for_its_front_still_stops(monkeypatch, seen):
    monkeypatch.setattr(channel_module, "HIGH_WATER", 1)
    big = Failure(kind="k", message="x" * 1_000_000)
    with Pair() as pair:
        producer = threading.Thread(target=lambda: [pair.engine.send(big) for _ in range(40)])
        producer.start()
        producer.join(0.3)
        assert producer.is_alive()
        pair.stopping.set()
        producer.join(2)
        assert not producer.is_alive()


def test_the_end_of_the_wake_pipe_ends_a_wait():
    with Pair() as pair:
        waiting = threading.Thread(target=pair.engine.wait)
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
        os.write(pair.waker, b"x")
        waiting.join(2)
        assert not waiting.is_alive()
