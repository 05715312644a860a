"""What a forward pass is told, explicitly: `model.forward(ids, ctx)`.

Shapes: T tokens in the step, R rows (sequences), P pages in the pool, C columns of a page table.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInputs:
    """Where one group's pages are, for the rows of this step.

    table: int32 [R, C], the page in each column (block index * pages_per_block + j); the scratch page where nothing is kept.
    write_pages: int64 [T, pages_per_block], the pages of each token's block. write_offsets: int64 [T], its place in the block.
    """

    table: Tensor
    write_pages: Tensor
    write_offsets: Tensor
    block: int
    pages_per_block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPages:
    """One layer's planes in the pool: name -> strided view [P, heads, block, dim]. `column`: j of its bundle in a block."""

    group: int
    column: int
    planes: dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardContext:
    """Everything a forward pass needs besides the token ids.

    positions: int64 [T]. query_starts: int32 [R + 1], where each row's tokens begin. lengths: int32 [R], tokens of each row
    after this step: the row's last query is at position length - 1. layers: by model layer index.
    """

    positions: Tensor
    query_starts: Tensor
    lengths: Tensor
    groups: tuple[GroupInputs, ...]
    layers: tuple[LayerPages, ...]
