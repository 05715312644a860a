"""The composition root, as far as it needs no model."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from types import SimpleNamespace

import msgspec
import pytest

from octavo import launch
from octavo.base.errors import CheckpointError, ConfigError
from octavo.base.facts import ModelFacts, RopeFacts
from octavo.config.engine import EngineConfig
from octavo.engine.kvcache.geometry import solve
from octavo.engine.transport.cache_events import CacheEventPublisher
from octavo.protocol.kept import KeptLayer, KeptTokens, Plane

PLANES = tuple(Plane(name=name, heads=1, dim=4, dtype="float32", itemsize=4) for name in ("keys", "values"))
GEOMETRY = solve([KeptLayer(layer=0, kept=KeptTokens(planes=PLANES), blocks=(16,))])


def demo_facts(**changes: int) -> ModelFacts:
    known = {
        "vocab_size": 9,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_kv_heads": 4,
        "head_dim": 2,
        "max_position": 64,
    }
    return ModelFacts(architecture="x", dtype="float32", norm_eps=1e-5, rope=RopeFacts(dim=2), **(known | changes))


def fit(length: int, pool: int, **options: object) -> tuple[int, str]:
    return launch.fit_context(EngineConfig.from_options(options), length, GEOMETRY, pool)


def test_a_context_that_fits_is_left_alone():
    assert fit(160, 10)[0] == 160
    assert "2.0 sequences of full length" in fit(160, 20)[1]


def test_the_models_own_context_is_lowered_to_what_fits():
    length, why = fit(161, 10)
    assert length == 160
    assert "lowered to 160" in why
    assert fit(100_000, 1)[0] == 16


def test_a_context_that_was_asked_for_must_fit():
    with pytest.raises(
        ConfigError, match=r"161 tokens take 11 pages of 512 bytes, the pool has 10.*at most 160"
    ) as caught:
        fit(161, 10, max_model_len=161)
    assert caught.value.field == "max_model_len"
    assert "kv_cache_memory of at least 5632" in str(caught.value)
    with pytest.raises(ConfigError, match="not one sequence fits") as caught:
        fit(161, 0)
    assert "set max_model_len" not in caught.value.message, "there is no length that would help"


def test_an_exact_number_of_pages_is_taken_as_it_is():
    assert fit(161, 10, max_model_len=161, num_pages=10)[0] == 161


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_ranks_are_refused_before_a_device_is_looked_for(kind):
    config = EngineConfig.from_options({"tensor_parallel_size": 3, "device": kind})
    with pytest.raises(ConfigError, match="must divide the model's 4 attention heads, 3 does not") as caught:
        launch._open_executor(config, SimpleNamespace(facts=demo_facts(num_layers=4, num_heads=4)))
    assert caught.value.field == "tensor_parallel_size"


def test_what_an_engine_is_made_of_is_not_looked_at_again():
    ended = list[int]()
    shutdown = launch._spare_from_collection([lambda: ended.append(1), lambda: ended.append(2)])
    assert gc.get_freeze_count() > 1000
    shutdown()
    assert ended == [1, 2]
    assert gc.get_freeze_count() == 0


def test_configurations_survive_the_way_to_the_engine_process():
    config = EngineConfig.from_options(
        {"model": "x", "max_model_len": 7, "num_pages": 3, "scheduling_policy": "priority"}
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=EngineConfig) == config


def test_a_model_that_is_not_there_stops_the_process_it_started():
    async def run() -> None:
        config = EngineConfig.from_options({"model": "/nowhere/at-all"})
        process = launch.start_engine(config)
        with pytest.raises(CheckpointError, match="nowhere"):
            await launch.connect(config, process)
        assert process.ending() is not None
        assert not os.path.exists(process.home)

    asyncio.run(run())


def test_an_engine_that_does_not_load_gives_back_where_events_were_told(monkeypatch):
    ended = []
    executor = SimpleNamespace(shutdown=lambda: ended.append(True))
    monkeypatch.setattr(launch, "_open_executor", lambda *_: (executor, None))
    events = {"endpoint": f"inproc://{id(ended)}"}
    opened = []

    class Publisher(CacheEventPublisher):
        def __init__(self, config):
            super().__init__(config)
            opened.append(self)

    def fail(*_):
        raise ConfigError("no room")

    monkeypatch.setattr(launch, "CacheEventPublisher", Publisher)
    monkeypatch.setattr(launch, "_lay_out", fail)
    config = EngineConfig.from_options({"model": "m", "kv_events_config": events})
    with pytest.raises(ConfigError, match="no room"):
        launch.build_engine(config, None)
    assert ended == [True]
    assert all(one._context.closed for one in opened)


def test_a_front_does_not_import_torch():
    code = "import sys, octavo.llm, octavo.launch; sys.exit(any(m in sys.modules for m in ('torch', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_chat_template_that_no_tokenizer_could_use_is_refused():
    with pytest.raises(ConfigError, match="skip_tokenizer_init") as caught:
        EngineConfig.from_options({"chat_template": "{% if %}", "skip_tokenizer_init": True})
    assert caught.value.field == "chat_template"
