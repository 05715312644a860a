"""Runs a model over a page pool laid out by hand: scattered pages, prompts in chunks, rows side by side.

What no row owns, and what the pool's pages hold beyond a row, is NaN, so that a stray read shows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from octavo.base.intmath import ceil_div
from octavo.engine.kvcache.geometry import Geometry, solve
from octavo.nn.context import ForwardContext, GroupInputs, LayerPages, StateInputs
from octavo.protocol.kept import KeptLayer
from octavo.worker.loader.assemble import AssembledModel


def layer_views(geometry: Geometry, pool: Tensor) -> dict[int, LayerPages]:
    """Return every layer's planes as strided views of pool, uint8 [P, page bytes]."""
    found: dict[int, LayerPages] = {}
    for number, group in enumerate(geometry.groups):
        for index, layer in enumerate(group.layers):
            column, place = divmod(index * group.parts, group.bundle)
            first, planes = place * group.layer_bytes, dict[str, Tensor]()
            tokens = 1 if group.is_state else group.block
            for plane in group.kept.planes:
                heads = plane.heads // group.parts
                last = first + heads * tokens * plane.dim * plane.itemsize
                flat = pool[:, first:last].view(getattr(torch, plane.dtype))
                planes[plane.name] = flat.unflatten(1, (heads, tokens, plane.dim))
                first = last
            found[layer] = LayerPages(group=number, column=column, planes=planes, parts=group.parts)
    return found | {layer: found[owner] for layer, owner in geometry.shared}


@dataclass
class Row:
    """A sequence: how many of its tokens are kept, and its pages by group, -1 where none is kept any more."""

    length: int = 0
    pages: list[list[int]] = field(default_factory=list)


class PagedRun:
    """A model and a pool. `step` computes some tokens of some rows, as the worker does."""

    def __init__(self, assembled: AssembledModel, num_pages: int = 96, block: int | None = None, seed: int = 0) -> None:
        self.model = assembled.model
        layers: Sequence[KeptLayer] = assembled.layers
        self.geometry = solve(layers, block)
        pool = torch.full((num_pages, self.geometry.page_bytes), 255, dtype=torch.uint8)
        self.layers = layer_views(self.geometry, pool)
        self.free = list(range(num_pages))
        random.Random(seed).shuffle(self.free)
        self._left: list[tuple[int, int]] = []

    def row(self) -> Row:
        """Return a new sequence."""
        return Row(pages=[[] for _ in self.geometry.groups])

    @torch.inference_mode()
    def step(self, work: Sequence[tuple[Row, Sequence[int]]]) -> Tensor:
        """Compute each row's next tokens; returns logits float32 [tokens, vocabulary], the rows one after another."""
        counts = [len(tokens) for _, tokens in work]
        for row, tokens in work:
            self._extend(row, len(tokens))
        positions = torch.cat(
            [torch.arange(row.length - count, row.length) for (row, _), count in zip(work, counts, strict=True)]
        )
        owners = [row for (row, _), count in zip(work, counts, strict=True) for _ in range(count)]
        starts = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        ctx = ForwardContext(
            positions=positions,
            query_starts=starts,
            lengths=torch.tensor([row.length for row, _ in work], dtype=torch.int32),
            groups=tuple(
                self._states(number, [row for row, _ in work], counts)
                if group.is_state
                else self._inputs(number, [row for row, _ in work], owners, positions)
                for number, group in enumerate(self.geometry.groups)
            ),
            layers=self.layers,
            decodes=all(count == 1 for count in counts),
        )
        ids = torch.tensor([token for _, tokens in work for token in tokens])
        logits = self.model.compute_logits(self.model.forward(ids, ctx))
        assert logits.dtype == torch.float32
        for row, _ in work:
            self._forget(row)
        for number, page in self._left:
            self._poison(number, page)
            self.free.append(page)
        self._left.clear()
        return logits

    def prefill_and_decode(self, tokens: Sequence[int], chunks: Sequence[int]) -> Tensor:
        """Return the logits of every position: the prompt in chunks, then one token at a time."""
        row, parts, first = self.row(), list[Tensor](), 0
        for count in (*chunks, *(1 for _ in range(len(tokens) - sum(chunks)))):
            parts.append(self.step([(row, tokens[first : first + count])]))
            first += count
        return torch.cat(parts)

    def _extend(self, row: Row, count: int) -> None:
        row.length += count
        for group, pages in zip(self.geometry.groups, row.pages, strict=True):
            while len(pages) < group.blocks_of(row.length) * group.pages_per_block:
                pages.append(self.free.pop())

    def _forget(self, row: Row) -> None:
        """Give back the pages that no later query sees; they are poisoned."""
        for number, (group, pages) in enumerate(zip(self.geometry.groups, row.pages, strict=True)):
            window = group.window
            dead = 0 if window is None else max(0, row.length + 1 - window) // group.block * group.pages_per_block
            for column in range(min(dead, len(pages))):
                if pages[column] >= 0:
                    self._poison(number, pages[column])
                    self.free.append(pages[column])
                    pages[column] = -1

    def _poison(self, number: int, page: int) -> None:
        for layer in self.layers.values():
            if layer.group == number:
                for plane in layer.planes.values():
                    plane[page] = float("nan")

    def _states(self, number: int, rows: Sequence[Row], counts: Sequence[int]) -> StateInputs:
        """Every step a row's states move to other pages, and the old ones are poisoned."""
        before = torch.tensor([row.pages[number] for row in rows])
        fresh = torch.tensor([row.length == count for row, count in zip(rows, counts, strict=True)])
        for row in rows:
            row.pages[number] = [self.free.pop(0) for _ in row.pages[number]]
        self._left.extend((number, page) for page in before.flatten().tolist())
        return StateInputs(before=before, after=torch.tensor([row.pages[number] for row in rows]), fresh=fresh)

    def _inputs(self, number: int, rows: Sequence[Row], owners: Sequence[Row], positions: Tensor) -> GroupInputs:
        group = self.geometry.groups[number]
        each = group.pages_per_block
        width = max(len(row.pages[number]) for row in rows)
        table = torch.tensor(
            [row.pages[number] + [-1] * (width - len(row.pages[number])) for row in rows], dtype=torch.int32
        )
        blocks = [
            (row.pages[number], int(position) // group.block * each)
            for row, position in zip(owners, positions, strict=True)
        ]
        assert width == ceil_div(width, each) * each
        return GroupInputs(
            table=table,
            write_pages=torch.tensor([pages[first : first + each] for pages, first in blocks]),
            write_offsets=positions % group.block,
            block=group.block,
            pages_per_block=each,
        )
