"""Which format a weight is kept in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from octavo.base.errors import ConfigError
from octavo.nn.assembly import Stored
from octavo.nn.formats.base import WeightFormat
from octavo.nn.formats.dense import DenseFormat
from octavo.nn.formats.packed import PackedFormat
from octavo.nn.parallel.mesh import Mesh
from octavo.ops.packed_product.blocks import BLOCK, PACKED
from octavo.ops.registry import Kernels
from octavo.worker.loader.weights import NUMBER
from octavo.worker.spec import Weights

# What plain weights become. Tables of vectors, which the head often shares, are not worth fewer bits.
_KINDS = {"int8": "Q8_0", "int4": "Q4_1"}
_TABLE = "Q8_0"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatChoice:
    """How weights are kept: packed if the file has them so, or that was asked for, and a kernel multiplies them; else as numbers.

    stored: the file's kinds by tensor. names: a model's path -> name in a checkpoint. counts: of the kinds that were chosen.
    """

    stored: Mapping[str, str]
    names: Mapping[str, str | Stored]
    dtype: torch.dtype
    kernels: Kernels
    mesh: Mesh
    weights: Weights
    counts: Counter[str] = field(default_factory=Counter[str])

    def choose(self, path: str, num_ins: int) -> WeightFormat:
        """Return the format of the weight at a path of the model; raises ConfigError where what was asked for cannot be."""
        kind = self._kind(path, num_ins)
        if kind is None:
            return DenseFormat(dtype=self.dtype, product=self.kernels.product)
        self.counts[kind] += 1
        integers = not self.weights.exact
        return PackedFormat(kind=kind, dtype=self.dtype, kernel=self.kernels.packed_product, integers=integers)

    def decisions(self) -> tuple[str, ...]:
        """Return in words what became of weights of few bits, if there are any."""
        if self.counts:
            how = "as they are" if self.weights.exact else "rounded to 16 bits (with dtype float32: as they are)"
            kinds = ", ".join(f"{count} {kind}" for kind, count in self.counts.most_common())
            return (f"weights stay packed, {kinds}; what they multiply is taken {how}",)
        if PACKED.isdisjoint(self.stored.values()):
            return ()
        return (f"packed weights become {self.dtype} numbers: {self._refusal()}",)

    def _kind(self, path: str, num_ins: int) -> str | None:
        name = self.names.get(NUMBER.sub("{}", path))
        if not isinstance(name, str):
            return None
        stored = self.stored.get(name.format(*NUMBER.findall(path)) + ".weight")
        refusal = self._refusal()
        if stored in PACKED:
            return stored if refusal is None else None
        asked = self.weights.quantization
        if asked == "auto" or num_ins % BLOCK:
            return None
        if refusal is not None:
            raise ConfigError(f"quantization {asked} is not possible: {refusal}", field="quantization")
        return _TABLE if path.endswith(("embed", "head")) else _KINDS[asked]

    def _refusal(self) -> str | None:
        if not self.kernels.packed_product.pays:
            return "no kernel here multiplies packed weights"
        # A rank's share of the inputs may end inside a block.
        return None if self.mesh.tensor.size == 1 else "ranks share them (tensor_parallel_size must be 1)"
