"""Paged attention against float64: mixed batches over scattered pages, NaN wherever a row has nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from octavo.ops.paged_attention import Scoring, Span, tiling
from octavo.ops.paged_attention import reference as torch_reference
from tests.kernels import formulas
from tests.kernels.binding import NAN, TOLERANCE, candidates, cases, kernel

HEADS = [(1, 1, 8), (3, 1, 64), (3, 3, 80), (9, 3, 64)]
# (tokens after the step, of them queries)
DECODES = ((1, 1), (7, 1), (16, 1), (17, 1), (63, 1), (130, 1))
CHUNKS = ((7, 7), (63, 63), (130, 130), (130, 7), (64, 63), (33, 2))
MIXED = ((130, 1), (63, 7), (1, 1), (130, 63), (16, 1), (17, 17))


class Batch:
    """Rows of random keys and values, laid into a strided pool whose rest is NaN."""

    def __init__(
        self,
        rows: Sequence[tuple[int, int]],
        heads: tuple[int, int, int],
        dtype: str,
        window: int | None,
        block: int = 16,
    ) -> None:
        num_heads, num_kv_heads, dim = heads
        torch_dtype, generator = getattr(torch, dtype), torch.Generator().manual_seed(len(rows) + dim)
        blocks = [-(-length // block) for length, _ in rows]
        num_pages, size = sum(blocks) + 3, num_kv_heads * block * dim
        pool = torch.full((num_pages, 5 * size), NAN, dtype=torch_dtype)
        planes = [pool[:, i * size : (i + 1) * size].unflatten(1, (num_kv_heads, block, dim)) for i in (1, 2)]
        self.key_pages, self.value_pages = planes
        free = random.Random(dim).sample(range(num_pages), num_pages)
        # Every third column, as a layer whose bundle is the second of three pages a block sees its table.
        table = torch.full((len(rows), 3 * (max(blocks) + 1)), 10**6, dtype=torch.int32)
        self.table = table[:, 1::3]
        self.table.fill_(-1)
        self.rows: list[tuple[Tensor, Tensor, Tensor]] = []
        for row, (length, num_queries) in enumerate(rows):
            q = 2 * torch.randn((num_queries, num_heads, dim), generator=generator).to(torch_dtype)
            key, value = torch.randn((2, length, num_kv_heads, dim), generator=generator).to(torch_dtype)
            visible = 0 if window is None else max(0, length - num_queries + 1 - window)
            for position in range(visible, length):
                if self.table[row, position // block] < 0:
                    self.table[row, position // block] = free.pop()
                page = int(self.table[row, position // block])
                self.key_pages[page, :, position % block] = key[position]
                self.value_pages[page, :, position % block] = value[position]
            self.rows.append((q, key, value))
        counts = [num_queries for _, num_queries in rows]
        self.starts = torch.tensor([0, *counts]).cumsum(0, dtype=torch.int32)
        self.lengths = torch.tensor([length for length, _ in rows], dtype=torch.int32)
        # Queries are a strided part of a wider product.
        self.q = torch.cat([q for q, _, _ in self.rows]).repeat(1, 2, 1)[:, :num_heads]

    def run(self, name: str, dtype: str, scoring: Scoring) -> Tensor:
        """Return the kernel's answer."""
        paged_attention = kernel("paged_attention", name, dtype)
        return paged_attention(self.q, self.key_pages, self.value_pages, self.table, self.starts, self.lengths, scoring)

    def expected(self, scoring: Scoring) -> Tensor:
        """Return float64 [T, H, D]."""
        return torch.cat([formulas.attention(*row, scoring) for row in self.rows])


def _close(found: Tensor, expected: Tensor, dtype: str) -> None:
    assert found.dtype == getattr(torch, dtype)
    bound = TOLERANCE[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=bound, atol=bound * float(expected.abs().max()))


@pytest.mark.parametrize(("name", "dtype"), cases("paged_attention"))
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rows", [DECODES, CHUNKS, MIXED], ids=["decodes", "chunks", "mixed"])
def test_full_attention(name: str, dtype: str, heads: tuple[int, int, int], rows: Sequence[tuple[int, int]]) -> None:
    scoring = Scoring(scale=heads[2] ** -0.5)
    batch = Batch(rows, heads, dtype, None)
    _close(batch.run(name, dtype, scoring), batch.expected(scoring), dtype)


@pytest.mark.parametrize(("name", "dtype"), cases("paged_attention"))
@pytest.mark.parametrize("heads", [(6, 2, 96), (10, 2, 128), (2, 1, 256), (71, 1, 64)], ids=str)
def test_head_sizes_and_shares(name: str, dtype: str, heads: tuple[int, int, int]) -> None:
    scoring = Scoring(scale=heads[2] ** -0.5)
    batch = Batch(((130, 1), (70, 40), (1, 1), (200, 7)), heads, dtype, None)
    _close(batch.run(name, dtype, scoring), batch.expected(scoring), dtype)


@pytest.mark.parametrize(
    ("name", "dtype"), [case for case in cases("paged_attention") if "cuda" in str(case.values[0])]
)
@pytest.mark.parametrize("heads", [(8, 2, 128), (3, 1, 128), (40, 8, 128), (9, 3, 64)], ids=str)
@pytest.mark.parametrize("rows", [((700, 300),), ((1000, 333), (40, 40), (130, 1), (257, 256))], ids=["one", "many"])
def test_long_chunks(name: str, dtype: str, heads: tuple[int, int, int], rows: Sequence[tuple[int, int]]) -> None:
    scoring = Scoring(scale=heads[2] ** -0.5)
    batch = Batch(rows, heads, dtype, None)
    expected = batch.expected(scoring)
    batch.q = torch.cat((batch.q, torch.full((30, *batch.q.shape[1:]), NAN, dtype=batch.q.dtype)))
    found = batch.run(name, dtype, scoring)
    _close(found[: len(expected)], expected, dtype)
    assert (found[len(expected) :] == 0).all()


@pytest.mark.parametrize(
    ("name", "dtype"), [case for case in cases("paged_attention") if "hopper" in str(case.values[0])]
)
@pytest.mark.parametrize("heads", [(6, 2, 64), (17, 1, 64), (8, 8, 128), (10, 2, 128), (4, 1, 256)], ids=str)
@pytest.mark.parametrize(
    ("window", "softcap", "block", "has_sinks"),
    [
        (None, None, 16, True),
        (1, None, 32, False),
        (100, None, 64, True),
        (300, 5.0, 128, False),
        (None, 5.0, 16, True),
    ],
)
def test_chunks_on_hopper(
    name: str,
    dtype: str,
    heads: tuple[int, int, int],
    window: int | None,
    softcap: float | None,
    block: int,
    has_sinks: bool,
) -> None:
    generator = torch.Generator().manual_seed(7)
    sinks = 3 * torch.randn(heads[0], generator=generator).to(getattr(torch, dtype)) if has_sinks else None
    scoring = Scoring(scale=0.1, window=window, softcap=softcap, sinks=sinks)
    batch = Batch(((150, 41), (1, 1), (300, 130), (64, 64), (129, 129), (70, 1)), heads, dtype, window, block)
    expected = batch.expected(scoring)
    batch.q = torch.cat((batch.q, torch.full((9, *batch.q.shape[1:]), NAN, dtype=batch.q.dtype)))
    found = batch.run(name, dtype, scoring)
    _close(found[: len(expected)], expected, dtype)
    assert (found[len(expected) :] == 0).all()


@pytest.mark.parametrize("name", candidates("paged_attention"))
@pytest.mark.parametrize("rows", [DECODES, CHUNKS, MIXED], ids=["decodes", "chunks", "mixed"])
@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 40, 129, 500])
def test_windows(name: str, rows: Sequence[tuple[int, int]], window: int) -> None:
    scoring = Scoring(scale=0.2, window=window)
    batch = Batch(rows, (3, 1, 8), "float32", window)
    _close(batch.run(name, "float32", scoring), batch.expected(scoring), "float32")


@pytest.mark.parametrize("name", candidates("paged_attention"))
@pytest.mark.parametrize("window", [None, 20])
def test_softcap(name: str, window: int | None) -> None:
    scoring = Scoring(scale=0.5, window=window, softcap=3.0)
    batch = Batch(MIXED, (9, 3, 64), "float32", window)
    found, expected = batch.run(name, "float32", scoring), batch.expected(scoring)
    _close(found, expected, "float32")
    uncapped = batch.expected(Scoring(scale=0.5, window=window))
    assert (uncapped - expected).abs().max() > 0.1, "the cap has to matter here"


@pytest.mark.parametrize("name", candidates("paged_attention"))
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("heads", [(9, 3, 64), (6, 6, 8)], ids=str)
@pytest.mark.parametrize("terms", ["slopes", "sinks", "both"])
def test_slopes_and_sinks(name: str, window: int | None, heads: tuple[int, int, int], terms: str) -> None:
    generator = torch.Generator().manual_seed(7)
    slopes = None if terms == "sinks" else 0.2 * torch.rand(heads[0], generator=generator)
    sinks = None if terms == "slopes" else 3 * torch.randn(heads[0], generator=generator)
    batch = Batch(MIXED, heads, "float32", window)
    for softcap in (None, 3.0):
        scoring = Scoring(scale=0.2, window=window, softcap=softcap, slopes=slopes, sinks=sinks)
        _close(batch.run(name, "float32", scoring), batch.expected(scoring), "float32")
    plain = batch.expected(Scoring(scale=0.2, window=window))
    assert (plain - batch.expected(Scoring(scale=0.2, window=window, slopes=slopes, sinks=sinks))).abs().max() > 0.1


@pytest.mark.parametrize("name", candidates("paged_attention"))
def test_a_sink_takes_part_of_a_single_key_and_does_not_overflow(name: str) -> None:
    batch = Batch(((1, 1), (2, 2)), (2, 1, 8), "float32", None)
    for sink, share in ((500.0, 0.0), (-500.0, 1.0)):
        scoring = Scoring(scale=0.2, sinks=torch.full((2,), sink))
        value = batch.rows[0][2].expand(1, 2, 8)
        torch.testing.assert_close(batch.run(name, "float32", scoring)[:1], share * value)


@pytest.mark.parametrize("name", candidates("paged_attention"))
@pytest.mark.parametrize("block", [8, 32, 128])
def test_other_blocks(name: str, block: int) -> None:
    scoring = Scoring(scale=0.125, window=50)
    batch = Batch(MIXED, (9, 3, 64), "float32", 50, block)
    _close(batch.run(name, "float32", scoring), batch.expected(scoring), "float32")


@pytest.mark.parametrize("window", [None, 100])
def test_long_prompts_are_cut_into_tiles(monkeypatch: pytest.MonkeyPatch, window: int | None) -> None:
    monkeypatch.setattr(torch_reference, "_TILE_SCORES", 130 * 3 * 10)
    scoring = Scoring(scale=0.2, window=window)
    batch = Batch(CHUNKS, (3, 1, 8), "float32", window)
    _close(batch.run("torch", "float32", scoring), batch.expected(scoring), "float32")


@pytest.mark.parametrize("name", [name for name in candidates("paged_attention") if "triton" in str(name)])
def test_decodes_beside_chunks_have_a_launch_of_their_own(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(tiling, "_FEW_TOKENS", 16)
    scoring = Scoring(scale=0.2, window=70)
    batch = Batch(((130, 1), (63, 7), (1, 1), (90, 30)), (3, 1, 8), "float32", 70)
    expected = batch.expected(scoring)
    batch.q = torch.cat((batch.q, torch.full((9, 3, 8), NAN)))
    found = batch.run(name, "float32", scoring)
    _close(found[: len(expected)], expected, "float32")
    assert torch.equal(found[len(expected) :], torch.zeros(9, 3, 8))


@pytest.mark.parametrize(("name", "dtype"), cases("paged_attention"))
@pytest.mark.parametrize("heads", [(3, 1, 8), (8, 2, 64)], ids=str)
@pytest.mark.parametrize("tokens", [0, 16, 48, 160])
@pytest.mark.parametrize("terms", ["plain", "sinks and softcap", "window", "chunks"])
def test_spans(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: str, heads: tuple[int, int, int], tokens: int, terms: str
) -> None:
    """Three of five rows begin with the span. Of those with one query, the own pages there hold NaN: the span's are read."""
    monkeypatch.setattr(tiling, "_FEW_TOKENS", 8)
    queries = 9 if terms == "chunks" else 1
    sinks = torch.randn(heads[0], generator=torch.Generator().manual_seed(3))
    scoring = {
        "plain": Scoring(scale=0.2),
        "sinks and softcap": Scoring(scale=0.2, softcap=3.0, sinks=sinks),
        "window": Scoring(scale=0.2, window=1000),
        "chunks": Scoring(scale=0.2),
    }[terms]
    batch = Batch([(200, 1), (161, 1), (5, 1), (170, queries), (220, queries)], heads, dtype, None)
    members, blocks = [0, 1, 3], tokens // 16
    for row in members[1:]:
        for kept in (1, 2):
            batch.rows[row][kept][:tokens] = batch.rows[0][kept][:tokens]
    shared = batch.table[0, :blocks].clone()
    expected = batch.expected(scoring)
    batch.table[members, :blocks] = shared
    if terms != "window":
        batch.table[members[: 3 if queries == 1 else 2], :blocks] = -1
    skips = torch.zeros(5, dtype=torch.int32)
    skips[members] = tokens
    table = torch.full((20,), -1, dtype=torch.int32)
    table[:blocks] = shared
    span = Span(table=table, length=torch.tensor([tokens], dtype=torch.int32), skips=skips)
    paged_attention = kernel("paged_attention", name, dtype)
    found = paged_attention(
        batch.q, batch.key_pages, batch.value_pages, batch.table, batch.starts, batch.lengths, scoring, span
    )
    _close(found, expected, dtype)


@pytest.mark.parametrize("name", candidates("paged_attention"))
def test_rows_without_queries_and_tokens_without_a_row(name: str) -> None:
    scoring = Scoring(scale=0.2)
    batch = Batch(((40, 1), (9, 9)), (3, 1, 8), "float32", None)
    expected = batch.expected(scoring)
    batch.q = torch.cat((batch.q, torch.full((3, 3, 8), NAN)))
    batch.starts = torch.tensor([0, 1, 1, 10], dtype=torch.int32)
    batch.lengths = torch.tensor([40, 0, 9], dtype=torch.int32)
    batch.table = batch.table[[0, 0, 1]]
    found = batch.run(name, "float32", scoring)
    _close(found[:10], expected, "float32")
    assert torch.equal(found[10:], torch.zeros(3, 3, 8))


@pytest.mark.parametrize(("num_tokens", "num_rows"), [(300, 3), (40, 6), (1024, 1024), (8192, 256), (257, 256)])
def test_launches_have_a_program_for_every_block(num_tokens: int, num_rows: int) -> None:
    cut = tiling.launches(num_tokens, num_rows, width=32, heads=8, capacity=4096)
    blocks = [launch for launch in cut if launch.by == "block"]
    assert [launch.by for launch in cut] in (["token"], ["block"], ["row", "block"])
    for seed in range(20 if blocks else 0):
        # Some rows are empty, and some tokens are of no row.
        draws = random.Random(seed).choices(range(-num_rows // 3, num_rows), k=num_tokens)
        counts = [draws.count(row) for row in range(num_rows)]
        first = 0
        for row, count in enumerate([*counts, num_tokens - sum(counts)]):
            last = first // blocks[0].queries + row + max(0, -(-count // blocks[0].queries) - 1)
            assert last < blocks[0].num_places
            first += count


def test_work_is_split_until_the_device_is_full_and_no_further() -> None:
    splits = {
        rows: tiling.launches(rows, rows, width=32, heads=8, capacity=8192)[0].splits
        for rows in (1, 8, 16, 20, 40, 41, 512)
    }
    assert splits == {1: 40, 8: 5, 16: 1, 20: 2, 40: 1, 41: 1, 512: 1}
    (short,) = tiling.launches(1, 1, width=32, heads=8, capacity=300)
    assert short.splits == 2


class _Allocations(TorchDispatchMode):
    """Remembers how many bytes each new tensor took; views of older ones take none."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in self.known:
                self.sizes.append(tensor.untyped_storage().nbytes())
        return result


def test_a_decode_row_does_not_copy_what_it_kept() -> None:
    batch = Batch(((2048, 1),), (2, 2, 64), "float32", None)
    with _Allocations(batch.key_pages, batch.q, batch.table) as allocations:
        batch.run("torch", "float32", Scoring(scale=0.125))
    # One head's keys take 512 KiB; the scores of both heads take 16 KiB.
    assert max(allocations.sizes) == 2 * 2048 * 4
