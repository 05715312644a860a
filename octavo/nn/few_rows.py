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
from octavo.ops import few_rows
from octavo.ops.few_rows import LayerWeights, Matrix, RowPages
from octavo.ops.rope_write import HeadNorms

MOST_ROWS = few_rows.MOST_ROWS
_NOTE = "layers in steps of few rows: "


class FewRowsLayer(nn.Module):
    """A layer's parts, and the op that does their work."""

    def __init__(
        self,
        parts: tuple[RMSNorm, QKVLinear, Attention, RowLinear, RMSNorm, GatedMLP],
        run: few_rows.FewRows,
        ranks: few_rows.Ranks | None,
    ) -> None:
        super().__init__()
        # In a tuple, so that they stay in one place of the module tree.
        self._parts = parts
        self._run, self._ranks = run, ranks

    def finalize(self) -> None:
        """Look up weights, which have their memory now."""
        attention_norm, qkv, attend, out, mlp_norm, mlp = self._parts
        norms, (q, k) = None, (attend.q_norm, attend.k_norm)
        if isinstance(q, RMSNorm) and isinstance(k, RMSNorm):
            norms = HeadNorms(q=q.weight, k=k.weight, eps=q.eps)
        self._weights = LayerWeights(
            attention_norm=attention_norm.weight,
            qkv=_matrix(qkv),
            head_norms=norms,
            scale=attend.scale,
            out=_matrix(out),
            mlp_norm=mlp_norm.weight,
            gate_up=_matrix(mlp.gate_up),
            activation=mlp.activation,
            down=_matrix(mlp.down),
            eps=mlp_norm.eps,
        )

    def forward(self, residual: Tensor, ctx: ForwardContext) -> None:
        """Do the layer's work on the residual stream [T, N]; nothing is left to be added to it."""
        attend = self._parts[2]
        assert attend.rope is not None
        pages = ctx.layers[attend.layer]
        group = ctx.tokens(pages)
        kept = RowPages(
            keys=pages.planes["key"],
            values=pages.planes["value"],
            table=group.table[:, pages.column :: group.pages_per_block],
            lengths=ctx.lengths,
            rotation=attend.rope.rotation(ctx.positions),
        )
        self._run(residual, self._weights, kept, self._ranks)


def few_rows_of(
    attention_norm: Norm, attention: nn.Module, mlp_norm: Norm, mlp: nn.Module, binding: Binding
) -> FewRowsLayer | None:
    """Return the other way through a layer of these parts, None if there is none; the reason is noted.

    Attention that consists of `qkv`, `attend` and `out` alone does these one after the other.
    """
    run, inner = binding.kernels.few_rows, dict(attention.named_children())
    if run is few_rows.apart:
        return None
    match (attention_norm, inner.pop("qkv", None), inner.pop("attend", None), inner.pop("out", None), mlp_norm, mlp):
        case (RMSNorm(), QKVLinear(), Attention(), RowLinear(), RMSNorm(), GatedMLP()) as parts if not inner:
            why_not = _refusal(*parts, binding)
            binding.note(_NOTE + ("one op" if why_not is None else f"as always, {why_not}"))
            return FewRowsLayer(parts, run, _ranks(binding)) if why_not is None else None
        case _:
            binding.note(f"{_NOTE}as always, they have other parts")
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
    asks = (attend.window, attend.softcap, attend.alibi, attend.has_sinks or None, attend.shares, binding.attention)
    num_ins = [linear.num_ins // (binding.mesh.tensor.size if linear.role == "row" else 1) for linear in linears]
    sizes = {*num_ins, *(size for linear in linears for size in linear.sizes)}
    reasons = {
        "ranks share them that do not reach each other's memory": binding.mesh.tensor.size > 1
        and _ranks(binding) is None,
        "their norms are of another kind": len(norms) % 2 == 1 or any(type(norm) is not RMSNorm for norm in norms),
        "their norms differ in eps": attention_norm.eps != mlp_norm.eps,
        "their weights are packed": any(_dense(linear) is None for linear in linears),
        "they attend in a way of their own": any(asked is not None for asked in asks),
        "they rotate heads in part, in neighbours or not at all": rope is None
        or rope.interleaved
        or rope.facts.dim != heads.dim,
        f"heads are of {heads.dim}": heads.dim not in few_rows.HEAD_SIZES,
        f"{heads.query // heads.kv} heads share a key": heads.query // heads.kv > few_rows.MOST_GROUP,
        "they are too wide": max(num_ins) > few_rows.MOST_INS,
        "features are no multiples of 8": any(size % 8 for size in sizes),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _dense(linear: Linear) -> Piece | None:
    """Return where all parts lie together as they are, None if they do not."""
    first, *others = linear.pieces
    return first if isinstance(first, Piece) and isinstance(first.format, DenseFormat) and not others else None


def _matrix(linear: Linear) -> Matrix:
    piece = _dense(linear)
    assert piece is not None
    return piece.get_parameter("weight"), piece.bias if piece.adds_bias else None


def _ranks(binding: Binding) -> few_rows.Ranks | None:
    group = binding.mesh.tensor.group
    return None if group is None else group.peers
