"""What programs of attention are made of: whose queries they take, tiles of keys, and the sum of parts.

Shapes: M query rows of a program (queries times heads), N keys of a tile, D head size.
"""

from __future__ import annotations

import triton
import triton.language as tl


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
def weigh(
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
def bounds_of(row, starts_ptr, lengths_ptr, num_tokens, num_rows, BLOCK: tl.constexpr):
    """Return a row's first token, the token behind its last, and how many tokens it has to see."""
    first, stop, length = tl.load(starts_ptr + row), num_tokens, num_rows * 0
    if row < num_rows:
        stop = tl.load(starts_ptr + row + 1)
        length = stop - first if BLOCK == 0 else tl.load(lengths_ptr + row)
    return first, stop, length


@triton.jit
def queries_of(
    place, starts_ptr, lengths_ptr, num_tokens, num_rows, BY: tl.constexpr, QUERIES: tl.constexpr, BLOCK: tl.constexpr
):
    """Return a program's row, its bounds, and the program's first query; row num_rows for tokens of no row.

    A program whose first query lies behind the row's last has nothing to do.
    """
    row = place
    if BY == "span":
        # Of all rows together: its queries are rows.
        return place * 0, place * 0, num_rows, tl.load(lengths_ptr), place * QUERIES
    if BY == "token":
        # Mostly every row has one token: then nothing is read twice, one after the other.
        row = tl.minimum(place, num_rows - 1)
    if BY == "block":
        row = row_of(starts_ptr, place, num_rows, QUERIES, True)
    first, stop, length = bounds_of(row, starts_ptr, lengths_ptr, num_tokens, num_rows, BLOCK)
    query = first
    if BY == "token":
        query = place
        if (first != place) | (stop != place + 1):
            row = row_of(starts_ptr, place, num_rows, 1, False)
            first, stop, length = bounds_of(row, starts_ptr, lengths_ptr, num_tokens, num_rows, BLOCK)
    if BY == "block":
        query = first + (place - first // QUERIES - row) * QUERIES
    if BY == "row":
        query = tl.where(stop == first + 1, first, stop)
    return row, first, stop, length, query


@triton.jit
def pages_of(places, table_ptr, table_column, begin, end, BLOCK: tl.constexpr):
    """Look up pages. BLOCK 0: there is no table, a page is a token."""
    if BLOCK == 0:
        pages = places
    else:
        pages = tl.load(table_ptr + places // BLOCK * table_column, mask=(places >= begin) & (places < end), other=0)
    return pages


@triton.jit
def fold_tiles(
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
    pages = pages_of(places, table_ptr, table_column, begin, end, BLOCK)
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
        pages = pages_of(coming, table_ptr, table_column, begin, end, BLOCK)
        scores = tl.dot(q, tl.trans(keys), input_precision=PRECISION)
        if REST > 0:
            scores = tl.dot(q_rest, tl.trans(rest), scores, input_precision=PRECISION)
        weights, largest, factor = weigh(
            scores, places, positions, slopes, largest, scale, softcap, window,
            HAS_SOFTCAP, HAS_SLOPES, HAS_WINDOW, MASKED,
        )  # fmt: skip
        total = total * factor + tl.sum(weights, 1)
        sums = tl.dot(weights.to(values.dtype), values, sums * factor[:, None], input_precision=PRECISION)
        places = coming
    return sums, total, largest


@triton.jit
def split_of(low, high, split, num_splits, LEAST: tl.constexpr):
    """Return a split's share of the tiles low..high, at least LEAST, and how many splits have one.

    One always has: if there are no keys somebody must say so.
    """
    share = tl.maximum(tl.cdiv(high - low, num_splits), LEAST)
    num_splits = tl.minimum(tl.maximum(tl.cdiv(high - low, share), 1), num_splits)
    low = low + split * share
    return low, tl.minimum(low + share, high), num_splits


@triton.jit
def add_sinks(sums, total, largest, sinks_ptrs, here):
    """Add a score without a value to every row; returns sums and totals."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    sinks = tl.load(sinks_ptrs, mask=here, other=0.0).to(tl.float32) * LOG2_E
    highest = tl.maximum(largest, sinks)
    factor = tl.exp2(largest - highest)
    return sums * factor[:, None], total * factor + tl.exp2(sinks - highest)


@triton.jit
def add_parts(
    parts_ptr, lses_ptr, firsts, here, num_parts, SIZE: tl.constexpr, M: tl.constexpr, D: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """Return what `fold_tiles` would of all keys, from parts: a mean, and a log-sum-exp to base 2.

    firsts: [M], each row's first part. CHUNK: parts that are loaded at once.
    """
    features = tl.arange(0, D)
    sums, total = tl.zeros([M, D], tl.float32), tl.zeros([M], tl.float32)
    largest = tl.full([M], float("-inf"), tl.float32)
    for chunk in range(0, num_parts, CHUNK):
        for within in tl.static_range(CHUNK):
            at = firsts + chunk + within
            there = here & (at < firsts + num_parts)
            # Others wrote it: not from this multiprocessor's cache.
            lse = tl.load(lses_ptr + at, mask=there, other=float("-inf"), cache_modifier=".cg")
            inside = there[:, None] & (features < SIZE)[None, :]
            means_at = at[:, None] * SIZE + features[None, :]
            mean = tl.load(parts_ptr + means_at, mask=inside, other=0.0, cache_modifier=".cg")
            mean = tl.where((lse > float("-inf"))[:, None], mean, 0.0)
            highest = tl.maximum(largest, lse)
            base = tl.where(highest == float("-inf"), 0.0, highest)
            sums = sums * tl.exp2(largest - base)[:, None] + mean * tl.exp2(lse - base)[:, None]
            total = total * tl.exp2(largest - base) + tl.exp2(lse - base)
            largest = highest
    return sums, total, largest
