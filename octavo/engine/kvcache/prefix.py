"""Prefix identity: a chain of hashes over units of tokens.

The hash of a unit covers its tokens and the hash before it, so equal hashes mean equal prefixes. The chain starts from
everything else that changes what a layer keeps: the engine's identity (model, weights version) and the request's salt.
blake2b with 16 bytes: a collision is not to be had on purpose.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from octavo.engine.kvcache.geometry import GroupGeometry


def chain_root(identity: str, salt: str) -> bytes:
    """Return the hash before the first unit."""
    return hashlib.blake2b(f"{identity}\0{salt}".encode(), digest_size=16).digest()


def chain_next(parent: bytes, tokens: bytes) -> bytes:
    """Return the hash of a unit after `parent`; `tokens` are its int32 ids as bytes."""
    return hashlib.blake2b(parent + tokens, digest_size=16).digest()


def block_name(group: int, digest: bytes) -> bytes:
    """Return the name of the block of `group` that ends where the chain is at `digest`."""
    return digest + bytes((group,))


def longest_resume(
    groups: Sequence[GroupGeometry], step: int, limit: int, has_block: Callable[[int, int], bool]
) -> int:
    """Return the longest prefix, a multiple of `step` and at most `limit`, that every group can resume from.

    `has_block(group, index)` tells whether a block can be found. Full groups need every block of the prefix, sliding ones
    those that the window still reaches from the first new token, states the checkpoint exactly there.
    """
    full = [g for g, group in enumerate(groups) if group.window is None and not group.is_state]
    others = [g for g in range(len(groups)) if g not in full]
    resume = limit // step * step
    for g in full:
        block = groups[g].block
        index = 0
        while (index + 1) * block <= resume and has_block(g, index):
            index += 1
        resume = min(resume, index * block) // step * step
    while resume and not all(_reaches(groups[g], g, resume, has_block) for g in others):
        resume -= step
    return resume


def _reaches(group: GroupGeometry, g: int, resume: int, has_block: Callable[[int, int], bool]) -> bool:
    last = resume // group.block - 1
    if group.is_state:
        return has_block(g, last)
    assert group.window is not None
    first = max(0, resume - group.window + 1) // group.block
    return all(has_block(g, index) for index in range(last, first - 1, -1))
