"""The vocabulary at both ends of a model: token embeddings and the language-model head.

Shapes: T tokens, S rows to sample, V vocabulary, N hidden features.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo.nn.assembly import Destination, parameter, whole
from octavo.nn.parallel.mesh import Mesh

# Rows of the head widened to float32 at a time, for other dtypes.
_TILE = 8192


class Embedding(nn.Module):
    """A vector for every token of the vocabulary."""

    weight: nn.Parameter

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.shape = (vocab_size, hidden_size)

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Make the table [V, N]."""
        self.weight = parameter(self.shape, dtype)

    def destinations(self) -> Mapping[str, Destination]:
        """Return `weight`."""
        return {"weight": whole(self.weight)}

    def forward(self, ids: Tensor) -> Tensor:
        """Return [T, N] for ids, int64 [T]; the result is the caller's own."""
        return F.embedding(ids, self.weight)


class LMHead(nn.Module):
    """Scores of every token of the vocabulary. tied: the embedding whose table it uses, if it has none of its own."""

    weight: nn.Parameter

    def __init__(self, hidden_size: int, vocab_size: int, tied: Embedding | None = None) -> None:
        super().__init__()
        self.shape = (vocab_size, hidden_size)
        # In a tuple, so that the embedding's parameter stays in one place of the module tree.
        self.tied = () if tied is None else (tied,)

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Make the table [V, N], unless it is the embedding's."""
        if not self.tied:
            self.weight = parameter(self.shape, dtype)

    def destinations(self) -> Mapping[str, Destination]:
        """Return `weight`, or nothing if it is the embedding's."""
        return {} if self.tied else {"weight": whole(self.weight)}

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits, float32 [S, V], of hidden [S, N]; never rounded to a narrower dtype."""
        weight = self.tied[0].weight if self.tied else self.weight
        if weight.dtype == torch.float32:
            return F.linear(hidden, weight)
        wide = hidden.float()
        return torch.cat([F.linear(wide, rows.float()) for rows in weight.split(_TILE)], -1)
