"""Ownership of pages: who holds a block, which blocks are only remembered, and when a page may be used again.

A block is one or more pages, known by its first page. It is *used* (somebody holds references), *pending* (given back, but
a plan in flight may still touch it), *cached* (nobody holds it, its content can be found again) or its pages are *free*.
At all times free + cached + used + pending = all pages.
"""

from __future__ import annotations

from collections import deque
from typing import Any

# What is published or forgotten: its name and fields, as `octavo.engine.transport.cache_events` sends them.
CacheEvent = tuple[Any, ...]
# What the first tier is called there, on any device.
MEDIUM = "GPU"


class BlockPool:
    """Reference counts, the free list, and cached blocks in order of last use. log: what can be found no more, if asked for."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.log: list[CacheEvent] | None = None
        self._free = list(range(num_pages - 1, -1, -1))
        self._pages: list[tuple[int, ...]] = [()] * num_pages
        self._references = [0] * num_pages
        self._names: list[bytes | None] = [None] * num_pages
        self._found: dict[bytes, int] = {}
        self._cached: dict[int, None] = {}
        self._pending: deque[tuple[int, int]] = deque()
        self._pending_plan = [-1] * num_pages
        self.cached_pages = 0
        self.pending_pages = 0

    @property
    def free_pages(self) -> int:
        """Pages that hold nothing."""
        return len(self._free)

    @property
    def used_pages(self) -> int:
        """Pages of blocks that somebody holds."""
        return self.num_pages - len(self._free) - self.cached_pages - self.pending_pages

    @property
    def available_pages(self) -> int:
        """Pages that can be had at once: free ones, and cached ones that would be forgotten."""
        return len(self._free) + self.cached_pages

    def pages(self, block: int) -> tuple[int, ...]:
        """Return the pages of a block."""
        return self._pages[block]

    def allocate(self, num_pages: int) -> int:
        """Take a block of `num_pages` pages with one reference; forgets the longest unused cached blocks if it must.

        The caller has checked `available_pages`.
        """
        while len(self._free) < num_pages:
            self._forget(next(iter(self._cached)))
        pages = (self._free.pop(),) if num_pages == 1 else tuple(self._free.pop() for _ in range(num_pages))
        block = pages[0]
        self._pages[block] = pages
        self._references[block] = 1
        return block

    def find(self, name: bytes) -> int | None:
        """Return the block published under `name`, if it is still there."""
        return self._found.get(name)

    def idle(self, block: int) -> bool:
        """Whether nobody holds the block."""
        return self._references[block] == 0

    def share(self, block: int) -> None:
        """Add a reference to a block that is used, pending or cached."""
        if self._references[block] == 0:
            if block in self._cached:
                del self._cached[block]
                self.cached_pages -= len(self._pages[block])
            else:
                assert self._pending_plan[block] >= 0
                self._pending_plan[block] = -1
                self.pending_pages -= len(self._pages[block])
        self._references[block] += 1

    def release(self, block: int, plan: int) -> None:
        """Drop a reference. The last one makes the block pending until every plan up to `plan` is done."""
        self._references[block] -= 1
        assert self._references[block] >= 0
        if self._references[block] == 0:
            self._pending.append((plan, block))
            self._pending_plan[block] = plan
            self.pending_pages += len(self._pages[block])

    def publish(self, block: int, name: bytes) -> bool:
        """Let a held block be found under `name`; the first block of a name keeps it, and False is returned for others."""
        assert self._references[block] > 0
        if self._names[block] is not None or name in self._found:
            return False
        self._found[name] = block
        self._names[block] = name
        return True

    def plan_done(self, plan: int) -> None:
        """Every plan up to `plan` is done: blocks that waited for it become cached or free."""
        while self._pending and self._pending[0][0] <= plan:
            waited_for, block = self._pending.popleft()
            if self._pending_plan[block] != waited_for:
                continue
            self._pending_plan[block] = -1
            self.pending_pages -= len(self._pages[block])
            if self._names[block] is not None:
                self._cached[block] = None
                self.cached_pages += len(self._pages[block])
            else:
                self._free.extend(reversed(self._pages[block]))
                self._pages[block] = ()

    def forget_all(self) -> None:
        """Nothing can be found any more; cached blocks become free, held ones lose their names."""
        for block in list(self._cached):
            self._forget(block)
        for block in self._found.values():
            self._names[block] = None
        self._found.clear()
        if self.log is not None:
            self.log.append(("AllBlocksCleared",))

    def _forget(self, block: int) -> None:
        name = self._names[block]
        assert name is not None
        if self.log is not None:
            self.log.append(("BlockRemoved", [name[:-1]], MEDIUM, name[-1]))
        del self._cached[block]
        del self._found[name]
        self._names[block] = None
        self.cached_pages -= len(self._pages[block])
        self._free.extend(reversed(self._pages[block]))
        self._pages[block] = ()
