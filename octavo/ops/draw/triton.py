"""Drawing in Triton: nothing is sorted, and nothing depends on what the host could read.

A token's key says how far its logit lies behind the row's largest, in 2**-25 temperatures: 30 bits, what is 32 temperatures
behind weighs nothing. The last key that top_k or top_p keeps is found ten bits at a time: tokens are counted and weighed into
1,024 bins by their next bits, which gives the bin in which the limit lies, and so on within that bin; first for top_k, then for
top_p among what that keeps. Where the limit lies among tokens less than 8 temperatures behind, all others are only added up.
Weights are whole numbers of 2**-44 of the likeliest's, so that sums are the same in any order.

Shapes: S rows, V vocabulary, P parts of it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.protocol.sampling import GREEDY_BELOW

_BINS, _TABLES, _NOTES = tl.constexpr(1024), tl.constexpr(5 * 2 * 1024), tl.constexpr(24)
# The first key that is no longer counted by itself at first, and that of what is dropped.
_TAIL, _NONE = tl.constexpr(2**28), tl.constexpr(2**30)
_GREEDY = tl.constexpr(GREEDY_BELOW)
_STEP, _FIRST, _SECOND = (
    tl.constexpr(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_BLOCK, _MOST_PARTS, _PROGRAMS = 1024, 64, 1024


@triton.jit
def _asked(slots_ptr, reals_ptr, wholes_ptr, reals_row, wholes_row, row):
    """Return (1 / temperature, top_p, the most temperatures behind by min_p, top_k, whether the likeliest is taken)."""
    slot = tl.load(slots_ptr + row)
    temperature = tl.load(reals_ptr + slot * reals_row)
    top_p, min_p = tl.load(reals_ptr + slot * reals_row + 1), tl.load(reals_ptr + slot * reals_row + 2)
    top_k = tl.load(wholes_ptr + slot * wholes_row)
    return 1.0 / temperature, top_p, -tl.log(min_p), top_k, (temperature < _GREEDY) | (top_k == 1)


@triton.jit
def _rank(x, peak, coldness, farthest):
    """Return how many temperatures logits are behind, float64, and their keys, int32. coldness: 1 / temperature."""
    behind = (peak - x.to(tl.float64)) * coldness
    behind = tl.where((behind < 32.0) & (behind <= farthest), behind, 32.0)
    return behind, (behind * 33554432.0).to(tl.int32)


@triton.jit
def _weigh(behind):
    """Return weights, int64; zero for what is dropped."""
    return tl.where(behind < 32.0, tl.exp(-behind) * 17592186044416.0 + 0.5, 0.0).to(tl.int64)


@triton.jit
def _settle(table_ptr, left, by_mass):
    """Find the bin in which `left` tokens, or so much weight, are reached: (bin, tokens before it, weight, in it both)."""
    bins = tl.arange(0, _BINS)
    counts, masses = tl.load(table_ptr + bins), tl.load(table_ptr + _BINS + bins)
    reached = tl.cumsum(tl.where(by_mass, masses, counts), 0)
    found = tl.minimum(tl.sum((reached < left).to(tl.int32), 0), _BINS - 1)
    count, mass = tl.sum(tl.where(bins < found, counts, 0), 0), tl.sum(tl.where(bins < found, masses, 0), 0)
    return found, count, mass, tl.load(table_ptr + found), tl.load(table_ptr + _BINS + found)


@triton.jit
def _note(notes_ptr, first, second, third):
    tl.store(notes_ptr, first.to(tl.int64))
    tl.store(notes_ptr + 1, second.to(tl.int64))
    tl.store(notes_ptr + 2, third.to(tl.int64))


@triton.jit
def _limit(tables_ptr, notes_ptr, top_k, top_p):
    """Return the last key that is kept, how many tokens with this key, and what one of them weighs."""
    key, kept, weight = tl.full([], _NONE, tl.int64), tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    if top_k > 0:
        key, kept, weight = tl.load(notes_ptr + 15), tl.load(notes_ptr + 16), tl.load(notes_ptr + 17)
    if top_p < 1.0:
        left = tl.load(notes_ptr + 13)
        found, _, mass, count_in, mass_in = _settle(tables_ptr + 4 * 2 * _BINS, left, True)
        last = tl.load(notes_ptr + 12) * _BINS + found
        one = tl.maximum(mass_in // tl.maximum(count_in, 1), 1)
        some = (left - mass + one - 1) // one
        if last < key:
            key, kept, weight = last, some, one
        elif last == key:
            kept = tl.minimum(kept, some)
    return key, kept, weight


@triton.jit(do_not_specialize=["level"], do_not_specialize_on_alignment=["slots_ptr"])
def _narrow(slots_ptr, reals_ptr, wholes_ptr, tables_ptr, reals_row, wholes_row, level):
    """Find the keys that `_count` is to count at a level, from the tables of those before it.

    Notes of a row, three numbers for each level: (bits of the key so far, tokens or weight left, weight before); for 5 what top_k
    keeps, for 6 what is kept: (last key, tokens with this key, weight of one); then the weight of the tail, and the first key
    to be counted and the one behind the last.
    """
    row = tl.program_id(0).to(tl.int64)
    _, top_p, _, top_k, greedy = _asked(slots_ptr, reals_ptr, wholes_ptr, reals_row, wholes_row, row)
    if greedy:
        return
    by_k, by_p = top_k > 0, top_p < 1.0
    tables_ptr += row * (_TABLES + _NOTES)
    notes_ptr = tables_ptr + _TABLES
    zero = tl.zeros([], tl.int64)
    prefix, left, before, source, low, high = zero, top_k, zero, level - 1, zero, zero
    if (level == 2) | (level == 4) | ((level == 3) & by_k):
        prefix, left = tl.load(notes_ptr + 3 * source), tl.load(notes_ptr + 3 * source + 1)
        before = tl.load(notes_ptr + 3 * source + 2)
    if (level == 3) | (level == 6):
        in_head = tl.arange(0, _BINS) < _TAIL >> 20
        head = tl.sum(tl.load(tables_ptr + _BINS + tl.arange(0, _BINS), mask=in_head, other=0), 0)
        num_head = tl.sum(tl.load(tables_ptr + tl.arange(0, _BINS), mask=in_head, other=0), 0)
        if (level == 3) & by_k:
            found, count, mass, count_in, mass_in = _settle(tables_ptr + 2 * 2 * _BINS, left, False)
            weight, left = mass_in // tl.maximum(count_in, 1), left - count
            before += mass + tl.minimum(left, count_in) * weight
            _note(notes_ptr + 15, prefix * _BINS + found, left, weight)
        else:
            before = head + tl.load(notes_ptr + 21)
        left = tl.maximum(tl.ceil(top_p * before.to(tl.float64)).to(tl.int64), 1)
        source, prefix, before = level - 3, zero, zero
        if (level == 6) & tl.where(by_k, num_head < top_k, by_p & (head < left)):
            low, high = zero + _TAIL, zero + _NONE
    if level == 5:
        last, kept, weight = _limit(tables_ptr, notes_ptr, top_k, top_p)
        high = last + 1
        _note(notes_ptr + 18, last, kept, weight)
    elif (level < 5) & tl.where(level < 3, by_k, by_p):
        found, count, mass, count_in, mass_in = _settle(tables_ptr + source * 2 * _BINS, left, level >= 3)
        prefix = prefix * _BINS + found
        left -= tl.where(level >= 3, mass, count)
        shift = tl.where((level == 1) | (level == 3), 20, 10)
        low, high = prefix << shift, (prefix + 1) << shift
        _note(notes_ptr + 3 * level, prefix, left, before + mass)
    tl.store(notes_ptr + 22, low)
    tl.store(notes_ptr + 23, high)


@triton.jit(do_not_specialize=["num_ids", "part_size", "level"], do_not_specialize_on_alignment=["slots_ptr"])
def _count(
    logits_ptr,
    peaks_ptr,
    slots_ptr,
    reals_ptr,
    wholes_ptr,
    tables_ptr,
    parts_ptr,
    num_ids,
    part_size,
    logits_row,
    reals_row,
    wholes_row,
    level,
    BLOCK: tl.constexpr,
):
    """Fill a row's table `level`: 0 all bins before the tail, 1 and 2 towards the limit of top_k, 3 and 4 to that of top_p.

    Level 5 adds up every part: the weight before the last key that is kept, and how many tokens have that key. Level 6, before
    1, fills the tail's bins of table 0 if a limit lies there.
    """
    row = tl.program_id(0).to(tl.int64)
    coldness, top_p, farthest, top_k, greedy = _asked(slots_ptr, reals_ptr, wholes_ptr, reals_row, wholes_row, row)
    tables_ptr += row * (_TABLES + _NOTES)
    notes_ptr = tables_ptr + _TABLES
    low, high = tl.load(notes_ptr + 22), tl.load(notes_ptr + 23)
    by_k, by_p = top_k > 0, top_p < 1.0
    if level == 0:
        high = tl.where(by_k | by_p, _TAIL, 0).to(tl.int64)
    if greedy | (low >= high):
        return
    tables_ptr += level % 6 * 2 * _BINS
    shift = tl.where(level % 6 == 0, 20, tl.where((level == 1) | (level == 3), 10, 0))
    counted, weighed = (level % 6 > 0) | by_k, (level % 6 > 0) | by_p
    peak = tl.load(peaks_ptr + row).to(tl.float64)
    masses, ties = tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int32)
    logits_ptr += row * logits_row
    first = tl.program_id(1) * part_size
    end = tl.minimum(first + part_size, num_ids)
    ids = first + tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + ids, mask=ids < end, other=float("-inf"))
    for _ in range(first, end, BLOCK):
        behind, keys = _rank(x, peak, coldness, farthest)
        # The next come while these are looked at.
        ids += BLOCK
        x = tl.load(logits_ptr + ids, mask=ids < end, other=float("-inf"))
        mine = (keys >= low) & (keys < high)
        weights = tl.zeros([BLOCK], tl.int64)
        if weighed & ((level == 0) | (tl.max(mine.to(tl.int32), 0) > 0)):
            weights = _weigh(behind)
        if level == 5:
            masses += tl.where(keys < high - 1, weights, 0)
            ties += (keys == high - 1).to(tl.int32)
        else:
            to = tables_ptr + ((keys >> shift) & (_BINS - 1))
            if counted:
                tl.atomic_add(to, tl.full([BLOCK], 1, tl.int64), mask=mine, sem="relaxed")
            if weighed:
                tl.atomic_add(to + _BINS, weights, mask=mine, sem="relaxed")
            masses += tl.where(keys >= high, weights, 0)
    if level == 5:
        parts_ptr += 2 * (row * tl.num_programs(1) + tl.program_id(1))
        tl.store(parts_ptr, tl.sum(masses, 0))
        tl.store(parts_ptr + 1, tl.sum(ties, 0).to(tl.int64))
    if level == 0:
        tl.atomic_add(notes_ptr + 21, tl.sum(masses, 0), sem="relaxed")


@triton.jit
def _mix(state, part):
    state += (part.to(tl.uint64) + 1) * _STEP
    state = (state ^ (state >> 30)) * _FIRST
    state = (state ^ (state >> 27)) * _SECOND
    return state ^ (state >> 31)


@triton.jit(
    do_not_specialize=["num_ids", "part_size", "num_parts"],
    do_not_specialize_on_alignment=["slots_ptr", "positions_ptr"],
)
def _pick(
    logits_ptr,
    peaks_ptr,
    slots_ptr,
    positions_ptr,
    reals_ptr,
    wholes_ptr,
    tables_ptr,
    parts_ptr,
    ids_ptr,
    num_ids,
    part_size,
    num_parts,
    logits_row,
    reals_row,
    wholes_row,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Find the part in which the drawn place lies, and the token in it."""
    row = tl.program_id(0).to(tl.int64)
    coldness, _, farthest, _, greedy = _asked(slots_ptr, reals_ptr, wholes_ptr, reals_row, wholes_row, row)
    if greedy:
        return
    notes_ptr = tables_ptr + row * (_TABLES + _NOTES) + _TABLES + 18
    key, kept, weight = tl.load(notes_ptr), tl.load(notes_ptr + 1), tl.load(notes_ptr + 2)
    parts = tl.arange(0, PARTS)
    at = parts_ptr + 2 * (row * num_parts + parts)
    masses = tl.load(at, mask=parts < num_parts, other=0)
    ties = tl.load(at + 1, mask=parts < num_parts, other=0)
    earlier = tl.cumsum(ties, 0) - ties
    masses += tl.minimum(tl.maximum(kept - earlier, 0), ties) * weight
    reached = tl.cumsum(masses, 0)
    wholes_ptr += tl.load(slots_ptr + row) * wholes_row
    state = _mix(_mix(tl.zeros([], tl.uint64), tl.load(wholes_ptr + 1)), tl.load(wholes_ptr + 2))
    state = _mix(state, tl.load(positions_ptr + row))
    number = (state >> 12).to(tl.float64) * 2.220446049250313e-16
    target = (number * tl.sum(masses, 0).to(tl.float64)).to(tl.int64)
    # A void row (NaN) may find no place: its id only has to be inside the vocabulary.
    part = tl.minimum(tl.sum((reached <= target).to(tl.int32), 0), num_parts - 1)
    left = target - tl.sum(tl.where(parts < part, masses, 0), 0)
    kept -= tl.sum(tl.where(parts < part, ties, 0), 0)
    first = part * part_size
    end = tl.minimum(first + part_size, num_ids)
    peak = tl.load(peaks_ptr + row).to(tl.float64)
    chosen = first
    begin = first
    while (begin < end) & (left >= 0):
        ids = begin + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * logits_row + ids, mask=ids < end, other=float("-inf"))
        behind, keys = _rank(x, peak, coldness, farthest)
        tied = (keys == key).to(tl.int64)
        fits = tl.cumsum(tied, 0) <= kept
        weights = tl.where(keys < key, _weigh(behind), tl.where((keys == key) & fits, weight, 0))
        chosen += tl.sum(((tl.cumsum(weights, 0) <= left) & (ids < end)).to(tl.int32), 0)
        left -= tl.sum(weights, 0)
        kept -= tl.sum(tied, 0)
        begin += BLOCK
    tl.store(ids_ptr + row, tl.minimum(chosen, num_ids - 1).to(tl.int64))


def draw(logits: Tensor, slots: Tensor, positions: Tensor, reals: Tensor, wholes: Tensor) -> tuple[Tensor, Tensor]:
    """See `Draw`."""
    peaks, ids = logits.max(dim=1)
    num_rows, num_ids = logits.shape
    if num_rows == 0:
        return ids, peaks.isfinite()
    assert logits.stride(1) == slots.stride(0) == positions.stride(0) == reals.stride(1) == wholes.stride(1) == 1
    num_parts = min(triton.cdiv(num_ids, 4 * _BLOCK), max(8, _PROGRAMS // num_rows), _MOST_PARTS)
    part_size = triton.cdiv(num_ids, num_parts * _BLOCK) * _BLOCK
    num_parts = triton.cdiv(num_ids, part_size)
    room = num_rows, _TABLES.value + _NOTES.value
    tables = torch.zeros(room, dtype=torch.int64, device=logits.device)
    parts = torch.empty((num_rows, num_parts, 2), dtype=torch.int64, device=logits.device)
    strides = logits.stride(0), reals.stride(0), wholes.stride(0)
    for level in (0, 6, 1, 2, 3, 4, 5):
        if level > 0:
            _narrow[(num_rows,)](slots, reals, wholes, tables, *strides[1:], level, num_warps=4)
        _count[(num_rows, num_parts)](
            *(logits, peaks, slots, reals, wholes, tables, parts, num_ids, part_size, *strides, level),
            BLOCK=_BLOCK,
            num_warps=8,
        )
    _pick[(num_rows,)](
        *(logits, peaks, slots, positions, reals, wholes, tables, parts, ids, num_ids, part_size, num_parts, *strides),
        PARTS=_MOST_PARTS,
        BLOCK=_BLOCK,
        num_warps=8,
    )
    return ids, peaks.isfinite()
