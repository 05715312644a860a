"""One page table fits every pipeline stage; each stage cuts its own pages by it, and the poorest decides how many there are."""

from __future__ import annotations

from octavo.engine.executor import WorkerReport
from octavo.engine.kvcache.geometry import solve
from octavo.protocol.kept import KeptLayer, KeptTokens, Plane

PLANES = tuple(Plane(name=name, heads=2, dim=8, dtype="float32", itemsize=4) for name in ("key", "value"))
FULL, SLIDING = KeptTokens(planes=PLANES), KeptTokens(planes=PLANES, window=32)
BLOCK_BYTES = 16 * FULL.bytes_per_token


def layers(*kinds: KeptTokens) -> tuple[KeptLayer, ...]:
    return tuple(KeptLayer(layer=i, kept=kept, blocks=(16,)) for i, kept in enumerate(kinds))


def test_layers_of_one_kind_take_pages_in_proportion():
    geometry = solve(layers(*[FULL] * 6))
    parts = [geometry.part(range(first, last)) for first, last in ((0, 2), (2, 5), (5, 6))]
    assert [part.page_bytes for part in parts] == [2 * BLOCK_BYTES, 3 * BLOCK_BYTES, BLOCK_BYTES]
    assert [part.groups[0].layers for part in parts] == [(0, 1), (2, 3, 4), (5,)]
    assert geometry.part(range(6)) is geometry


def test_the_table_is_the_same_where_a_stage_lacks_a_kind():
    geometry = solve(layers(FULL, FULL, FULL, SLIDING, SLIDING, SLIDING))
    for held in ({0, 1, 2}, {3, 4, 5}, {0, 3}):
        part = geometry.part(held)
        assert [(g.kept, g.block, g.pages_per_block) for g in part.groups] == [
            (g.kept, g.block, g.pages_per_block) for g in geometry.groups
        ]
        assert {layer for group in part.groups for layer in group.layers} == held
        for group in part.groups:
            assert len(group.layers) <= group.bundle * group.pages_per_block
            assert group.bundle * group.layer_bytes <= part.page_bytes


def test_the_poorest_rank_decides_how_many_pages_there_are():
    kept = layers(*[FULL] * 4)
    geometry = solve(kept)
    rich = WorkerReport(layers=kept[:3], free_bytes=3 * BLOCK_BYTES * 10 + 5)
    poor = WorkerReport(layers=kept[3:], free_bytes=BLOCK_BYTES * 7)
    assert WorkerReport(layers=kept, free_bytes=0, ranks=(rich, poor)).num_pages(geometry) == 7
    assert WorkerReport(layers=kept, free_bytes=0, ranks=(rich, rich)).num_pages(geometry) == 10
    assert WorkerReport(layers=kept, free_bytes=9 * geometry.page_bytes).num_pages(geometry) == 9
