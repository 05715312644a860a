"""Attention in Triton: one kernel for decodes, chunks and mixed batches, over pages, latents or the step's own tokens.

A program takes a few queries of one row, all query heads that share a key head (or a tile of them), and one of S splits of
the keys that these queries see; the last to come to its end adds up the splits. Where rows share a span of tokens, a launch
before takes the queries of many rows together and leaves splits of its own. What a program works on follows from its number
and from tensors on the device alone, so a captured launch stays right when rows, lengths and tables change.

Shapes: T tokens, R rows, H query heads, K key/value heads, G = H / K, D head size, S splits, M query rows of a program
(queries times heads), N keys of a tile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.ops.paged_attention import Scoring, Span
from octavo.ops.paged_attention.tiling import (
    LARGE_PROGRAMS,
    LEAST_KEYS,
    PROGRAMS,
    Launch,
    launches,
    span_launch,
    tiling,
)
from octavo.ops.paged_attention.triton_pieces import add_parts, add_sinks, fold_tiles, queries_of, split_of
from octavo.ops.triton_target import precision_of, shared_bytes

# Programs whose splits are added up.
_MOST_ARRIVALS = 2**16


@triton.jit(
    do_not_specialize=["window", "num_tokens", "num_rows", "num_parts", "first_part", "table_row"],
    do_not_specialize_on_alignment=["table_ptr"],
)
def _attend(
    q_ptr, keys_ptr, values_ptr, table_ptr, starts_ptr, lengths_ptr, slopes_ptr, sinks_ptr, skips_ptr, out_ptr, parts_ptr,
    lses_ptr, arrivals_ptr, scale, softcap, window, num_tokens, num_rows, num_parts, first_part, q_token, q_head, page_stride,
    head_stride, offset_stride, table_row, table_column, CAUSAL: tl.constexpr, BY: tl.constexpr, SKIP_ONES: tl.constexpr,
    SPLIT: tl.constexpr, LEAST: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, QUERIES: tl.constexpr,
    SIZE: tl.constexpr, REST: tl.constexpr, M: tl.constexpr, D: tl.constexpr, DR: tl.constexpr, N: tl.constexpr,
    BLOCK: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_SLOPES: tl.constexpr, HAS_SINKS: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SPAN: tl.constexpr, MERGED: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    HEAD_TILES: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    place, split = tl.program_id(0), tl.program_id(2)
    key_head, first_head = tl.program_id(1) // HEAD_TILES, tl.program_id(1) % HEAD_TILES * HEADS
    if BY == "block":
        # Later blocks of a row see more: they go first.
        place = tl.num_programs(0) - 1 - place
    row, first, stop, length, query = queries_of(
        place, starts_ptr, lengths_ptr, num_tokens, num_rows, BY, QUERIES, BLOCK
    )
    if query >= stop:
        return
    if SKIP_ONES:
        if (row < num_rows) & (stop == first + 1):
            return
    members = tl.arange(0, M)
    queries, heads = query + members // HEADS, first_head + members % HEADS
    here = (queries < stop) & (members < QUERIES * HEADS) & (heads < GROUP)
    asked, owners = here, queries
    heads += key_head * GROUP
    if BY == "span":
        queries = tl.load(starts_ptr + owners, mask=here, other=0)
        asked &= tl.load(skips_ptr + owners, mask=here, other=0) > 0
        asked &= tl.load(starts_ptr + owners + 1, mask=here, other=0) == queries + 1
        if tl.sum(asked.to(tl.int32), 0) == 0:
            length *= 0
    elif HAS_SPAN:
        # The row begins behind the span.
        skip = tl.load(skips_ptr + row)
        length -= skip
        table_ptr += skip // BLOCK * table_column
    # Which keys: those of the first query's window up to the last query. The first `shared` of them are seen by every query.
    begin, end, shared = 0, length, length
    positions = tl.where(asked, length - 1, -1)
    if CAUSAL:
        cached = length - (stop - first) - first
        positions = tl.where(here, cached + queries, -1)
        end = tl.where(row < num_rows, cached + tl.minimum(query + QUERIES, stop), 0)
        shared = cached + query + 1
    if HAS_WINDOW:
        begin = tl.maximum(shared - window, 0)
    low, high = begin // N, tl.cdiv(end, N)
    num_splits = tl.num_programs(2)
    if SPLIT:
        low, high, num_splits = split_of(low, high, split, num_splits, LEAST)
        if BY != "span":
            if split >= num_splits:
                return
    features = tl.arange(0, D)
    outs = here[:, None] & (features < SIZE)[None, :]
    q_at = queries[:, None].to(tl.int64) * q_token + heads[:, None] * q_head + features[None, :]
    q = tl.load(q_ptr + q_at, mask=outs, other=0.0)
    q_rest = q
    if REST > 0:
        more = tl.arange(0, DR)
        rest_at = queries[:, None].to(tl.int64) * q_token + heads[:, None] * q_head + SIZE + more[None, :]
        q_rest = tl.load(q_ptr + rest_at, mask=here[:, None] & (more < REST)[None, :], other=0.0)
    slopes = positions.to(tl.float32)
    if HAS_SLOPES:
        slopes = tl.load(slopes_ptr + heads, mask=here, other=0.0).to(tl.float32)
    keys_ptr += key_head.to(tl.int64) * head_stride
    values_ptr += key_head.to(tl.int64) * head_stride
    if BLOCK > 0:
        table_ptr += row.to(tl.int64) * table_row
    else:
        # The step's own tokens: a page holds one of them.
        keys_ptr += first.to(tl.int64) * page_stride
        values_ptr += first.to(tl.int64) * page_stride
    sums, total = tl.zeros([M, D], tl.float32), tl.zeros([M], tl.float32)
    largest = tl.full([M], float("-inf"), tl.float32)
    # Where every query sees every key of a tile, nothing is masked. One query alone has no time to lose between loops.
    plain, ragged = low, low
    if HAS_WINDOW and QUERIES > 1:
        plain = tl.minimum(tl.maximum(low, tl.cdiv(tl.maximum(end - window, 0), N)), high)
        sums, total, largest = fold_tiles(
            sums, total, largest, q, q_rest, keys_ptr, values_ptr, table_ptr, positions, slopes, scale, softcap, window,
            low, plain, begin, end, page_stride, offset_stride, table_column,
            SIZE, REST, D, N, BLOCK, HAS_SOFTCAP, HAS_SLOPES, HAS_WINDOW, True, PRECISION,
        )  # fmt: skip
    if QUERIES > 1:
        ragged = tl.maximum(tl.minimum(shared // N, high), plain)
        sums, total, largest = fold_tiles(
            sums, total, largest, q, q_rest, keys_ptr, values_ptr, table_ptr, positions, slopes, scale, softcap, window,
            plain, ragged, begin, end, page_stride, offset_stride, table_column,
            SIZE, REST, D, N, BLOCK, HAS_SOFTCAP, HAS_SLOPES, HAS_WINDOW, False, PRECISION,
        )  # fmt: skip
    sums, total, largest = fold_tiles(
        sums, total, largest, q, q_rest, keys_ptr, values_ptr, table_ptr, positions, slopes, scale, softcap, window,
        ragged, high, begin, end, page_stride, offset_stride, table_column,
        SIZE, REST, D, N, BLOCK, HAS_SOFTCAP, HAS_SLOPES, HAS_WINDOW, True, PRECISION,
    )  # fmt: skip
    num_heads = tl.num_programs(1) // HEAD_TILES * GROUP
    if SPLIT:
        if BY == "row":
            owners = row + tl.zeros([M], tl.int32)
        at = (owners.to(tl.int64) * num_heads + heads) * num_parts + first_part + split
        tl.store(lses_ptr + at, tl.where(asked, largest + tl.log2(total), float("-inf")), mask=here)
        means = sums / tl.where(total > 0.0, total, 1.0)[:, None]
        tl.store(parts_ptr + at[:, None] * SIZE + features[None, :], means, mask=outs & asked[:, None])
        if BY == "span":
            return
        # Everything is written before the arrival is counted; whoever arrives last begins the count anew.
        tl.debug_barrier()
        arrival_ptr = arrivals_ptr + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        if tl.atomic_add(arrival_ptr, 1, sem="acq_rel") != num_splits - 1:
            return
        tl.atomic_xchg(arrival_ptr, 0, sem="relaxed")
        if MERGED < M:
            # Of one query, only the heads that there are.
            members = tl.arange(0, MERGED)
            queries, heads = query + members // HEADS, first_head + members % HEADS
            here = (queries < stop) & (heads < GROUP)
            heads += key_head * GROUP
            outs = here[:, None] & (features < SIZE)[None, :]
        owners = row + tl.zeros([MERGED], tl.int32) if BY == "row" else queries
        at = (owners.to(tl.int64) * num_heads + heads) * num_parts
        sums, total, largest = add_parts(
            parts_ptr, lses_ptr, at, here, first_part + num_splits, SIZE, MERGED, D, CHUNK
        )  # fmt: skip
    if HAS_SINKS:
        sums, total = add_sinks(sums, total, largest, sinks_ptr + heads, here)
    sums /= tl.where(total > 0.0, total, 1.0)[:, None]
    out_at = (queries[:, None].to(tl.int64) * num_heads + heads[:, None]) * SIZE + features[None, :]
    tl.store(out_ptr + out_at, sums.to(out_ptr.dtype.element_ty), mask=outs)


def paged_attention(
    q: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    table: Tensor,
    query_starts: Tensor,
    lengths: Tensor,
    scoring: Scoring,
    span: Span | None = None,
) -> Tensor:
    """See `PagedAttention`."""
    if scoring.window is not None or scoring.slopes is not None:
        span = None
    return attend(q, key_pages, value_pages, table, query_starts, lengths, scoring, span=span)


@functools.cache
def _arrivals(device: torch.device) -> Tensor:
    """Return numbers of arrivals, which are zero between launches."""
    return torch.zeros(_MOST_ARRIVALS, dtype=torch.int32, device=device)


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor | None,
    query_starts: Tensor,
    lengths: Tensor | None,
    scoring: Scoring,
    *,
    causal: bool = True,
    span: Span | None = None,
    chunks: Callable[[Tensor, bool], None] | None = None,
) -> Tensor:
    """Launch the kernels; returns [T, H, features of values]. keys, values: strided views [P, K, B, features].

    Keys that have more features than values hold these as their front. Without a table, pages are the step's tokens, and
    lengths those of the rows. chunks: writes what a launch by blocks of queries would, if these are not split, into its first
    argument; the second says whether rows of one query are left to another launch.
    """
    (num_tokens, num_heads, _), size, rest = q.shape, values.shape[3], keys.shape[3] - values.shape[3]
    num_rows, group, block = len(query_starts) - 1, num_heads // keys.shape[1], 0 if table is None else keys.shape[2]
    assert q.stride(2) == keys.stride(3) == values.stride(3) == 1 and keys.stride() == values.stride()
    out = torch.empty((num_tokens, num_heads, size), dtype=q.dtype, device=q.device)
    if num_tokens == 0:
        return out
    D, DR = max(16, triton.next_power_of_2(size)), max(16, triton.next_power_of_2(max(rest, 1)))
    features, shared = D + DR if rest else 2 * D, shared_bytes()
    widest = tiling(128, features, q.itemsize, shared, 1).rows
    heads = min(triton.next_power_of_2(group), 64, widest)
    head_programs = keys.shape[1] * triton.cdiv(group, heads)
    capacity = num_tokens if table is None else table.shape[1] * block
    room = LARGE_PROGRAMS if features * q.itemsize > 1024 else PROGRAMS
    cut = launches(num_tokens, num_rows, width=widest // heads, heads=head_programs, capacity=capacity, room=room)
    if cut[0].by == "block" or (cut[0].by == "token" and num_tokens != num_rows):
        span = None
    first = span_launch(num_rows, width=widest // heads, heads=head_programs, capacity=capacity) if span else None
    # Of a split launch: its own parts lie behind those of the span.
    num_parts = (first.splits if first else 0) + max(launch.splits for launch in cut)
    split, parts, lses = num_parts > 1, out, out
    if split:
        places = num_rows if cut[0].by == "row" else num_tokens
        parts = torch.empty((places, num_heads, num_parts, size), dtype=torch.float32, device=q.device)
        lses = torch.empty((places, num_heads, num_parts), dtype=torch.float32, device=q.device)

    def go(launch: Launch, first_part: int) -> None:
        programs = launch.num_places * head_programs * launch.splits
        tiles = tiling(launch.queries * heads, features, q.itemsize, shared, programs, split=launch.splits > 1)
        merged = min(tiles.rows, launch.queries * heads)
        of_span, spanned = launch.by == "span", span if launch.by != "block" else None
        pages = span.table if span and of_span else table
        assert launch.num_places * head_programs <= _MOST_ARRIVALS or launch.splits == 1
        _attend[(launch.num_places, head_programs, launch.splits)](
            q,
            keys,
            values,
            pages,
            query_starts,
            span.length if span and of_span else lengths,
            scoring.slopes,
            scoring.sinks,
            spanned.skips if spanned else None,
            out,
            parts,
            lses,
            _arrivals(q.device),
            scoring.scale,
            scoring.softcap or 0.0,
            scoring.window or 0,
            num_tokens,
            num_rows,
            num_parts,
            first_part,
            q.stride(0),
            q.stride(1),
            keys.stride(0),
            keys.stride(1),
            keys.stride(2),
            0 if pages is None or of_span else pages.stride(0),
            0 if pages is None else pages.stride(-1),
            CAUSAL=causal and not of_span,
            BY=launch.by,
            SKIP_ONES=launch.skip_ones,
            SPLIT=launch.splits > 1 or spanned is not None,
            LEAST=LEAST_KEYS // tiles.keys,
            GROUP=group,
            HEADS=heads,
            QUERIES=launch.queries,
            SIZE=size,
            REST=rest,
            M=tiles.rows,
            D=D,
            DR=DR,
            N=tiles.keys,
            BLOCK=block,
            HAS_SOFTCAP=scoring.softcap is not None,
            HAS_SLOPES=scoring.slopes is not None,
            HAS_SINKS=scoring.sinks is not None,
            HAS_WINDOW=scoring.window is not None,
            HAS_SPAN=spanned is not None,
            MERGED=merged,
            CHUNK=max(1, min(16, 64 * 32 * tiles.warps // (merged * D))),
            PRECISION=precision_of(q.dtype),
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )

    if first:
        go(first, 0)
    for launch in cut:
        if chunks is not None and launch.by == "block" and launch.splits == 1:
            chunks(out, launch.skip_ones)
        else:
            go(launch, first.splits if first else 0)
    return out
