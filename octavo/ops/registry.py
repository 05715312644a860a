"""All ops, and the kernels chosen for them once at start. No call is dispatched after that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from octavo.base.errors import ConfigError
from octavo.base.facts import DeviceFacts
from octavo.base.naming import unknown_name
from octavo.base.plugins import extend
from octavo.base.registry import Registry, import_path
from octavo.ops.candidate import Candidate, Op, choose
from octavo.ops.draw import APPEND, DRAW, LIKELIEST, Append, Draw, Likeliest
from octavo.ops.encoder_attention import CROSS_ATTENTION, ROW_ATTENTION, CrossAttention, RowAttention
from octavo.ops.few_rows import FEW_ROWS, FewRows
from octavo.ops.gated_activation import ACTIVATION, GATED_ACTIVATION, ActivationOf, GatedActivation
from octavo.ops.grouped_experts import EXPERTS_IN_TURN, GROUPED_EXPERTS, GroupedExperts
from octavo.ops.latent_attention import LATENT_ATTENTION, LatentAttention
from octavo.ops.packed_product import PACKED_PRODUCT, PackedProduct
from octavo.ops.page_write import PAGE_COPY, PAGE_WRITE, PLANE_WRITE, PageCopy, PageWrite, PlaneWrite
from octavo.ops.paged_attention import PAGED_ATTENTION, PagedAttention
from octavo.ops.product import LOGITS, PRODUCT, Logits, Product
from octavo.ops.recurrence import CAUSAL_CONV, GATED_DELTA_RULE, CausalConv, GatedDeltaRule
from octavo.ops.rms_norm import (
    ADD_LAYER_NORM,
    ADD_RMS_NORM,
    LAYER_NORM,
    RMS_NORM,
    AddLayerNorm,
    AddRmsNorm,
    LayerNorm,
    RmsNorm,
)
from octavo.ops.rope_write import ROPE, ROPE_WRITE, Rope, RopeWrite


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The functions to call, one for each op (a field's metadata), and the reasons of the choices, one line each.

    unrecordable: of the functions that no graph can record, by what they are called ("paged_attention torch").
    """

    rms_norm: RmsNorm = field(metadata={"op": RMS_NORM})
    add_rms_norm: AddRmsNorm = field(metadata={"op": ADD_RMS_NORM})
    layer_norm: LayerNorm = field(metadata={"op": LAYER_NORM})
    add_layer_norm: AddLayerNorm = field(metadata={"op": ADD_LAYER_NORM})
    rope: Rope = field(metadata={"op": ROPE})
    activation: ActivationOf = field(metadata={"op": ACTIVATION})
    gated_activation: GatedActivation = field(metadata={"op": GATED_ACTIVATION})
    grouped_experts: GroupedExperts = field(metadata={"op": GROUPED_EXPERTS})
    experts_in_turn: GroupedExperts = field(metadata={"op": EXPERTS_IN_TURN})
    page_write: PageWrite = field(metadata={"op": PAGE_WRITE})
    plane_write: PlaneWrite = field(metadata={"op": PLANE_WRITE})
    page_copy: PageCopy = field(metadata={"op": PAGE_COPY})
    rope_write: RopeWrite = field(metadata={"op": ROPE_WRITE})
    paged_attention: PagedAttention = field(metadata={"op": PAGED_ATTENTION})
    latent_attention: LatentAttention = field(metadata={"op": LATENT_ATTENTION})
    row_attention: RowAttention = field(metadata={"op": ROW_ATTENTION})
    cross_attention: CrossAttention = field(metadata={"op": CROSS_ATTENTION})
    logits: Logits = field(metadata={"op": LOGITS})
    likeliest: Likeliest = field(metadata={"op": LIKELIEST})
    append: Append = field(metadata={"op": APPEND})
    draw: Draw = field(metadata={"op": DRAW})
    product: Product = field(metadata={"op": PRODUCT})
    packed_product: PackedProduct = field(metadata={"op": PACKED_PRODUCT})
    causal_conv: CausalConv = field(metadata={"op": CAUSAL_CONV})
    gated_delta_rule: GatedDeltaRule = field(metadata={"op": GATED_DELTA_RULE})
    few_rows: FewRows = field(metadata={"op": FEW_ROWS})
    decisions: tuple[str, ...]
    unrecordable: Mapping[str, object]


def ops() -> dict[str, Op]:
    """Return every op by name. Other packages' candidates (entry points `octavo.kernels`, named "op.name") go first."""
    found: dict[str, Op] = {one.name: one.metadata["op"] for one in fields(Kernels) if "op" in one.metadata}
    others = Registry("kernel", {})
    extend(others, "octavo.kernels")
    for point in others:
        name = point.partition(".")[0]
        if name not in found:
            raise ConfigError(unknown_name("op", name, found), field=point)
        candidate: Candidate = others.load(point)
        found[name] = replace(found[name], candidates=(candidate, *found[name].candidates))
    return found


def bind(facts: DeviceFacts, dtype: str, overrides: Mapping[str, str] | None = None) -> Kernels:
    """Choose a kernel for every op. overrides: op -> candidate that must be taken.

    Raises ConfigError for an unknown op or candidate, and for a forced candidate that does not fit.
    """
    overrides, known = overrides or {}, ops()
    for name in overrides:
        if name not in known:
            raise ConfigError(unknown_name("op", name, known), field=name)
    functions: dict[str, Any] = {}
    reasons: list[str] = []
    unrecordable: dict[str, object] = {}
    for name, op in known.items():
        candidate, reason = choose(op, facts, dtype, overrides.get(name))
        functions[name] = import_path(candidate.path)
        reasons.append(reason)
        if not candidate.recordable:
            unrecordable[f"{name} {candidate.name}"] = functions[name]
    return Kernels(**functions, decisions=tuple(reasons), unrecordable=unrecordable)
