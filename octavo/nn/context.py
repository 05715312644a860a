"""What a forward pass is told, explicitly: `model.forward(ids, ctx)`.

Shapes: T tokens in the step, R rows (sequences), P pages in the pool, C columns of a page table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from octavo.ops.paged_attention import Span
from octavo.ops.recurrence import StatePages


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInputs:
    """Where one group's pages are, for the rows of this step.

    table: int32 [R, C], the page in each column (block index * pages_per_block + j); the scratch page where nothing is kept.
    write_pages: int64 [T, pages_per_block], the pages of each token's block. write_offsets: int64 [T], its place in the block.
    span: what rows share, its table with the columns of `table`.
    """

    table: Tensor
    write_pages: Tensor
    write_offsets: Tensor
    block: int
    pages_per_block: int
    span: Span | None = None


# Where one group of states is, for the rows of this step: its pages hold a sequence's states of all layers.
StateInputs = StatePages


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPages:
    """One layer's planes in the pool: name -> strided view [P, heads, block, dim]. `column`: j of its bundle in a block.

    Of a state, `heads` are those of one page and `block` is 1; parts: pages that it spans, from `column` on.
    """

    group: int
    column: int
    planes: dict[str, Tensor]
    parts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardContext:
    """Everything a forward pass needs besides the token ids.

    positions: int64 [T]. query_starts: int32 [R + 1], where each row's tokens begin. lengths: int32 [R], tokens of each row
    after this step: the row's last query is at position length - 1. layers: by model layer index, those that are here.
    layer_inputs: [T, layers, features], what a model gives its layers beside the hidden states. encoder_lengths: int32 [R],
    tokens of each row's encoder input, if there is an encoder. The encoder's own pass has a context in which all of this is
    about its tokens. decodes: every row has one token, its newest.
    """

    positions: Tensor
    query_starts: Tensor
    lengths: Tensor
    groups: tuple[GroupInputs | StateInputs, ...]
    layers: Mapping[int, LayerPages]
    layer_inputs: Tensor | None = None
    encoder_lengths: Tensor | None = None
    decodes: bool = False

    def tokens(self, pages: LayerPages) -> GroupInputs:
        """Return where the tokens of a layer's group are."""
        group = self.groups[pages.group]
        assert isinstance(group, GroupInputs)
        return group

    def states(self, pages: LayerPages) -> StateInputs:
        """Return where the states of a layer's group are."""
        group = self.groups[pages.group]
        assert isinstance(group, StateInputs)
        return group
