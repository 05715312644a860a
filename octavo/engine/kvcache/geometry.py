"""The solver of page geometry.

A page is the pool's unit: one contiguous byte range of fixed size. A group of layers that keep the same thing stores a
*block* of tokens in `pages_per_block` pages, each holding a *bundle* of its layers. Page size, bundles and blocks are
chosen together, to waste as little as possible on padding (a page that a bundle does not fill) and tails (the unused end of
a sequence's last block).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from octavo.base.errors import ConfigError
from octavo.base.intmath import ceil_div
from octavo.protocol.kept import KeptLayer, KeptTokens

# Prefix reuse is decided in units of this many tokens; every block is a multiple of it.
HASH_UNIT = 16
# A sequence length for which tails are weighed, and the price of one more page a block (table entries, launches).
_TYPICAL_LENGTH = 1024
_PRICE_PER_PAGE = 0.0005


class GroupGeometry(msgspec.Struct, frozen=True, kw_only=True):
    """One group: model layers that keep the same thing. block: tokens a block. bundle: layers a page."""

    layers: tuple[int, ...]
    kept: KeptTokens
    block: int
    bundle: int
    pages_per_block: int

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer's share of a block: its stride inside a page."""
        return self.block * self.kept.bytes_per_token

    def blocks_of(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` take."""
        return ceil_div(num_tokens, self.block)

    def pages_of(self, num_tokens: int) -> int:
        """Pages that a sequence of `num_tokens` holds at most: a sliding group keeps its window and one block more."""
        blocks = self.blocks_of(num_tokens)
        if self.kept.window is not None:
            blocks = min(blocks, self.blocks_of(self.kept.window) + 1)
        return blocks * self.pages_per_block


class Geometry(msgspec.Struct, frozen=True, kw_only=True):
    """How the pool is cut. All groups share pages of `page_bytes` bytes; prefixes are hashed by `hash_unit` tokens."""

    page_bytes: int
    groups: tuple[GroupGeometry, ...]
    hash_unit: int = HASH_UNIT

    def pages_of(self, num_tokens: int) -> int:
        """Pages that a sequence of `num_tokens` holds at most, all groups together."""
        return sum(group.pages_of(num_tokens) for group in self.groups)

    def padding(self) -> float:
        """Share of all pages that no bundle fills, each group weighed by its pages for a token."""
        used = sum(len(g.layers) * g.kept.bytes_per_token for g in self.groups)
        taken = sum(g.pages_per_block * self.page_bytes / g.block for g in self.groups)
        return 1.0 - used / taken

    def describe(self) -> tuple[str, ...]:
        """Return the decisions in words, for the log."""
        lines = [
            f"page {self.page_bytes} bytes, {self.padding():.1%} padding, prefixes in units of {self.hash_unit} tokens"
        ]
        for group in self.groups:
            what = f"window {group.kept.window}" if group.kept.window is not None else "full"
            lines.append(
                f"{len(group.layers)} {what} layers: {group.block} tokens a block, {group.bundle} layers a page, "
                f"{group.pages_per_block} pages a block"
            )
        return tuple(lines)


def solve(layers: Sequence[KeptLayer], block: int | None = None) -> Geometry:
    """Choose page size, blocks and bundles for what the layers keep.

    `block` forces tokens per block for every group. Raises ConfigError when a group's backends share no block size.
    """
    gathered: dict[KeptTokens, list[KeptLayer]] = {}
    for layer in layers:
        gathered.setdefault(layer.kept, []).append(layer)
    unit = HASH_UNIT if block is None or block % HASH_UNIT == 0 else block
    choices = {kept: _blocks(members, block, unit) for kept, members in gathered.items()}
    sizes = {
        tokens * kept.bytes_per_token * bundle
        for kept, blocks in choices.items()
        for tokens in blocks
        for bundle in range(1, len(gathered[kept]) + 1)
    }
    candidates = [found for size in sorted(sizes) if (found := _cut(size, gathered, choices)) is not None]
    _, page_bytes, groups = min(candidates, key=lambda found: (found[0], found[1]))
    return Geometry(page_bytes=page_bytes, groups=groups, hash_unit=unit)


def _blocks(members: Sequence[KeptLayer], forced: int | None, unit: int) -> tuple[int, ...]:
    shared = set(members[0].blocks).intersection(*(member.blocks for member in members))
    allowed = tuple(sorted(tokens for tokens in shared if tokens % unit == 0 and forced in (None, tokens)))
    if not allowed:
        raise ConfigError(
            f"block_size {forced} is not one that the attention backends take: {sorted(shared)}", field="block_size"
        )
    return allowed


_Cut = tuple[float, int, tuple[GroupGeometry, ...]]


def _cut(
    page_bytes: int, gathered: dict[KeptTokens, list[KeptLayer]], choices: dict[KeptTokens, tuple[int, ...]]
) -> _Cut | None:
    """Cut every group into pages of this size; returns (score, page size, groups), or None if a group does not fit."""
    total, groups = 0.0, list[GroupGeometry]()
    for kept, members in gathered.items():
        best: tuple[float, GroupGeometry] | None = None
        for block in choices[kept]:
            fits = page_bytes // (block * kept.bytes_per_token)
            if fits == 0:
                continue
            pages = ceil_div(len(members), fits)
            bundle = ceil_div(len(members), pages)
            padding = 1.0 - len(members) * block * kept.bytes_per_token / (pages * page_bytes)
            score = padding + block / 2 / _TYPICAL_LENGTH + pages * _PRICE_PER_PAGE
            if best is None or score < best[0]:
                layers = tuple(member.layer for member in members)
                group = GroupGeometry(layers=layers, kept=kept, block=block, bundle=bundle, pages_per_block=pages)
                best = (score, group)
        if best is None:
            return None
        total += best[0]
        groups.append(best[1])
    return total, page_bytes, tuple(groups)
