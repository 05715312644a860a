"""A whole decoder layer for a step of few rows with one token each: launches and gaps cost more there than reading weights.

Shapes: T tokens, one of each row; N hidden features, H query heads, K key/value heads, D head size, I intermediate features,
P pages in the pool, B tokens a block, C columns of the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, Protocol

from torch import Tensor

from octavo.base.facts import Activation
from octavo.ops.candidate import Candidate, Op
from octavo.ops.cuda_module import refusal
from octavo.ops.rope_write import HeadNorms, Rotation

# What the kernels are made for: rows, head sizes, query heads that share a key head, inputs of a product.
MOST_ROWS, HEAD_SIZES, MOST_GROUP, MOST_INS = 8, (64, 128), 8, 32768

# A weight [out, in] and its bias.
Matrix = tuple[Tensor, Tensor | None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerWeights:
    """What a layer computes with. qkv: [(H + 2 K) D, N]. out: [N, H D]. gate_up: [2 I, N]. down: [N, I].

    attention_norm, mlp_norm: [N], and eps of both. head_norms: of q and k, if there are any. scale: of scores.
    """

    attention_norm: Tensor
    qkv: Matrix
    head_norms: HeadNorms | None
    scale: float
    out: Matrix
    mlp_norm: Tensor
    gate_up: Matrix
    activation: Activation
    down: Matrix
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowPages:
    """Where rows keep keys and values. keys, values: strided views [P, K, B, D], all the same, not written yet.

    table: int32 [T, C], pages of a row; see `PagedAttention`. lengths: int32 [T], of rows with their new token, at least 1.
    """

    keys: Tensor
    values: Tensor
    table: Tensor
    lengths: Tensor
    rotation: Rotation


class Ranks(Protocol):
    """Those that share a layer: each has a part of what its output and its last product add to the residual stream."""

    def part_of(self, total: Tensor) -> Tensor:
        """Return where this rank's part is to be added."""
        ...

    def sum(self, x: Tensor, out: Tensor) -> None:
        """Bring the sum of all parts into every rank's `out`."""
        ...


class FewRows(Protocol):
    """Attention, then gated feed-forward, each normalized before and added to the residual stream."""

    def __call__(self, residual: Tensor, layer: LayerWeights, pages: RowPages, ranks: Ranks | None = None) -> None:
        """Overwrite residual [T, N], T <= 8; write each row's key and value into its page.

        Products are rounded once, and once more when they are added.
        """
        ...


def apart(residual: Tensor, layer: LayerWeights, pages: RowPages, ranks: Ranks | None = None) -> NoReturn:
    """Stand for no kernel: layers call those of their parts."""
    raise AssertionError("layers call the kernels of their parts")


FEW_ROWS = Op(
    name="few_rows",
    candidates=(
        Candidate(
            name="cuda",
            path="octavo.ops.few_rows.cuda:few_rows",
            kinds=("cuda",),
            archs=("sm_90", "sm_100", "sm_103"),
            dtypes=("bfloat16", "float16"),
            check=refusal,
        ),
        Candidate(name="apart", path="octavo.ops.few_rows:apart"),
        Candidate(name="torch", path="octavo.ops.few_rows.reference:few_rows", recordable=False),
    ),
)
