"""The processor's paged attention over several spans, chunks and tiles, on each instruction set that this machine has."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from octavo.base.native import LEVELS, NativeLibrary, library
from octavo.ops.paged_attention import Scoring
from tests.kernels.binding import NAN, TOLERANCE, kernel
from tests.kernels.test_paged_attention import Batch

_LIBRARY = library()
pytestmark = pytest.mark.skipif(not isinstance(_LIBRARY, NativeLibrary), reason="there is no library of kernels here")
# Decodes of one to three spans, few queries that are cut too, a chunk of several tiles, one behind others, one that just fits.
ROWS = ((600, 1), (257, 1), (520, 2), (300, 200), (64, 64), (256, 1), (333, 41), (1, 1))
Name = tuple[str, str]


def _cases() -> Iterator[Name]:
    """Yield (candidate at a level, dtype) where the level has a kernel of its own."""
    if isinstance(_LIBRARY, NativeLibrary):
        levels = list(LEVELS[platform.machine()])
        for level in ("scalar", "avx2", "avx512", "bf16", "neon"):
            if level in levels and levels.index(level) <= levels.index(_LIBRARY.level):
                yield from ((f"cpu at {level}", dtype) for dtype in ("float32", "bfloat16"))


def _run(name: Name, batch: Batch, scoring: Scoring, rows: Sequence[int]) -> list[Tensor]:
    """Return the answers to some rows of a batch, computed beside each other."""
    starts = batch.starts.tolist()
    counts = torch.tensor([0, *(starts[row + 1] - starts[row] for row in rows)])
    q = torch.cat([batch.q[starts[row] : starts[row + 1]] for row in rows])
    found = kernel("paged_attention", *name)(
        torch.cat((q, torch.full((3, *q.shape[1:]), NAN, dtype=q.dtype))),
        batch.key_pages,
        batch.value_pages,
        batch.table[list(rows)],
        counts.cumsum(0, dtype=torch.int32),
        batch.lengths[list(rows)],
        scoring,
    )
    assert (found[len(q) :] == 0).all()
    return list(found[: len(q)].split(counts[1:].tolist()))


@pytest.mark.parametrize("name", [*_cases()], ids=" ".join)
@pytest.mark.parametrize(
    ("heads", "window", "softcap"),
    [
        ((9, 3, 64), None, None),
        ((4, 1, 40), 100, None),
        ((2, 2, 128), 301, 5.0),
        ((20, 1, 18), None, 5.0),
        ((3, 1, 7), 65, None),
    ],
    ids=str,
)
def test_spans_chunks_and_tiles(
    name: Name, heads: tuple[int, int, int], window: int | None, softcap: float | None
) -> None:
    generator = torch.Generator().manual_seed(7)
    sinks = torch.randn(heads[0], generator=generator) if softcap else None
    slopes = 0.02 * torch.rand(heads[0], generator=generator) if heads[2] == 18 else None
    scoring = Scoring(scale=heads[2] ** -0.5, window=window, softcap=softcap, sinks=sinks, slopes=slopes)
    batch = Batch(ROWS, heads, name[1], window)
    found, expected = torch.cat(_run(name, batch, scoring, range(len(ROWS)))).double(), batch.expected(scoring)
    bound = TOLERANCE[name[1]]
    torch.testing.assert_close(found, expected, rtol=bound, atol=bound * float(expected.abs().max()))


@pytest.mark.parametrize("name", [*_cases()], ids=" ".join)
@pytest.mark.parametrize("window", [None, 90])
def test_a_row_is_the_same_whoever_is_beside_it_and_however_many_threads_there_are(
    name: Name, window: int | None
) -> None:
    assert isinstance(_LIBRARY, NativeLibrary)
    scoring = Scoring(scale=0.125, window=window)
    batch = Batch(ROWS, (9, 3, 64), name[1], window)
    together = _run(name, batch, scoring, range(len(ROWS)))
    _LIBRARY.resize(3)
    try:
        again = _run(name, batch, scoring, range(len(ROWS) - 1, -1, -1))
    finally:
        _LIBRARY.resize(1)
    for row, (one, other) in enumerate(zip(together, reversed(again), strict=True)):
        (alone,) = _run(name, batch, scoring, [row])
        assert torch.equal(one, other)
        assert torch.equal(one, alone)


@pytest.mark.parametrize("name", [*_cases()], ids=" ".join)
@pytest.mark.parametrize("window", [None, 90])
def test_a_prompt_is_the_same_however_it_is_cut_into_chunks(name: Name, window: int | None) -> None:
    scoring = Scoring(scale=0.125, window=window)
    batch = Batch(((300, 200),), (9, 3, 64), name[1], window)
    (whole,) = _run(name, batch, scoring, [0])
    first = 0
    for count in (61, 64, 3, 72):
        part = kernel("paged_attention", *name)(
            batch.q[first : first + count],
            batch.key_pages,
            batch.value_pages,
            batch.table,
            torch.tensor([0, count], dtype=torch.int32),
            torch.tensor([100 + first + count], dtype=torch.int32),
            scoring,
        )
        assert torch.equal(part, whole[first : first + count])
        first += count
    assert first == 200
