"""How attention's features are cut into heads."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.base.facts import ModelFacts
from octavo.nn.parallel.mesh import Mesh
from octavo.nn.parallel.placement import share


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """`query` query heads share `kv` key/value heads of `dim` features."""

    query: int
    kv: int
    dim: int

    @classmethod
    def of(cls, facts: ModelFacts) -> Heads:
        """Return the heads of a model whose layers all have the same."""
        return cls(query=facts.num_heads, kv=facts.num_kv_heads, dim=facts.head_dim)

    def local(self, mesh: Mesh) -> Heads:
        """Return the heads that this rank computes."""
        kv = share(self.kv, mesh.tensor, repeat=True)
        return Heads(query=len(share(self.query, mesh.tensor)), kv=len(kv), dim=self.dim)
