"""Attention of a mixed batch over keys and values that lie in pages.

Shapes: T tokens in the step, R rows (sequences), H query heads, K key/value heads, D head size, P pages in the pool,
B tokens a block, C columns of the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from octavo.ops.candidate import Candidate, Op
from octavo.ops.cuda_module import refusal
from octavo.ops.native import native_candidate


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scoring:
    """How scores are made: scaled, optionally capped as `softcap * tanh(score / softcap)`, and seen within `window` tokens.

    slopes: float32 [H], what is taken off a score for each token between key and query (Press et al. 2021, ALiBi).
    sinks: [H], the score of a token that every query sees and that has no value (Xiao et al. 2023, gpt-oss).
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    slopes: Tensor | None = None
    sinks: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Span:
    """Leading tokens that rows share. No query is of a token in the span.

    table: int32 [C], the span's pages. length: int32 [1], its tokens, full blocks; 0 for none. skips: int32 [R], `length` for
    rows that begin with the span, 0 for others.
    """

    table: Tensor
    length: Tensor
    skips: Tensor


class PagedAttention(Protocol):
    """Causal attention over pages."""

    def __call__(
        self,
        q: Tensor,
        key_pages: Tensor,
        value_pages: Tensor,
        table: Tensor,
        query_starts: Tensor,
        lengths: Tensor,
        scoring: Scoring,
        span: Span | None = None,
    ) -> Tensor:
        """Return [T, H, D] in q's dtype, accumulated in float32; zeros for tokens that belong to no row.

        q: [T, H, D]. key_pages, value_pages: strided views [P, K, B, D], written already. table: int32 [R, C], a row's
        block i lies in page `table[r, i]`; entries outside the row's window or length may be anything, and so may what
        pages hold beyond them. query_starts: int32 [R + 1]. lengths: int32 [R]; the queries of row r are its last
        `query_starts[r + 1] - query_starts[r]` tokens. Query heads h * H / K and on share key head h. span: the same tokens
        are in the pages of its rows' tables too; whoever can reads them once for all.
        """
        ...


PAGED_ATTENTION = Op(
    name="paged_attention",
    candidates=(
        Candidate(
            name="hopper",
            path="octavo.ops.paged_attention.hopper:paged_attention",
            kinds=("cuda",),
            archs=("sm_90",),
            dtypes=("bfloat16", "float16"),
            check=refusal,
        ),
        Candidate(name="triton", path="octavo.ops.paged_attention.triton:paged_attention", kinds=("cuda",)),
        native_candidate("paged_attention", "octavo.ops.paged_attention.cpu:paged_attention"),
        Candidate(name="torch", path="octavo.ops.paged_attention.reference:paged_attention", recordable=False),
    ),
)
