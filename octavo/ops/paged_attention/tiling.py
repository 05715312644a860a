"""How attention's work is cut, from shapes alone: a captured launch must not depend on lengths.

Shapes: T tokens, R rows, M query rows of a program (queries times heads), N keys of a tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.base.intmath import ceil_div

# Programs that an H200 holds at once, nearly, and how many of the largest, which have a multiprocessor each. Fewer are cut into
# splits; more than these, and the last wait for the first to end.
PROGRAMS, LARGE_PROGRAMS = 320, 132
MOST_SPLITS, LEAST_KEYS = 64, 128
# Up to this many tokens, chunks are cut into splits too.
_FEW_TOKENS = 256
# Queries of a block where rows have no more than that on average (drafts to check).
_FEW_QUERIES = 4
# With less shared memory than this, programs are small.
_LARGE_SHARED = 160 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How one program works: M query rows, N keys a tile, stages of the pipeline that loads them, warps."""

    rows: int
    keys: int
    stages: int
    warps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch. by: what a program's first number counts ("row", "token", "block" of queries of a row, or of all: "span").

    skip_ones: rows of one query are left to another launch.
    """

    by: str
    num_places: int
    skip_ones: bool
    queries: int
    splits: int


def tiling(rows: int, features: int, itemsize: int, shared: int, programs: int, *, split: bool = False) -> Tiling:
    """Choose a tiling. rows: M that is wanted. features: of a token's key and value. shared: bytes that a program may have.

    programs: how many there are. split: several share their keys. All as measured best on an H200, for heads of 128 and latents
    of 576 in bfloat16.
    """
    token = features * itemsize
    most = 128 if token <= 512 else 64 if token <= 1024 or (itemsize == 2 and shared > _LARGE_SHARED) else 16
    rows = max(16, min(rows, most))
    queries = rows * token // 2
    # Products of float32 are made in three parts, each of which takes shared memory.
    keys = 64 if token <= 512 else 32 if token <= 1024 or itemsize == 2 else 16
    if rows == 128 and 256 * token + queries <= shared:
        keys = 128
    large = token > 1024 and itemsize == 2 and shared > _LARGE_SHARED
    if token > 1024:
        # A latent is key and value: queries are as wide as both.
        keys, queries = 64 if large else keys, 2 * queries
    most = 2 if rows == 128 or programs > PROGRAMS or keys == 16 or (large and rows == 64) else 3
    stages = max(1, min(most, 1 + (shared - 2 * queries) // (keys * token)))
    warps = 8 if rows == 128 or rows * features >= 2**15 or large else 4
    if rows == 16 and 256 < token <= 512 and itemsize == 2 and not split and programs <= PROGRAMS:
        # A program for all keys of a row, and no other beside it to hide what it waits for.
        warps, keys = 8, 128 if programs <= LARGE_PROGRAMS and 3 * 128 * token < shared else keys
    return Tiling(rows=rows, keys=keys, stages=stages, warps=warps)


def launches(
    num_tokens: int, num_rows: int, *, width: int, heads: int, capacity: int, room: int = PROGRAMS
) -> tuple[Launch, ...]:
    """Choose the launches. width: queries of a block at most. heads: programs for the heads. capacity: keys a row can have.

    room: programs that run at once.
    """

    def splits(programs: int) -> int:
        if 3 * LARGE_PROGRAMS // 4 <= programs <= LARGE_PROGRAMS:
            return 1
        return max(1, min(room // programs, capacity // LEAST_KEYS, MOST_SPLITS))

    if num_tokens <= num_rows:
        cut = splits(num_tokens * heads)
        return (Launch(by="token", num_places=num_tokens, skip_ones=False, queries=1, splits=cut),)
    few = num_tokens <= _FEW_TOKENS
    queries = min(width, _FEW_QUERIES) if num_tokens <= _FEW_QUERIES * num_rows else width
    num_blocks = num_tokens // queries + num_rows + 1
    if few or num_rows == 1:
        # Every row begins a block of its own, so about half of the blocks are empty.
        cut = splits(ceil_div(num_tokens, queries) * heads) if few else 1
        return (Launch(by="block", num_places=num_blocks, skip_ones=False, queries=queries, splits=cut),)
    return (
        Launch(by="row", num_places=num_rows, skip_ones=False, queries=1, splits=splits(num_rows * heads)),
        Launch(by="block", num_places=num_blocks, skip_ones=True, queries=queries, splits=1),
    )


def span_launch(num_rows: int, *, width: int, heads: int, capacity: int) -> Launch:
    """Choose the launch over what rows share: their queries, one each, in blocks as wide as can be. See `launches`."""
    queries = min(width, 1 << (num_rows - 1).bit_length())
    num_blocks = ceil_div(num_rows, queries)
    splits = max(1, min(LARGE_PROGRAMS // (num_blocks * heads), capacity // LEAST_KEYS, MOST_SPLITS))
    return Launch(by="span", num_places=num_blocks, skip_ones=False, queries=queries, splits=splits)
