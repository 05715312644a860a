"""Attention in Triton: one kernel for decodes, chunks and mixed batches, over pages, latents or the step's own tokens.

A program takes a few queries of one row, all query heads that share a key head (or a tile of them), and one of S splits of
the keys that these queries see; a second kernel adds up the splits. What a program works on follows from its number and from
tensors on the device alone, so a captured launch stays right when rows, lengths and tables change.

Shapes: T tokens, R rows, H query heads, K key/value heads, G = H / K, D head size, S splits, M query rows of a program
(queries times heads), N keys of a tile.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.ops.paged_attention import Scoring
from octavo.ops.paged_attention.tiling import LARGE_PROGRAMS, LEAST_KEYS, MOST_SPLITS, PROGRAMS, launches, tiling
from octavo.ops.triton_target import precision_of, shared_bytes


@triton.jit
def row_of(starts_ptr, place, num_rows, QUERIES: tl.constexpr, BLOCKS: tl.constexpr):
    """Return the row of a token, or of a block of queries if BLOCKS; num_rows if it has none.

    Every row begins a block of its own: block `starts[r] // QUERIES + r` is its first.
    """
    low, high = num_rows * 0, num_rows
    while low < high:
        middle = (low + high + 1) // 2
        begins = tl.load(starts_ptr + middle)
        if BLOCKS:
            begins = begins // QUERIES + middle
        if begins <= place:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def _weigh(
    scores,
    places,
    positions,
    slopes,
    largest,
    scale,
    softcap,
    window,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Return (weights, largest score, factor for what was summed before), all to base 2. scores: [M, N]."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    if HAS_SOFTCAP:
        small = tl.exp2(tl.abs(scores) * (scale / softcap * (-2.0 * LOG2_E)))
        capped = (1.0 - small) / (1.0 + small) * (softcap * LOG2_E)
        scores = tl.where(scores * scale < 0.0, -capped, capped)
    else:
        scores = scores * (scale * LOG2_E)
    if HAS_SLOPES:
        scores -= slopes[:, None] * LOG2_E * (positions[:, None] - places[None, :]).to(tl.float32)
    if MASKED:
        seen = places[None, :] <= positions[:, None]
        if HAS_WINDOW:
            seen &= places[None, :] > positions[:, None] - window
        scores = tl.where(seen, scores, float("-inf"))
    highest = tl.maximum(largest, tl.max(scores, 1))
    # A row that has seen nothing yet: minus infinity less itself is no number.
    base = tl.where(highest == float("-inf"), 0.0, highest)
    return tl.exp2(scores - base[:, None]), highest, tl.exp2(largest - base)


@triton.jit
def _queries_of(place, starts_ptr, num_tokens, num_rows, BY: tl.constexpr, QUERIES: tl.constexpr):
    """Return (row, its first token, the token behind its last, the program's first query); num_rows for tokens of no row.

    A program whose first query lies behind the row's last has nothing to do.
    """
    row = place
    if BY == "block":
        row = row_of(starts_ptr, place, num_rows, QUERIES, True)
    if BY == "token":
        # Mostly every row has one token.
        known = tl.minimum(place, num_rows - 1)
        if (tl.load(starts_ptr + known) != place) | (tl.load(starts_ptr + known + 1) != place + 1):
            row = row_of(starts_ptr, place, num_rows, 1, False)
    first, stop = tl.load(starts_ptr + row), num_tokens
    if row < num_rows:
        stop = tl.load(starts_ptr + row + 1)
    query = first
    if BY == "token":
        query = place
    if BY == "block":
        query = first + (place - first // QUERIES - row) * QUERIES
    if BY == "row":
        query = tl.where(stop == first + 1, first, stop)
    return row, first, stop, query


@triton.jit
def _pages_of(places, table_ptr, table_column, begin, end, BLOCK: tl.constexpr):
    """Look up pages. BLOCK 0: there is no table, a page is a token."""
    if BLOCK == 0:
        pages = places
    else:
        pages = tl.load(table_ptr + places // BLOCK * table_column, mask=(places >= begin) & (places < end), other=0)
    return pages


@triton.jit
def _tiles(
    sums,
    total,
    largest,
    q,
    q_rest,
    keys_ptr,
    values_ptr,
    table_ptr,
    positions,
    slopes,
    scale,
    softcap,
    window,
    low,
    high,
    begin,
    end,
    page_stride,
    offset_stride,
    table_column,
    SIZE: tl.constexpr,
    REST: tl.constexpr,
    D: tl.constexpr,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Fold the tiles low..high into the sums [M, D], the totals [M] and the largest scores [M]. MASKED: not all see all."""
    features = tl.arange(0, D)
    # Pages are looked up one tile ahead, so that keys and values never wait for a table.
    places = low * N + tl.arange(0, N)
    pages = _pages_of(places, table_ptr, table_column, begin, end, BLOCK)
    for _ in range(low, high):
        at = pages.to(tl.int64) * page_stride
        if BLOCK > 0:
            at += places % BLOCK * offset_stride
        here = ((places >= begin) & (places < end))[:, None]
        if SIZE < D:
            here &= (features < SIZE)[None, :]
        if MASKED or SIZE < D:
            keys = tl.load(keys_ptr + at[:, None] + features[None, :], mask=here, other=0.0)
        else:
            keys = tl.load(keys_ptr + at[:, None] + features[None, :])
        if REST > 0:
            # A latent serves as key, with the rest behind it, and as value.
            more = SIZE + tl.arange(0, q_rest.shape[1])
            there = ((places >= begin) & (places < end))[:, None] & (more < SIZE + REST)[None, :]
            rest = tl.load(keys_ptr + at[:, None] + more[None, :], mask=there, other=0.0)
            values = keys
        elif MASKED or SIZE < D:
            values = tl.load(values_ptr + at[:, None] + features[None, :], mask=here, other=0.0)
        else:
            values = tl.load(values_ptr + at[:, None] + features[None, :])
        coming = places + N
        pages = _pages_of(coming, table_ptr, table_column, begin, end, BLOCK)
        scores = tl.dot(q, tl.trans(keys), input_precision=PRECISION)
        if REST > 0:
            scores = tl.dot(q_rest, tl.trans(rest), scores, input_precision=PRECISION)
        weights, largest, factor = _weigh(
            scores, places, positions, slopes, largest, scale, softcap, window,
            HAS_SOFTCAP, HAS_SLOPES, HAS_WINDOW, MASKED,
        )  # fmt: skip
        total = total * factor + tl.sum(weights, 1)
        sums = tl.dot(weights.to(values.dtype), values, sums * factor[:, None], input_precision=PRECISION)
        places = coming
    return sums, total, largest


@triton.jit(
    do_not_specialize=["window", "num_tokens", "num_rows", "table_row"], do_not_specialize_on_alignment=["table_ptr"]
)
def _attend(
    q_ptr,
    keys_ptr,
    values_ptr,
    table_ptr,
    starts_ptr,
    lengths_ptr,
    slopes_ptr,
    sinks_ptr,
    out_ptr,
    parts_ptr,
    lses_ptr,
    scale,
    softcap,
    window,
    num_tokens,
    num_rows,
    q_token,
    q_head,
    page_stride,
    head_stride,
    offset_stride,
    table_row,
    table_column,
    CAUSAL: tl.constexpr,
    BY: tl.constexpr,
    SKIP_ONES: tl.constexpr,
    SPLIT: tl.constexpr,
    LEAST: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    QUERIES: tl.constexpr,
    SIZE: tl.constexpr,
    REST: tl.constexpr,
    M: tl.constexpr,
    D: tl.constexpr,
    DR: tl.constexpr,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
):
    LOG2_E: tl.constexpr = 1.4426950408889634
    HEAD_TILES: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    place, split = tl.program_id(0), tl.program_id(2)
    key_head, first_head = tl.program_id(1) // HEAD_TILES, tl.program_id(1) % HEAD_TILES * HEADS
    if BY == "block":
        # Later blocks of a row see more: they go first.
        place = tl.num_programs(0) - 1 - place
    row, first, stop, query = _queries_of(place, starts_ptr, num_tokens, num_rows, BY, QUERIES)
    if query >= stop:
        return
    if SKIP_ONES:
        if (row < num_rows) & (stop == first + 1):
            return
    length = stop * 0
    if row < num_rows:
        length = stop - first
        if BLOCK > 0:
            length = tl.load(lengths_ptr + row)
    members = tl.arange(0, M)
    queries, heads = query + members // HEADS, first_head + members % HEADS
    here = (queries < stop) & (members < QUERIES * HEADS) & (heads < GROUP)
    heads += key_head * GROUP
    # Which keys: those of the first query's window up to the last query. The first `shared` of them are seen by every query.
    begin, end, shared = 0, length, length
    positions = tl.where(here, length - 1, -1)
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
        share = tl.maximum(tl.cdiv(high - low, num_splits), LEAST)
        low = low + split * share
        high = tl.minimum(low + share, high)
    features = tl.arange(0, D)
    outs = here[:, None] & (features < SIZE)[None, :]
    q_at = queries[:, None].to(tl.int64) * q_token + heads[:, None] * q_head + features[None, :]
    q = tl.load(q_ptr + q_at, mask=outs, other=0.0)
    q_rest = q
    if REST > 0:
        more = SIZE + tl.arange(0, DR)
        rest_at = queries[:, None].to(tl.int64) * q_token + heads[:, None] * q_head + more[None, :]
        q_rest = tl.load(q_ptr + rest_at, mask=here[:, None] & (more < SIZE + REST)[None, :], other=0.0)
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
        sums, total, largest = _tiles(
            sums, total, largest, q, q_rest, keys_ptr, values_ptr, table_ptr, positions, slopes, scale, softcap, window,
            low, plain, begin, end, page_stride, offset_stride, table_column,
            SIZE, REST, D, N, BLOCK, HAS_SOFTCAP, HAS_SLOPES, HAS_WINDOW, True, PRECISION,
        )  # fmt: skip
    if QUERIES > 1:
        ragged = tl.maximum(tl.minimum(shared // N, high), plain)
        sums, total, largest = _tiles(
            sums, total, largest, q, q_rest, keys_ptr, values_ptr, table_ptr, positions, slopes, scale, softcap, window,
            plain, ragged, begin, end, page_stride, offset_stride, table_column,
            SIZE, REST, D, N, BLOCK, HAS_SOFTCAP, HAS_SLOPES, HAS_WINDOW, False, PRECISION,
        )  # fmt: skip
    sums, total, largest = _tiles(
        sums, total, largest, q, q_rest, keys_ptr, values_ptr, table_ptr, positions, slopes, scale, softcap, window,
        ragged, high, begin, end, page_stride, offset_stride, table_column,
        SIZE, REST, D, N, BLOCK, HAS_SOFTCAP, HAS_SLOPES, HAS_WINDOW, True, PRECISION,
    )  # fmt: skip
    num_heads = tl.num_programs(1) // HEAD_TILES * GROUP
    if not SPLIT:
        if HAS_SINKS:
            sinks = tl.load(sinks_ptr + heads, mask=here, other=0.0).to(tl.float32) * LOG2_E
            highest = tl.maximum(largest, sinks)
            sums *= tl.exp2(largest - highest)[:, None]
            total = total * tl.exp2(largest - highest) + tl.exp2(sinks - highest)
        sums /= tl.where(total > 0.0, total, 1.0)[:, None]
        out_at = (queries[:, None].to(tl.int64) * num_heads + heads[:, None]) * SIZE + features[None, :]
        tl.store(out_ptr + out_at, sums.to(out_ptr.dtype.element_ty), mask=outs)
    else:
        owners = queries
        if BY == "row":
            owners = row + tl.zeros([M], tl.int32)
        at = (owners.to(tl.int64) * num_heads + heads) * num_splits + split
        tl.store(lses_ptr + at, largest + tl.log2(total), mask=here)
        if low < high:
            sums /= tl.where(total > 0.0, total, 1.0)[:, None]
            tl.store(parts_ptr + at[:, None] * SIZE + features[None, :], sums, mask=outs)


@triton.jit(do_not_specialize=["num_splits"])
def _add_up(
    parts_ptr,
    lses_ptr,
    starts_ptr,
    sinks_ptr,
    out_ptr,
    num_splits,
    BY_ROW: tl.constexpr,
    S: tl.constexpr,
    SIZE: tl.constexpr,
    D: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Add up one head's splits, weighted by their log-sum-exps (to base 2)."""
    place, head, num_heads = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    token = place
    if BY_ROW:
        token = tl.load(starts_ptr + place).to(tl.int64)
        if tl.load(starts_ptr + place + 1) != token + 1:
            return
    splits, features = tl.arange(0, S), tl.arange(0, D)
    at = (place * num_heads + head) * num_splits + splits
    lses = tl.load(lses_ptr + at, mask=splits < num_splits, other=float("-inf"))
    largest = tl.max(lses, 0)
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + head).to(tl.float32) * 1.4426950408889634
        largest = tl.maximum(largest, sink)
    weights = tl.exp2(lses - tl.where(largest == float("-inf"), 0.0, largest))
    total = tl.sum(weights, 0)
    if HAS_SINKS:
        total += tl.exp2(sink - largest)
    # Splits without keys wrote nothing.
    wrote = (lses > float("-inf"))[:, None] & (features < SIZE)[None, :]
    parts = tl.load(parts_ptr + at[:, None] * SIZE + features[None, :], mask=wrote, other=0.0)
    sums = tl.sum(parts * weights[:, None], 0) / tl.where(total > 0.0, total, 1.0)
    out_at = (token * num_heads + head) * SIZE + features
    tl.store(out_ptr + out_at, sums.to(out_ptr.dtype.element_ty), mask=features < SIZE)


def paged_attention(
    q: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    table: Tensor,
    query_starts: Tensor,
    lengths: Tensor,
    scoring: Scoring,
) -> Tensor:
    """See `PagedAttention`."""
    return attend(q, key_pages, value_pages, table, query_starts, lengths, scoring)


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
) -> Tensor:
    """Launch the kernels; returns [T, H, features of values]. keys, values: strided views [P, K, B, features].

    Keys that have more features than values hold these as their front. Without a table, pages are the step's tokens, and
    lengths those of the rows.
    """
    (num_tokens, num_heads, _), size, rest = q.shape, values.shape[3], keys.shape[3] - values.shape[3]
    num_rows, group, block = len(query_starts) - 1, num_heads // keys.shape[1], 0 if table is None else keys.shape[2]
    assert q.stride(2) == keys.stride(3) == values.stride(3) == 1 and keys.stride() == values.stride()
    out = torch.empty((num_tokens, num_heads, size), dtype=q.dtype, device=q.device)
    if num_tokens == 0:
        return out
    D, DR = max(16, triton.next_power_of_2(size)), max(16, triton.next_power_of_2(max(rest, 1)))
    features, shared = D + DR if rest else 2 * D, shared_bytes()
    widest = tiling(128, features, q.itemsize, shared).rows
    heads = min(triton.next_power_of_2(group), 64, widest)
    head_programs = keys.shape[1] * triton.cdiv(group, heads)
    capacity = num_tokens if table is None else table.shape[1] * block
    room = LARGE_PROGRAMS if features * q.itemsize > 1024 else PROGRAMS
    cut = launches(num_tokens, num_rows, width=widest // heads, heads=head_programs, capacity=capacity, room=room)
    for launch in cut:
        crowded = launch.num_places * head_programs * launch.splits > PROGRAMS
        tiles = tiling(launch.queries * heads, features, q.itemsize, shared, crowded=crowded)
        by_row, splits = launch.by == "row", launch.splits
        places = num_rows if by_row else num_tokens
        parts = lses = out
        if splits > 1:
            parts = torch.empty((places, num_heads, splits, size), dtype=torch.float32, device=q.device)
            lses = torch.empty((places, num_heads, splits), dtype=torch.float32, device=q.device)
        _attend[(launch.num_places, head_programs, splits)](
            q,
            keys,
            values,
            table,
            query_starts,
            lengths,
            scoring.slopes,
            scoring.sinks,
            out,
            parts,
            lses,
            scoring.scale,
            scoring.softcap or 0.0,
            scoring.window or 0,
            num_tokens,
            num_rows,
            q.stride(0),
            q.stride(1),
            keys.stride(0),
            keys.stride(1),
            keys.stride(2),
            0 if table is None else table.stride(0),
            0 if table is None else table.stride(1),
            CAUSAL=causal,
            BY=launch.by,
            SKIP_ONES=launch.skip_ones,
            SPLIT=splits > 1,
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
            PRECISION=precision_of(q.dtype),
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )
        if splits > 1:
            _add_up[(places, num_heads)](
                parts,
                lses,
                query_starts,
                scoring.sinks,
                out,
                splits,
                BY_ROW=by_row,
                S=8 if splits <= 8 else MOST_SPLITS,
                SIZE=size,
                D=D,
                HAS_SINKS=scoring.sinks is not None,
                num_warps=4,
            )
    return out
