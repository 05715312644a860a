"""How large the pool may be."""

from __future__ import annotations

import pytest

from octavo.base.errors import ConfigError
from octavo.engine.kvcache.geometry import solve
from octavo.protocol.kept import KeptLayer, KeptTokens, Plane
from octavo.worker.memory import check_pool, pool_bytes
from tests.worker.toy import toy_spec

GIB = 2**30
PLANES = (Plane(name="key", heads=4, dim=64, dtype="float32", itemsize=4),)
LAYERS = tuple(KeptLayer(layer=i, kept=KeptTokens(planes=PLANES), blocks=(16, 32)) for i in range(6))


def size(kind="cpu", free=10 * GIB, total=16 * GIB, others=None, **changes):
    return pool_bytes(toy_spec(**changes), LAYERS, kind=kind, free=free, total=total, others=others or {})


def test_an_exact_size_is_taken_as_it_is():
    assert size(kv_cache_memory=12345678)[0] == 12345678


def test_more_than_is_free_is_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"at most the 10,240 MiB .* not 11,264 MiB") as caught:
        size(kv_cache_memory=11 * GIB)
    assert caught.value.field == "kv_cache_memory"


def test_a_host_gives_half_of_what_is_free():
    got, decisions = size(max_model_len=8192, max_num_seqs=1024, memory_utilization=0.8)
    assert got == int(10 * GIB * 0.5 * 0.8)
    assert "4,096 MiB" in decisions[0]
    assert "10,240 MiB free" in decisions[0]


def test_a_host_gives_no_more_than_all_slots_can_use():
    got, _ = size(max_model_len=1000, max_num_seqs=3)
    shape = solve(LAYERS)
    assert got == 3 * shape.pages_of(1000) * shape.page_bytes
    assert got >= 3 * 1000 * 6 * PLANES[0].bytes_per_token


def test_an_accelerator_keeps_its_share_back():
    assert size(kind="cuda", free=10 * GIB, total=16 * GIB, memory_utilization=0.75)[0] == 6 * GIB
    with pytest.raises(ConfigError, match="no memory is left"):
        size(kind="cuda", free=GIB, total=16 * GIB, memory_utilization=0.75)


def test_pages_that_do_not_fit_are_refused_with_the_arithmetic():
    check_pool(4, GIB, free=6 * GIB, others={"slots": GIB, "graphs": GIB})
    with pytest.raises(ConfigError, match=r"at most 3, not 4, which take 4,096 MiB .*5,632 MiB free, less 2,048 MiB"):
        check_pool(4, GIB, free=11 * GIB // 2, others={"graphs": 2 * GIB})


def test_what_others_will_take_is_no_page():
    others = {"workspace": GIB, "graphs": GIB // 2}
    got, decisions = size(kind="cuda", others=others, memory_utilization=0.75)
    assert got == int((10 - 1.5 - 4) * GIB)
    assert "10,240 MiB free, less 1,024 MiB for workspace, less 512 MiB for graphs, less 0.25 of 16,384" in decisions[0]
    with pytest.raises(ConfigError, match=r"8,704 MiB .*less 512 MiB for graphs.* not 9,216 MiB"):
        size(kind="cuda", others=others, kv_cache_memory=9 * GIB)
