"""The face of the cache that the scheduler uses: match a prefix, extend, fork, slide, publish, release.

A sequence's `Holding` says which blocks it holds in each group, -1 where a block left the window. Changes of the workers'
page tables gather in `table_rows` and `copies` until a plan takes them.

A group of states has, for each sequence, the live state that every step changes, and checkpoints of it: copies after so many
tokens, found by the hash of the prefix that they stand for. A sequence resumes by copying a checkpoint into its live state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from octavo.engine.kvcache.blocks import MEDIUM, BlockPool, CacheEvent
from octavo.engine.kvcache.geometry import Geometry, GroupGeometry
from octavo.engine.kvcache.prefix import block_name, chain_next, chain_root, longest_resume
from octavo.protocol.arrays import Int32Array, int32, rows32
from octavo.protocol.step import DEVICE

_UNBOUNDED = 2**31 - 1
_Quads = list[tuple[int, int, int, int]]


@dataclass(slots=True)
class Holding:
    """What one sequence holds. chain: unit hashes so far, after the root. published, slid: blocks done per group.

    blocks: in a group of states, checkpoints, -1 where none is held. live: states that steps change. resume: tokens after
    which the checkpoints were taken that the live states must be copied from before the next step, 0 if none. num_encoder:
    tokens of the encoder's input. found: per group, what `match` found in the cache, by index.
    """

    root: bytes
    blocks: list[list[int]]
    published: list[int]
    slid: list[int]
    live: list[list[int]]
    chain: list[bytes] = field(default_factory=list[bytes])
    resume: int = 0
    num_encoder: int = 0
    found: list[dict[int, int]] = field(default_factory=list[dict[int, int]])

    def capacity(self, geometry: Geometry) -> int:
        """Tokens that the blocks held can take."""
        taken = [
            len(held) * group.block
            for held, group in zip(self.blocks, geometry.groups, strict=True)
            if not (group.is_state or group.is_encoder)
        ]
        return min(taken, default=_UNBOUNDED)


class Allocator:
    """Pages of all groups. Nothing here knows time: pages given back wait for the plan they are given back after."""

    def __init__(self, geometry: Geometry, num_pages: int, *, identity: str = "", reuse: bool = True) -> None:
        self.geometry = geometry
        self.pool = BlockPool(num_pages)
        self.table_rows: _Quads = []
        self.copies: _Quads = []
        self.copies_after: _Quads = []
        self._states = [(g, group) for g, group in enumerate(geometry.groups) if group.is_state]
        self._identity = identity
        # Root, tokens and chain of the prompt that was hashed last.
        self._latest: tuple[bytes, Int32Array, list[bytes]] = b"", int32(), []
        # What a decoder keeps depends on the encoder's input too.
        self._reuse = reuse and not geometry.has_encoder
        self._step = math.lcm(*(group.block for group in geometry.groups))
        # Tokens between checkpoints; chunks end there. 0: there are none to take.
        self.interval = self._states[0][1].block if self._states and self._reuse else 0
        assert all(group.block == self.interval for _, group in self._states) or not self.interval

    @property
    def fetches(self) -> bool:
        """Whether what tokens keep may come from elsewhere: states and an encoder's output cannot yet."""
        return not (self._states or self.geometry.has_encoder)

    @property
    def has_states(self) -> bool:
        """Whether any group keeps states."""
        return bool(self._states)

    def hold(self, salt: str, num_encoder: int = 0) -> Holding:
        """Return an empty holding. num_encoder: tokens of the encoder's input."""
        num_groups = len(self.geometry.groups)
        root = chain_root(self._identity, salt) if self._reuse else b""
        blocks, live = ([list[int]() for _ in range(num_groups)] for _ in range(2))
        return Holding(root, blocks, [0] * num_groups, [0] * num_groups, live, num_encoder=num_encoder)

    def match(self, holding: Holding, tokens: Int32Array) -> int:
        """Return how many leading tokens can be taken from the cache; the last token is always computed again.

        Takes nothing yet: `adopt` does. Both are called without anything between them.
        """
        if not self._reuse:
            return 0
        self._chain_to(holding, tokens, len(tokens) - 1)
        groups, unit, chain, find = self.geometry.groups, self.geometry.hash_unit, holding.chain, self.pool.find
        holding.found = [{} for _ in groups]

        def has_block(g: int, index: int) -> bool:
            block = find(block_name(g, chain[(index + 1) * groups[g].block // unit - 1]))
            if block is not None:
                holding.found[g][index] = block
            return block is not None

        return longest_resume(groups, self._step, len(tokens) - 1, has_block)

    def adopt(self, holding: Holding, slot: int, num_tokens: int) -> None:
        """Take the matched blocks of the first `num_tokens` tokens; of states, the checkpoint to resume from."""
        holding.resume = num_tokens if self._states else 0
        for g, group in enumerate(self.geometry.groups):
            held = holding.blocks[g]
            first = 0
            if group.is_state:
                first = max(0, num_tokens // group.block - 1)
            elif group.window is not None:
                first = max(0, num_tokens - group.window + 1) // group.block
            for index in range(num_tokens // group.block):
                block = holding.found[g][index] if index >= first else -1
                held.append(block)
                if block >= 0:
                    self.pool.share(block)
                    if not group.is_state:
                        self._write_table(g, slot, index, block)
            holding.published[g] = len(held)
            holding.slid[g] = first

    def cost(self, holding: Holding, num_matched: int, num_tokens: int, ahead: int) -> int:
        """Return how many available pages a sequence takes that adopts `num_matched` tokens and grows to `num_tokens`.

        `ahead`: tokens computed in one step; a sliding group never holds more than its window and those.
        """
        pages = 0
        for g, group in enumerate(self.geometry.groups):
            if group.is_state:
                blocks, first = group.live, max(0, num_matched // group.block - 1)
            else:
                blocks, first = self._needed(holding, group, num_tokens) - num_matched // group.block, 0
            if group.window is not None:
                blocks = min(blocks, group.blocks_of(group.window + ahead) + 1)
            pages += max(0, blocks) * group.pages_per_block
            matched = (holding.found[g].get(index, -1) for index in range(first, num_matched // group.block))
            pages += sum(group.pages_per_block for block in matched if block >= 0 and self.pool.idle(block))
        return pages

    def lease(self, holding: Holding, num_tokens: int) -> tuple[Int32Array, list[int]]:
        """Hold the blocks after the first `num_tokens` tokens once more, for a transfer that fills them.

        Returns int32 [pages, 3] of (group, column, page), and the blocks to release when the transfer has ended.
        """
        assert self.fetches
        pages: list[tuple[int, ...]] = []
        leased: list[int] = []
        for g, group in enumerate(self.geometry.groups):
            first = num_tokens // group.block
            for index, block in enumerate(holding.blocks[g][first:], first):
                self.pool.share(block)
                leased.append(block)
                columns = range(index * group.pages_per_block, (index + 1) * group.pages_per_block)
                pages.extend((g, column, page) for column, page in zip(columns, self.pool.pages(block), strict=True))
        return rows32(pages, 3), leased

    def pages_to_grow(self, holding: Holding, num_tokens: int) -> int:
        """Return how many pages `grow` would take."""
        pages = 0
        for held, live, group in zip(holding.blocks, holding.live, self.geometry.groups, strict=True):
            missing = self._needed(holding, group, num_tokens) - len(live if group.is_state else held)
            if missing > 0:
                pages += missing * group.pages_per_block
        return pages

    def fitting(self, holding: Holding, start: int, count: int) -> int:
        """Return how much of a chunk of `count` tokens from `start` there are pages for: all, or a half of a half of it.

        It ends where a checkpoint is due at the latest.
        """
        if self.interval:
            count = min(count, self.interval - start % self.interval)
        while count and self.pages_to_grow(holding, start + count) > self.pool.available_pages:
            count //= 2
        return count

    def grow(self, holding: Holding, slot: int, num_tokens: int) -> bool:
        """Extend every group to hold `num_tokens` tokens; False, and nothing changed, if pages are short."""
        if self.pages_to_grow(holding, num_tokens) > self.pool.available_pages:
            return False
        for g, group in enumerate(self.geometry.groups):
            held = holding.live[g] if group.is_state else holding.blocks[g]
            for index in range(len(held), self._needed(holding, group, num_tokens)):
                block = self.pool.allocate(group.pages_per_block)
                held.append(block)
                self._write_table(g, slot, index, block)
        return True

    def fork(self, parent: Holding, child: Holding, slot: int, num_tokens: int) -> bool:
        """Give the child the parent's first `num_tokens` tokens: full blocks shared, begun ones copied.

        False, and nothing changed, if pages are short or the parent's window has moved past what the child must see; or if
        there are states: the parent's has moved on, and the child resumes from a checkpoint or computes again.
        """
        if self._states:
            return False
        groups = self.geometry.groups
        begun = [g for g, group in enumerate(groups) if num_tokens % group.block and not group.is_encoder]
        if sum(groups[g].pages_per_block for g in begun) > self.pool.available_pages:
            return False
        for g, group in enumerate(groups):
            if group.window is not None:
                first = max(0, num_tokens - group.window + 1) // group.block
                if parent.slid[g] > first:
                    return False
        child.chain = parent.chain[: num_tokens // self.geometry.hash_unit]
        for g, group in enumerate(groups):
            full = len(parent.blocks[g]) if group.is_encoder else num_tokens // group.block
            for index, block in enumerate(parent.blocks[g][:full]):
                child.blocks[g].append(block)
                if block >= 0:
                    self.pool.share(block)
                    self._write_table(g, slot, index, block)
            child.published[g], child.slid[g] = full, parent.slid[g]
            if g in begun:
                source = parent.blocks[g][full]
                block = self.pool.allocate(group.pages_per_block)
                child.blocks[g].append(block)
                self._write_table(g, slot, full, block)
                self.copies.extend(self._copies(source, block))
        return True

    def computed(self, holding: Holding, tokens: Int32Array, num_computed: int, plan: int) -> None:
        """The first `num_computed` tokens are in their pages: publish full blocks, give back what left the window."""
        assert not holding.resume, "its states were never restored"
        if self._reuse:
            self._chain_to(holding, tokens, num_computed)
        unit = self.geometry.hash_unit
        for g, group in enumerate(self.geometry.groups):
            held = holding.blocks[g]
            if self._reuse:
                # Not every checkpoint that was due could be taken.
                for index in range(holding.published[g], min(len(held), num_computed // group.block)):
                    if held[index] >= 0:
                        digest = holding.chain[(index + 1) * group.block // unit - 1]
                        if self.pool.publish(held[index], block_name(g, digest)) and self.pool.log is not None:
                            self.pool.log.append(self._stored(holding, g, index, tokens))
                        if group.is_state:
                            self.pool.release(held[index], plan)
                            held[index] = -1
            holding.published[g] = max(holding.published[g], num_computed // group.block)
            if group.window is not None:
                for index in range(holding.slid[g], max(0, num_computed - group.window + 1) // group.block):
                    if held[index] >= 0:
                        self.pool.release(held[index], plan)
                        held[index] = -1
                    holding.slid[g] = index + 1

    def next_event(self, holding: Holding) -> int:
        """Return the number of computed tokens at which `computed` has something to do next."""
        soonest = _UNBOUNDED
        for g, group in enumerate(self.geometry.groups):
            if group.is_encoder:
                continue
            soonest = min(soonest, (holding.published[g] + 1) * group.block)
            if group.window is not None:
                soonest = min(soonest, (holding.slid[g] + 1) * group.block + group.window - 1)
        return soonest

    def restore(self, holding: Holding, plan: int) -> None:
        """Before the rows of plan number `plan`, copy the checkpoints that the sequence resumes from into its live states."""
        for g, group in self._states if holding.resume else ():
            checkpoint = holding.blocks[g][-1]
            self.copies.extend(self._copies(checkpoint, holding.live[g][holding.resume % group.live]))
            self.pool.release(checkpoint, plan)
            holding.blocks[g][-1] = -1
        holding.resume = 0

    def checkpoint(self, holding: Holding, num_tokens: int, spare: int) -> None:
        """After the rows of the plan being made, keep the states of the first `num_tokens` tokens, if pages are to spare."""
        if sum(group.pages_per_block for _, group in self._states) > spare:
            return
        for g, group in self._states:
            held = holding.blocks[g]
            held.extend([-1] * (num_tokens // group.block - len(held)))
            held[-1] = self.pool.allocate(group.pages_per_block)
            self.copies_after.extend(self._copies(holding.live[g][num_tokens % group.live], held[-1]))

    def release(self, holding: Holding, plan: int) -> None:
        """Give everything back after `plan`. Later blocks first, so that a shared prefix is forgotten last."""
        for held in (*holding.blocks, *holding.live):
            for block in reversed(held):
                if block >= 0:
                    self.pool.release(block, plan)
            held.clear()

    def take_table(self) -> tuple[_Quads, _Quads, _Quads]:
        """Return the table rows, the copies before and those after, gathered since the last call."""
        taken = self.table_rows, self.copies, self.copies_after
        self.table_rows, self.copies, self.copies_after = [], [], []
        return taken

    def _needed(self, holding: Holding, group: GroupGeometry, num_tokens: int) -> int:
        """Return how many blocks a sequence of `num_tokens` has in a group."""
        return group.blocks_of(holding.num_encoder if group.is_encoder else num_tokens)

    def _copies(self, source: int, target: int) -> _Quads:
        pages = zip(self.pool.pages(source), self.pool.pages(target), strict=True)
        return [(DEVICE, old, DEVICE, new) for old, new in pages]

    def _chain_to(self, holding: Holding, tokens: Int32Array, num_tokens: int) -> None:
        unit, chain = self.geometry.hash_unit, holding.chain
        fresh = not chain and num_tokens >= unit
        if fresh:
            # Prompts that come one after the other often begin alike.
            root, before, known = self._latest
            same = min(len(before), num_tokens) if root == holding.root else 0
            differ = np.flatnonzero(before[:same] != tokens[:same])
            chain.extend(known[: (int(differ[0]) if len(differ) else same) // unit])
        parent = chain[-1] if chain else holding.root
        ids = tokens[len(chain) * unit : num_tokens // unit * unit].tobytes()
        for at in range(0, len(ids), unit * tokens.itemsize):
            parent = chain_next(parent, ids[at : at + unit * tokens.itemsize])
            chain.append(parent)
        if fresh:
            # Copies: history and chain of a sequence go on.
            self._latest = holding.root, tokens[: len(chain) * unit].copy(), list(chain)

    def _stored(self, holding: Holding, g: int, index: int, tokens: Int32Array) -> CacheEvent:
        block = self.geometry.groups[g].block
        ends = [end * block // self.geometry.hash_unit - 1 for end in (index, index + 1)]
        parent = holding.chain[ends[0]] if index else None
        ids = tokens[index * block : (index + 1) * block].tolist()
        # Without adapters: of those, id, name and further keys are None.
        return "BlockStored", [holding.chain[ends[1]]], parent, ids, block, None, MEDIUM, None, None, g

    def _write_table(self, g: int, slot: int, index: int, block: int) -> None:
        pages = self.pool.pages(block)
        if len(pages) == 1:
            self.table_rows.append((g, slot, index, block))
        else:
            first = index * len(pages)
            self.table_rows.extend((g, slot, first + j, page) for j, page in enumerate(pages))
