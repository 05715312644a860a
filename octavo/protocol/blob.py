"""Bulk data never rides inside a record: a `BlobRef` says where it lies."""

from __future__ import annotations

import msgspec


class BlobRef(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor somewhere else.

    place: how to reach it ("shm:NAME", "file:PATH", "connector:NAME"). dtype: torch's name without "torch.".
    owner: the process that frees it. lease: seconds until the owner may free it without a word; 0 is until released.
    """

    place: str
    dtype: str
    shape: tuple[int, ...]
    owner: str
    lease: float = 0.0
