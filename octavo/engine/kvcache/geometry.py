"""The solver of page geometry.

A page is the pool's unit: one contiguous byte range of fixed size. A group of layers that keep the same thing stores a
*block* of tokens in `pages_per_block` pages, each holding a *bundle* of its layers. A group of states stores all of a
sequence's in as many pages; a layer's state that is larger than a page spans several. Page size, bundles and blocks are
chosen together, to waste as little as possible on padding (a page that a bundle does not fill) and tails (the unused end of
a sequence's last block).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from octavo.base.errors import ConfigError
from octavo.base.intmath import ceil_div, round_up
from octavo.protocol.kept import Kept, KeptLayer, KeptState, KeptTokens

# Prefix reuse is decided in units of this many tokens; every block is a multiple of it.
HASH_UNIT = 16
# A sequence length for which tails are weighed, and the price of one more page a block (table entries, launches).
_TYPICAL_LENGTH = 1024
_PRICE_PER_PAGE = 0.0005
# A state has its pages once a sequence, tokens have theirs once a block.
_PRICE_PER_STATE_PAGE = _PRICE_PER_PAGE / 16
# Shares of a state begin at multiples of this many bytes, so that planes of any dtype are aligned.
_ALIGNMENT = 16
# Tokens between two checkpoints of a state: as many as take about its bytes, within these bounds.
_LEAST_INTERVAL, _MOST_INTERVAL = 512, 4096


class GroupGeometry(msgspec.Struct, frozen=True, kw_only=True):
    """One group: model layers that keep the same thing. bundle: layers a page.

    block: tokens a block; of states, tokens between two checkpoints. parts: pages that one layer's state spans (then a page
    holds one part). live: states of a sequence that are in use at once, so that rejected drafts can be taken back.
    """

    layers: tuple[int, ...]
    kept: Kept
    block: int
    bundle: int
    pages_per_block: int
    parts: int = 1
    live: int = 1

    @property
    def window(self) -> int | None:
        """Tokens that are seen, None for all."""
        return self.kept.window if isinstance(self.kept, KeptTokens) else None

    @property
    def is_state(self) -> bool:
        """Whether it keeps states, not tokens."""
        return isinstance(self.kept, KeptState)

    @property
    def is_encoder(self) -> bool:
        """Whether it keeps the tokens of the encoder's input: as many as there were at admission."""
        return isinstance(self.kept, KeptTokens) and self.kept.encoder

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer's share of a block (of its part of a state): its stride inside a page."""
        if isinstance(self.kept, KeptState):
            return round_up(self.kept.bytes_per_sequence // self.parts, _ALIGNMENT)
        return self.block * self.kept.bytes_per_token

    def blocks_of(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` take."""
        return self.live if self.is_state else ceil_div(num_tokens, self.block)

    def pages_of(self, num_tokens: int) -> int:
        """Pages that a sequence of `num_tokens` holds at most: a sliding group keeps its window and one block more."""
        blocks = self.blocks_of(num_tokens)
        if self.window is not None:
            blocks = min(blocks, self.blocks_of(self.window) + 1)
        return blocks * self.pages_per_block


class Geometry(msgspec.Struct, frozen=True, kw_only=True):
    """How the pool is cut. All groups share pages of `page_bytes` bytes; prefixes are hashed by `hash_unit` tokens.

    shared: (layer, the layer whose pages it reads), for layers that keep nothing of their own and so are in no group.
    """

    page_bytes: int
    groups: tuple[GroupGeometry, ...]
    hash_unit: int = HASH_UNIT
    shared: tuple[tuple[int, int], ...] = ()

    @property
    def has_encoder(self) -> bool:
        """Whether sequences have an encoder's input."""
        return any(group.is_encoder for group in self.groups)

    def pages_of(self, num_tokens: int, num_encoder: int | None = None) -> int:
        """Pages that a sequence of `num_tokens` holds at most, all groups together.

        num_encoder: tokens of its encoder input; as many as it has itself if not given.
        """
        encoder = num_tokens if num_encoder is None else num_encoder
        return sum(group.pages_of(encoder if group.is_encoder else num_tokens) for group in self.groups)

    def pages_at_once(self, num_tokens: int) -> int:
        """Pages that `num_tokens` take if they are computed in one step: a window lets none go before it ends."""
        return sum(group.blocks_of(num_tokens) * group.pages_per_block for group in self.groups)

    def part(self, layers: Collection[int]) -> Geometry:
        """Return the pool of a pipeline stage, which holds only these layers.

        The same page tables fit every stage: groups, blocks and pages a block stay, bundles and pages are smaller.
        """
        groups = list[GroupGeometry]()
        for group in self.groups:
            here = tuple(layer for layer in group.layers if layer in layers)
            bundle = ceil_div(len(here) * group.parts, group.pages_per_block)
            groups.append(msgspec.structs.replace(group, layers=here, bundle=bundle))
        if tuple(groups) == self.groups:
            return self
        return msgspec.structs.replace(
            self,
            page_bytes=max(group.bundle * group.layer_bytes for group in groups),
            groups=tuple(groups),
            shared=tuple((layer, owner) for layer, owner in self.shared if layer in layers),
        )

    def padding(self) -> float:
        """Share of a typical sequence's pages that no bundle fills."""
        used = sum(_useful(group.kept, len(group.layers)) for group in self.groups)
        taken = sum(
            group.pages_per_block * self.page_bytes * (1 if group.is_state else _typical(group.kept) / group.block)
            for group in self.groups
        )
        return 1.0 - used / taken if taken else 0.0

    def describe(self) -> tuple[str, ...]:
        """Return the decisions in words, for the log."""
        if not self.groups:
            return ("nothing is kept between steps",)
        lines = [
            f"page {self.page_bytes} bytes, {self.padding():.1%} padding, prefixes in units of {self.hash_unit} tokens"
        ]
        for group in self.groups:
            num, pages = len(group.layers), group.pages_per_block
            if group.is_state:
                spread = f"{group.parts} pages a layer" if group.parts > 1 else f"{group.bundle} layers a page"
                lines.append(
                    f"{num} layers with a state: {spread}, {pages} pages a sequence, a checkpoint every {group.block} tokens"
                )
                continue
            what = f"window {group.window}" if group.window is not None else "encoder" if group.is_encoder else "full"
            lines.append(
                f"{num} {what} layers: {group.block} tokens a block, {group.bundle} layers a page, {pages} pages a block"
            )
        if self.shared:
            lines.append(f"{len(self.shared)} layers read the pages of another")
        return tuple(lines)


def solve(layers: Sequence[KeptLayer], block: int | None = None, interval: int | None = None) -> Geometry:
    """Choose page size, blocks and bundles for what the layers keep.

    `block` forces tokens per block for every group, `interval` tokens between two checkpoints of states. Raises ConfigError
    when a group's backends share no block size, or the interval is no multiple of the blocks.
    """
    if not layers:
        return Geometry(page_bytes=_ALIGNMENT, groups=())
    gathered: dict[Kept, list[KeptLayer]] = {}
    shared = tuple((layer.layer, layer.shares) for layer in layers if layer.shares is not None)
    owners = {layer.layer: layer.kept for layer in layers if layer.shares is None}
    for layer in layers:
        assert layer.shares is None or owners[layer.shares] == layer.kept, "a layer reads what another keeps"
        gathered.setdefault(layer.kept, []).append(layer)
    unit = HASH_UNIT if block is None or block % HASH_UNIT == 0 else block
    blocks = {kept: _blocks(of, block, unit) for kept, of in gathered.items() if isinstance(kept, KeptTokens)}
    members = {kept: tuple(m.layer for m in of if m.shares is None) for kept, of in gathered.items()}
    ways = {kept: tuple(_ways(kept, of, blocks)) for kept, of in members.items()}
    sizes = {
        way.layer_bytes * bundle
        for found in ways.values()
        for way in found
        for bundle in range(1, (len(way.layers) if way.parts == 1 else 1) + 1)
    }
    candidates = [found for size in sorted(sizes) if (found := _cut(size, ways)) is not None]
    _, page_bytes, groups = min(candidates, key=lambda found: (found[0], found[1]))
    return Geometry(page_bytes=page_bytes, groups=_with_interval(groups, interval, unit), hash_unit=unit, shared=shared)


def _blocks(members: Sequence[KeptLayer], forced: int | None, unit: int) -> tuple[int, ...]:
    shared = set(members[0].blocks).intersection(*(member.blocks for member in members))
    allowed = tuple(sorted(tokens for tokens in shared if tokens % unit == 0 and forced in (None, tokens)))
    if not allowed:
        raise ConfigError(
            f"block_size {forced} is not one that the attention backends take: {sorted(shared)}", field="block_size"
        )
    return allowed


def _ways(kept: Kept, layers: tuple[int, ...], blocks: Mapping[KeptTokens, tuple[int, ...]]) -> Iterator[GroupGeometry]:
    """Yield every block that a group may have, or every number of parts, with one layer or part a page."""
    if isinstance(kept, KeptTokens):
        for block in blocks[kept]:
            yield GroupGeometry(layers=layers, kept=kept, block=block, bundle=1, pages_per_block=len(layers))
        return
    heads = math.gcd(*(plane.heads for plane in kept.planes))
    for parts in range(1, heads + 1):
        if heads % parts == 0:
            pages = len(layers) * parts
            yield GroupGeometry(layers=layers, kept=kept, block=0, bundle=1, pages_per_block=pages, parts=parts)


_Cut = tuple[float, int, tuple[GroupGeometry, ...]]


def _cut(page_bytes: int, ways: Mapping[Kept, tuple[GroupGeometry, ...]]) -> _Cut | None:
    """Cut every group into pages of this size; returns (score, page size, groups), or None if a group does not fit."""
    total, weight, groups = 0.0, 0.0, list[GroupGeometry]()
    for kept, found in ways.items():
        best: tuple[float, GroupGeometry] | None = None
        for way in found:
            fits = page_bytes // way.layer_bytes if way.parts == 1 else int(way.layer_bytes <= page_bytes)
            if fits == 0:
                continue
            pages = ceil_div(way.pages_per_block, fits)
            # As even as it goes: the last page is no emptier than it must be.
            bundle = ceil_div(way.pages_per_block, pages)
            group = msgspec.structs.replace(way, bundle=bundle, pages_per_block=pages)
            score = _waste(group, page_bytes)
            if best is None or score < best[0]:
                best = (score, group)
        if best is None:
            return None
        useful = _useful(kept, len(best[1].layers))
        total += best[0] * useful
        weight += useful
        groups.append(best[1])
    return total / weight, page_bytes, tuple(groups)


def _waste(group: GroupGeometry, page_bytes: int) -> float:
    """Return padding and tails as a share of the pages, and the price of their number."""
    num, pages = len(group.layers), group.pages_per_block
    if isinstance(group.kept, KeptState):
        return 1.0 - num * group.kept.bytes_per_sequence / (pages * page_bytes) + pages * _PRICE_PER_STATE_PAGE
    padding = 1.0 - num * group.layer_bytes / (pages * page_bytes)
    return padding + group.block / 2 / _TYPICAL_LENGTH + pages * _PRICE_PER_PAGE


def _typical(kept: Kept) -> int:
    window = kept.window if isinstance(kept, KeptTokens) else None
    return _TYPICAL_LENGTH if window is None else min(window, _TYPICAL_LENGTH)


def _useful(kept: Kept, num_layers: int) -> int:
    """Return the bytes of a typical sequence in a group."""
    if isinstance(kept, KeptState):
        return num_layers * kept.bytes_per_sequence
    return num_layers * kept.bytes_per_token * _typical(kept)


def _with_interval(groups: tuple[GroupGeometry, ...], forced: int | None, unit: int) -> tuple[GroupGeometry, ...]:
    """Settle after how many tokens states are checkpointed: a multiple of every block."""
    step = math.lcm(unit, *(group.block for group in groups if not group.is_state))
    if forced is not None and forced % step:
        raise ConfigError(f"mamba_block_size must be a multiple of {step}, not {forced}", field="mamba_block_size")
    state_bytes = sum(_useful(group.kept, len(group.layers)) for group in groups if group.is_state)
    token_bytes = sum(len(g.layers) * g.kept.bytes_per_token for g in groups if isinstance(g.kept, KeptTokens))
    worth = state_bytes // token_bytes if token_bytes else _LEAST_INTERVAL
    interval = forced or round_up(min(max(worth, _LEAST_INTERVAL), _MOST_INTERVAL), step)
    return tuple(msgspec.structs.replace(group, block=interval) if group.is_state else group for group in groups)
