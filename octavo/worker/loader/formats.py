"""Which format a weight is kept in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from octavo.nn.assembly import Stored
from octavo.nn.formats.base import WeightFormat
from octavo.nn.formats.dense import DenseFormat
from octavo.nn.formats.packed import PackedFormat
from octavo.nn.parallel.mesh import Mesh
from octavo.ops.packed_product.blocks import PACKED
from octavo.ops.registry import Kernels
from octavo.worker.loader.weights import NUMBER


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatChoice:
    """How weights are kept: packed if the file has them so and a kernel multiplies them, else as plain numbers.

    stored: the file's kinds by tensor. names: a model's path -> name in a checkpoint. integers: see `PackedFormat`.
    """

    stored: Mapping[str, str]
    names: Mapping[str, str | Stored]
    dtype: torch.dtype
    kernels: Kernels
    mesh: Mesh
    integers: bool
    counts: Counter[str] = field(default_factory=Counter[str])

    def choose(self, path: str) -> WeightFormat:
        """Return the format of the weight at a path of the model."""
        name = self.names.get(NUMBER.sub("{}", path))
        stored = self.stored.get(name.format(*NUMBER.findall(path)) + ".weight") if isinstance(name, str) else None
        if stored in PACKED and self._refusal() is None:
            self.counts[stored] += 1
            return PackedFormat(
                kind=stored, dtype=self.dtype, kernel=self.kernels.packed_product, integers=self.integers
            )
        return DenseFormat(dtype=self.dtype)

    def decisions(self) -> tuple[str, ...]:
        """Return in words what became of the file's packed weights, if it has any."""
        refusal = self._refusal()
        if PACKED.isdisjoint(self.stored.values()):
            return ()
        if refusal is not None:
            return (f"weights become {self.dtype} numbers: {refusal}",)
        how = "times inputs of 8 bits (with dtype float32: exactly)" if self.integers else "times inputs as they are"
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.counts.most_common())
        return (f"weights stay packed, {how}: {kinds}",)

    def _refusal(self) -> str | None:
        if not self.kernels.packed_product.pays:
            return "no kernel here multiplies packed ones"
        # A rank's share of the inputs may end inside a block.
        return None if self.mesh.tensor.size == 1 else "ranks share them"
