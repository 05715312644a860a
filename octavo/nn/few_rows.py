"""The other way through a decoder layer, for steps of few rows: one op for all of it, which adds to the residual stream itself.

Shapes: T rows with one token each, N hidden features.
"""

from __future__ import annotations

from torch import Tensor, nn

from octavo.nn.assembly import Binding
from octavo.nn.attention.layer import Attention
from octavo.nn.context import ForwardContext
from octavo.nn.formats.dense import DenseFormat
from octavo.nn.linear import Linear, Piece, QKVLinear, RowLinear
from octavo.nn.mlp import GatedMLP
from octavo.nn.norm import Norm, RMSNorm
from octavo.ops.few_rows import HEAD_SIZES, MOST_GROUP, MOST_HIDDEN, MOST_ROWS, FewRows, LayerWeights, apart
from octavo.ops.rope_write import HeadNorms

__all__ = ["MOST_ROWS", "FewRowsLayer", "few_rows_of"]


class FewRowsLayer:
    """A layer's parts, whose weights are looked up when they have their memory."""

    def __init__(self, parts: tuple[RMSNorm, QKVLinear, Attention, RowLinear, RMSNorm, GatedMLP], run: FewRows) -> None:
        self._parts = parts
        self._run = run
        self._weights: LayerWeights | None = None

    def __call__(self, residual: Tensor, ctx: ForwardContext) -> None:
        """Do the layer's work on the residual stream [T, N]; nothing is left to be added to it."""
        if self._weights is None:
            self._weights = self._look_up()
        attend = self._parts[2]
        pages = ctx.layers[attend.layer]
        group = ctx.tokens(pages)
        table = group.table[:, pages.column :: group.pages_per_block]
        assert attend.rope is not None
        planes = pages.planes["key"], pages.planes["value"]
        self._run(residual, self._weights, attend.rope.rotation(ctx.positions), planes, table, ctx.lengths)

    def _look_up(self) -> LayerWeights:
        attention_norm, qkv, attend, out, mlp_norm, mlp = self._parts
        norms = None
        if isinstance(attend.q_norm, RMSNorm) and isinstance(attend.k_norm, RMSNorm):
            norms = HeadNorms(q=attend.q_norm.weight, k=attend.k_norm.weight, eps=attend.q_norm.eps)
        (qkv_weight, qkv_bias), (out_weight, out_bias) = _matrix(qkv), _matrix(out)
        (gate_up, gate_up_bias), (down, down_bias) = _matrix(mlp.gate_up), _matrix(mlp.down)
        return LayerWeights(
            attention_norm=attention_norm.weight,
            qkv=qkv_weight,
            qkv_bias=qkv_bias,
            head_norms=norms,
            num_heads=attend.local.query,
            num_kv_heads=attend.local.kv,
            scale=attend.scale,
            out=out_weight,
            out_bias=out_bias,
            mlp_norm=mlp_norm.weight,
            gate_up=gate_up,
            gate_up_bias=gate_up_bias,
            activation=mlp.activation,
            down=down,
            down_bias=down_bias,
            eps=mlp_norm.eps,
        )


def few_rows_of(
    attention_norm: Norm, attention: nn.Module, mlp_norm: Norm, mlp: nn.Module, binding: Binding
) -> FewRowsLayer | None:
    """Return the other way through a layer of these parts, None if there is none; the reason is noted.

    Attention that consists of `qkv`, `attend` and `out` alone does these one after the other.
    """
    if binding.kernels.few_rows is apart:
        return None
    parts = dict(attention.named_children())
    match (attention_norm, parts.pop("qkv", None), parts.pop("attend", None), parts.pop("out", None), mlp_norm, mlp):
        case (RMSNorm(), QKVLinear(), Attention(), RowLinear(), RMSNorm(), GatedMLP()) as found if not parts:
            refusal = _refusal(*found, binding)
            binding.note(f"layers in steps of few rows: {'few_rows' if refusal is None else f'as always, {refusal}'}")
            return FewRowsLayer(found, binding.kernels.few_rows) if refusal is None else None
        case _:
            binding.note("layers in steps of few rows: as always, the layer is of other parts")
            return None


def _refusal(
    attention_norm: RMSNorm,
    qkv: QKVLinear,
    attend: Attention,
    out: RowLinear,
    mlp_norm: RMSNorm,
    mlp: GatedMLP,
    binding: Binding,
) -> str | None:
    """Return why the op cannot do a layer of these parts, or None if it can."""
    linears: tuple[Linear, ...] = (qkv, out, mlp.gate_up, mlp.down)
    norms = [norm for norm in (attention_norm, mlp_norm, attend.q_norm, attend.k_norm) if norm is not None]
    heads, rope = attend.local, attend.rope
    plain = attend.window is None and attend.softcap is None and attend.alibi is None and not attend.has_sinks
    reasons = {
        "ranks share it": binding.mesh.tensor.size > 1,
        "it has norms of another kind": any(type(norm) is not RMSNorm for norm in norms),
        "its norms differ in eps": attention_norm.eps != mlp_norm.eps,
        "its weights are stored in another format": any(_is_packed(linear) for linear in linears),
        "it attends in a way of its own": not plain or attend.shares is not None or binding.attention is not None,
        "it has no rotary positions, or rotates pairs or heads in part": rope is None
        or rope.interleaved
        or rope.facts.dim != heads.dim,
        f"its heads are of {heads.dim}": heads.dim not in HEAD_SIZES,
        f"{heads.query // heads.kv} heads share a key": heads.query // heads.kv > MOST_GROUP,
        "it is too wide": out.parts[0].num_outs > MOST_HIDDEN,
        "its sizes are no multiples of 8": any(
            size % 8 for linear in linears for size in (linear.num_ins, *linear.sizes)
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _pieces(linear: Linear) -> list[Piece]:
    return [piece for piece in linear.pieces if isinstance(piece, Piece)]


def _is_packed(linear: Linear) -> bool:
    pieces = _pieces(linear)
    return len(pieces) != 1 or not isinstance(pieces[0].format, DenseFormat)


def _matrix(linear: Linear) -> tuple[Tensor, Tensor | None]:
    (piece,) = _pieces(linear)
    return piece.get_parameter("weight"), piece.bias
