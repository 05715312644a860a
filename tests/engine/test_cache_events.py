"""What the prefix cache tells: a router that only listens knows exactly the blocks that can be found."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from octavo.base.errors import ConfigError
from octavo.config.cache import CacheConfig, CacheEvents
from octavo.engine.kvcache.blocks import CacheEvent
from octavo.engine.transport.cache_events import CacheEventPublisher
from octavo.protocol.control import Control, ResetPrefixCache
from tests.engine.harness import GEOMETRIES, Engine, request

# Fields of what is stored, in order.
NAMES = ["block_hashes", "parent_block_hash", "token_ids", "block_size"]
NAMES += ["lora_id", "medium", "lora_name", "extra_keys", "group_idx"]


class _Router:
    """Follows events, as a router does that knows nothing else."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[int, bytes], dict[str, Any]] = {}

    def follow(self, events: list[Any]) -> None:
        for name, *fields in events:
            match name:
                case "BlockStored":
                    told = dict(zip(NAMES, fields, strict=True))
                    (digest,) = told["block_hashes"]
                    assert (told["group_idx"], digest) not in self.blocks
                    self.blocks[told["group_idx"], digest] = told
                case "BlockRemoved":
                    (digest,), medium, group = fields
                    assert medium == "GPU"
                    del self.blocks[group, digest]
                case "AllBlocksCleared":
                    self.blocks.clear()
                case _:
                    raise AssertionError(name)

    def prefix(self, group: int, digest: bytes) -> list[int]:
        """The tokens that a block stands for, from the first on."""
        block = self.blocks[group, digest]
        before = [] if block["parent_block_hash"] is None else self.prefix(group, block["parent_block_hash"])
        return before + block["token_ids"]


def _drive(engine: Engine, rng: random.Random, seen: list[CacheEvent], router: _Router) -> Iterator[int]:
    shared = [rng.randrange(50) for _ in range(24)]
    for key in range(24):
        prompt = shared[: rng.randrange(1, 24)] + [rng.randrange(50) for _ in range(rng.randrange(1, 20))]
        engine.core.handle(request(key, prompt, max_tokens=rng.randrange(1, 12)))
        if key == 15:
            engine.core.handle(Control(ticket=key, command=ResetPrefixCache()))
        for _ in range(rng.randrange(0, 6)):
            engine.core.step()
            yield key
    for _ in range(2000):
        if not engine.core.busy:
            break
        engine.core.step()
        yield -1
    assert not engine.core.busy
    assert seen


@pytest.mark.parametrize(
    "name", ["full", "full and sliding", "two blocks", "full and states", "large and small blocks"]
)
def test_a_listener_knows_the_blocks_that_can_be_found(name: str) -> None:
    seen: list[CacheEvent] = []
    router = _Router()

    def tell(events: list[CacheEvent]) -> None:
        seen.extend(events)
        router.follow(msgspec.msgpack.decode(msgspec.msgpack.encode(events)))

    engine = Engine(GEOMETRIES[name], num_pages=60, tell=tell)
    pool = engine.scheduler.state.allocator.pool
    for _ in _drive(engine, random.Random(7), seen, router):
        assert {digest + bytes((group,)) for group, digest in router.blocks} == set(pool._found)
    kinds = {event[0] for event in seen}
    assert kinds >= {"BlockStored", "AllBlocksCleared"}
    if name != "full and states":
        assert "BlockRemoved" in kinds
    # Nothing was evicted since the reset that a full group's later blocks build on.
    if name == "full":
        prompts = [prefix for _, digest in router.blocks if (prefix := router.prefix(0, digest))]
        assert len({tuple(prefix) for prefix in prompts}) == len(prompts) == len(pool._found)


def _config(folder: Path, **options: Any) -> CacheEvents:
    return CacheEvents(endpoint=f"ipc://{folder}/events", replay_endpoint=f"ipc://{folder}/replay", **options)


def _stored(number: int) -> CacheEvent:
    return ("BlockStored", [bytes((number,)) * 16], None, [1, 2], 2, None, "GPU", None, None, 0)


def _number(frame: bytes) -> int:
    return int.from_bytes(frame, "big", signed=True)


def test_frames_are_as_subscribers_expect_and_missed_ones_are_told_again(tmp_path: Path) -> None:
    context = zmq.Context()
    publisher = CacheEventPublisher(_config(tmp_path, topic="kv@", buffer_steps=3))
    listener, asker = context.socket(zmq.SUB), context.socket(zmq.DEALER)
    listener.connect(f"ipc://{tmp_path}/events")
    listener.subscribe(b"kv@")
    asker.connect(f"ipc://{tmp_path}/replay")

    def asked(start: bytes) -> list[tuple[int, Any]]:
        asker.send_multipart((b"", start))
        found: list[tuple[int, Any]] = []
        for _ in range(500):
            publisher.publish([])
            while asker.poll(10):
                _, number, data = asker.recv_multipart()
                if _number(number) == -1:
                    assert data == b""
                    return found
                found.append((_number(number), msgspec.msgpack.decode(data)[1]))
        raise AssertionError("no end of the replay")

    try:
        for _ in range(500):  # Until it listens.
            publisher.publish([_stored(0)])
            if listener.poll(20):
                break
        while listener.poll(100):
            topic, number, data = listener.recv_multipart()
        assert topic == b"kv@"
        seconds, events, rank = msgspec.msgpack.decode(data)
        assert (events, rank) == ([list(_stored(0))], 0)
        assert abs(seconds - time.time()) < 20
        last = _number(number) + 5
        publisher.publish([])  # Nothing happened, nothing is said.
        for value in range(1, 6):
            publisher.publish([_stored(value), ("AllBlocksCleared",)])
        told = [listener.recv_multipart() for _ in range(5)]
        assert [_number(number) for _, number, _ in told] == list(range(last - 4, last + 1))
        # Three batches are kept.
        expected = [(last - 5 + value, [list(_stored(value)), ["AllBlocksCleared"]]) for value in (3, 4, 5)]
        assert asked((0).to_bytes(8, "big")) == expected
        assert asked(last.to_bytes(8, "big")) == expected[2:]
        assert asked((last + 1).to_bytes(8, "big")) == []
        assert asked(b"no number") == []  # And harms nobody.
    finally:
        context.destroy(linger=0)
        publisher.close()


def test_who_asks_and_never_reads_fills_no_memory(tmp_path: Path) -> None:
    context = zmq.Context()
    publisher = CacheEventPublisher(_config(tmp_path, buffer_steps=2))
    asker = context.socket(zmq.DEALER)
    asker.set_hwm(1)
    asker.connect(f"ipc://{tmp_path}/replay")
    try:
        for _ in range(2):
            publisher.publish([("BlockStored", [bytes(2**20)])])
        for _ in range(60):
            asker.send_multipart((b"", bytes(8)))
            publisher.publish([])
            time.sleep(0.002)
        told = 0
        while asker.poll(200):
            asker.recv_multipart()
            told += 1
        assert told < 30, "what nobody reads was kept"
        # Who reads is still told all.
        asker.send_multipart((b"", bytes(8)))
        for _ in range(200):
            publisher.publish([])
            if asker.poll(10):
                break
        found = [_number(asker.recv_multipart()[1]) for _ in range(3)]
        assert found == [0, 1, -1]
    finally:
        context.destroy(linger=0)
        publisher.close()


def test_an_address_in_use_is_an_error_and_so_is_a_wrong_configuration(tmp_path: Path) -> None:
    first = CacheEventPublisher(CacheEvents(endpoint="tcp://127.0.0.1:*"))
    taken = first._out.getsockopt_string(zmq.LAST_ENDPOINT)
    with pytest.raises(ConfigError, match="cannot publish cache events") as caught:
        CacheEventPublisher(CacheEvents(endpoint=taken))
    assert caught.value.field == "kv_events_config"
    first.close()
    for wrong in ({"publisher": "kafka"}, {"endpoints": "tcp://*:1"}, {"hwm": "many"}):
        with pytest.raises(ConfigError, match="kv_events_config"):
            CacheConfig(kv_events_config=wrong)
    assert CacheConfig().events is None
    assert CacheConfig(kv_events_config={"enable_kv_cache_events": False}).events is None
    assert CacheConfig(kv_events_config={"publisher": "null"}).events is None
    given = CacheConfig(kv_events_config={"enable_kv_cache_events": True, "publisher": "zmq", "topic": "a"}).events
    assert given == CacheEvents(topic="a")
    # Nobody else's machine is told by default.
    assert CacheEvents().endpoint.startswith("tcp://127.0.0.1:")
