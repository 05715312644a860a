"""Where each layer's planes lie in the pool, and copies between pages."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.base.errors import UnsupportedError
from octavo.device.cpu import CpuDevice
from octavo.engine.kvcache.geometry import Geometry, GroupGeometry
from octavo.ops.page_write.reference import page_copy
from octavo.protocol.arrays import rows32
from octavo.protocol.kept import KeptTokens, Plane
from octavo.protocol.step import DEVICE, HOST
from octavo.worker.pages import PagePool
from tests.fake_device import FakeDevice
from tests.worker.toy import LAYER_BYTES, geometry


def test_planes_lie_where_the_geometry_says():
    planes = (
        Plane(name="key", heads=2, dim=4, dtype="bfloat16", itemsize=2),
        Plane(name="scale", heads=2, dim=1, dtype="float32", itemsize=4),
    )
    kept = KeptTokens(planes=planes)
    group = GroupGeometry(layers=(1, 0, 2), kept=kept, block=16, bundle=2, pages_per_block=2)
    pool = PagePool(Geometry(page_bytes=2 * group.layer_bytes + 64, groups=(group,)), 3, CpuDevice(), page_copy)
    assert [pool.layers[layer].column for layer in range(3)] == [0, 0, 1]
    assert {layer.group for layer in pool.layers.values()} == {0}
    pool.memory.zero_()
    # Layer 0 is second in page: its keys begin after all of layer 1.
    pool.layers[0].planes["key"][2, 1, 5, 3] = 1.0
    pool.layers[0].planes["scale"][0, 1, 15, 0] = 1.0
    touched = torch.nonzero(pool.memory.view(torch.int16)).tolist()
    layer, key = group.layer_bytes // 2, 2 * 16 * 4
    assert touched == [[0, layer + key + (16 + 15) * 2 + 1], [2, layer + (16 + 5) * 4 + 3]]


@pytest.mark.parametrize("bundle", [1, 2])
def test_layers_of_a_group_never_overlap(bundle):
    shape = geometry(bundle)
    pool = PagePool(shape, 5, FakeDevice(), page_copy)
    # The two full layers share pages; fill page by page what a block takes and look for the other layer's values.
    for number, layer in enumerate((0, 2)):
        for index, plane in enumerate(("key", "value")):
            pool.layers[layer].planes[plane][number if bundle == 1 else 0] = 10.0 * layer + index
    values = pool.memory[: 2 // bundle].view(torch.float64).unique(return_counts=True)
    each = LAYER_BYTES // 8 // 2
    assert values[0].tolist() == [0.0, 1.0, 20.0, 21.0]
    assert values[1].tolist() == [each] * 4


def filled(num_pages=8):
    pool = PagePool(geometry(1), num_pages, CpuDevice(), page_copy)
    pool.memory[:] = torch.arange(num_pages + 1, dtype=torch.uint8)[:, None]
    return pool


def contents(pool):
    assert (pool.memory == pool.memory[:, :1]).all()
    return pool.memory[:, 0].tolist()


@pytest.mark.parametrize("seed", range(5))
def test_copies_are_done_in_order(seed):
    pages = np.random.default_rng(seed).integers(0, 8, (30, 2)).tolist()
    pool, expected = filled(), list(range(9))
    pool.copy(rows32([(DEVICE, a, DEVICE, b) for a, b in pages], 4))
    for source, target in pages:
        expected[target] = expected[source]
    assert contents(pool) == expected


def test_a_chain_and_a_swap():
    pool = filled()
    chain = [
        (DEVICE, 0, DEVICE, 1),
        (DEVICE, 1, DEVICE, 2),
        (DEVICE, 3, DEVICE, 7),
        (DEVICE, 4, DEVICE, 3),
        (DEVICE, 7, DEVICE, 4),
    ]
    pool.copy(rows32(chain, 4))
    assert contents(pool) == [0, 0, 0, 4, 3, 5, 6, 3, 8]


def test_no_tier_but_the_device_yet():
    pool = filled()
    with pytest.raises(UnsupportedError, match="device only"):
        pool.copy(rows32([(DEVICE, 0, HOST, 1)], 4))
    with pytest.raises(AssertionError, match="outside the pool"):
        pool.copy(rows32([(DEVICE, 0, DEVICE, 8)], 4))
    assert contents(pool) == list(range(9))
