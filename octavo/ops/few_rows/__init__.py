"""A whole decoder layer for a step of few rows with one token each: there, launches and gaps cost more than reading weights.

Shapes: T tokens, one of each row; N hidden features, H query heads, K key/value heads, D head size, I intermediate features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, Protocol

from torch import Tensor

from octavo.base.facts import Activation
from octavo.ops.candidate import Candidate, Op
from octavo.ops.cuda_module import refusal
from octavo.ops.rope_write import HeadNorms, Rotation

MOST_ROWS = 8
# What the kernels are made for.
HEAD_SIZES, MOST_GROUP, MOST_HIDDEN = (64, 128), 8, 8192


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerWeights:
    """What a layer computes with. qkv: [(H + 2 K) D, N]. out: [N, H D]. gate_up: [2 I, N]. down: [N, I]. scale: of scores.

    attention_norm, mlp_norm: [N], and eps of both. head_norms: of q and k, if there are any.
    """

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norms: HeadNorms | None
    num_heads: int
    num_kv_heads: int
    scale: float
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    activation: Activation
    down: Tensor
    down_bias: Tensor | None
    eps: float


class FewRows(Protocol):
    """Attention, then gated feed-forward, each normalized before and added to the residual stream."""

    def __call__(
        self,
        residual: Tensor,
        layer: LayerWeights,
        rotation: Rotation,
        planes: tuple[Tensor, Tensor],
        table: Tensor,
        lengths: Tensor,
    ) -> None:
        """Overwrite residual [T, N], T <= 8; write each row's key and value into its page.

        planes: of keys and of values, strided views [P, K, B, D], all the same. table: int32 [T, C], a row's pages; see
        `PagedAttention`. lengths: int32 [T], of rows with their new token, at least 1. Products are rounded once, and once
        more when they are added.
        """
        ...


def apart(
    residual: Tensor,
    layer: LayerWeights,
    rotation: Rotation,
    planes: tuple[Tensor, Tensor],
    table: Tensor,
    lengths: Tensor,
) -> NoReturn:
    """Stand for no kernel: layers call their own."""
    raise AssertionError("few rows are taken as many are")


FEW_ROWS = Op(
    name="few_rows",
    candidates=(
        Candidate(
            name="cuda",
            path="octavo.ops.few_rows.cuda:few_rows",
            kinds=("cuda",),
            dtypes=("bfloat16", "float16"),
            check=lambda facts, dtype: refusal(facts),
        ),
        Candidate(name="apart", path="octavo.ops.few_rows:apart"),
        Candidate(name="torch", path="octavo.ops.few_rows.reference:few_rows", recordable=False),
    ),
)
