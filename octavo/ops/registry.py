"""All ops, and the kernels chosen for them once at start. No call is dispatched after that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from octavo.base.errors import ConfigError
from octavo.base.facts import DeviceFacts
from octavo.base.naming import unknown_name
from octavo.base.plugins import extend
from octavo.base.registry import Registry, import_path
from octavo.ops import (
    draw,
    encoder_attention,
    few_rows,
    gated_activation,
    grouped_experts,
    latent_attention,
    packed_product,
    page_write,
    paged_attention,
    product,
    recurrence,
    rms_norm,
    rope_write,
)
from octavo.ops.candidate import Candidate, Op, choose

_OPS = (
    rms_norm.RMS_NORM,
    rms_norm.ADD_RMS_NORM,
    rms_norm.LAYER_NORM,
    rms_norm.ADD_LAYER_NORM,
    rope_write.ROPE,
    gated_activation.ACTIVATION,
    gated_activation.GATED_ACTIVATION,
    grouped_experts.GROUPED_EXPERTS,
    grouped_experts.EXPERTS_IN_TURN,
    page_write.PAGE_WRITE,
    page_write.PLANE_WRITE,
    page_write.PAGE_COPY,
    rope_write.ROPE_WRITE,
    paged_attention.PAGED_ATTENTION,
    latent_attention.LATENT_ATTENTION,
    encoder_attention.ROW_ATTENTION,
    encoder_attention.CROSS_ATTENTION,
    product.LOGITS,
    draw.LIKELIEST,
    draw.APPEND,
    draw.DRAW,
    product.PRODUCT,
    packed_product.PACKED_PRODUCT,
    recurrence.CAUSAL_CONV,
    recurrence.GATED_DELTA_RULE,
    few_rows.FEW_ROWS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The functions to call, one for each op, and the reasons of the choices, one line each.

    unrecordable: of the functions that no graph can record, by what they are called ("paged_attention torch").
    """

    rms_norm: rms_norm.RmsNorm
    add_rms_norm: rms_norm.AddRmsNorm
    layer_norm: rms_norm.LayerNorm
    add_layer_norm: rms_norm.AddLayerNorm
    rope: rope_write.Rope
    activation: gated_activation.ActivationOf
    gated_activation: gated_activation.GatedActivation
    grouped_experts: grouped_experts.GroupedExperts
    experts_in_turn: grouped_experts.GroupedExperts
    page_write: page_write.PageWrite
    plane_write: page_write.PlaneWrite
    page_copy: page_write.PageCopy
    rope_write: rope_write.RopeWrite
    paged_attention: paged_attention.PagedAttention
    latent_attention: latent_attention.LatentAttention
    row_attention: encoder_attention.RowAttention
    cross_attention: encoder_attention.CrossAttention
    logits: product.Logits
    likeliest: draw.Likeliest
    append: draw.Append
    draw: draw.Draw
    product: product.Product
    packed_product: packed_product.PackedProduct
    causal_conv: recurrence.CausalConv
    gated_delta_rule: recurrence.GatedDeltaRule
    few_rows: few_rows.FewRows
    decisions: tuple[str, ...]
    unrecordable: Mapping[str, object]


def ops() -> dict[str, Op]:
    """Return every op by name. Other packages' candidates (entry points `octavo.kernels`, named "op.name") go first."""
    found = {op.name: op for op in _OPS}
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
