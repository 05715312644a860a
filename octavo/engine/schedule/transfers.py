"""Prefixes that lie elsewhere: a source says what it has, a plan carries the transfer, a result says how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from octavo.protocol.arrays import Int32Array
from octavo.protocol.request import Request
from octavo.protocol.step import BlobRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a source has of a prompt: its first `num_tokens` tokens, a multiple of every group's block."""

    num_tokens: int
    blob: BlobRef


class PrefixSource(Protocol):
    """Where prefixes may be fetched from (a connector's deciding half)."""

    def lookup(self, request: Request, tokens: Int32Array, num_cached: int) -> Offer | None:
        """Return more than the `num_cached` leading tokens found in the pool, or None; must not block."""
        ...


class NoSource:
    """The source of an engine without connectors."""

    def lookup(self, request: Request, tokens: Int32Array, num_cached: int) -> Offer | None:
        """Return None."""
        return None


@dataclass(slots=True)
class Loading:
    """A transfer under way into a slot. leased: blocks held until it ends, whatever becomes of the sequence."""

    slot: int
    generation: int
    num_tokens: int
    leased: list[int]
