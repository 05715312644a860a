"""The vocabulary at both ends of a model: token embeddings and the language-model head. Ranks share its rows.

Shapes: T tokens, S rows to sample, V vocabulary, N hidden features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from octavo.nn.assembly import Binding, Destination, parameter
from octavo.nn.formats.base import WeightFormat
from octavo.nn.parallel.collectives import all_gather, all_reduce
from octavo.nn.parallel.mesh import Axis, Mesh
from octavo.nn.parallel.placement import portion


class _Table(nn.Module):
    """The rows of a table [V, N] that this rank holds."""

    weight: nn.Parameter | None
    tensors: Mapping[str, Tensor]

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.shape = (vocab_size, hidden_size)
        self.register_parameter("weight", None)

    def assign(self, path: str, choose: Callable[[str, int], WeightFormat]) -> None:
        """Take a format."""
        self.format = choose(path, self.shape[1])

    def settle(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Settle which rows are here. A table with fewer rows than ranks is held whole."""
        self.axis = mesh.tensor if self.shape[0] >= mesh.tensor.size else Axis()
        self.rows = portion(self.shape[0], self.axis)
        self.dtype = dtype

    def make(self) -> None:
        """Make the rows that are here."""
        (spec,) = self.format.tensors(len(self.rows), self.shape[1])
        self.weight = parameter(spec.shape, spec.dtype)

    def destinations(self) -> Mapping[str, Destination]:
        """Return `weight`, or nothing if no row is here."""
        if self.weight is None:
            return {}
        cut = (slice(self.rows.start, self.rows.stop),)
        (spec,) = self.format.tensors(*self.shape)
        return {"weight": Destination(tensor=self.weight, shape=spec.shape, cut=cut)}

    def finalize(self) -> None:
        """Let the format repack."""
        if self.weight is not None:
            self.tensors = {"weight": self.weight}
            self.format.finalize(self.tensors)


class Embedding(_Table):
    """A vector for every token of the vocabulary. It is looked up by the first stage alone."""

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Make the table [V, N]."""
        self.settle(mesh, dtype)
        self.starts = mesh.starts
        if self.starts:
            self.make()

    def bind(self, binding: Binding) -> None:
        """Take the sum over ranks."""
        self._reduce = all_reduce(self.axis)

    def forward(self, ids: Tensor) -> Tensor:
        """Return [T, N] for ids, int64 [T]; the result is the caller's own. Behind the first stage it holds anything."""
        if not self.starts:
            return torch.empty((len(ids), self.shape[1]), dtype=self.dtype, device=ids.device)
        if len(self.rows) == self.shape[0]:
            return self.format.gather(ids, self.tensors)
        local = ids - self.rows.start
        absent = (local < 0) | (local >= len(self.rows))
        found = self.format.gather(local.masked_fill_(absent, 0), self.tensors)
        return self._reduce(found.masked_fill_(absent[:, None], 0.0))


class LMHead(_Table):
    """Scores of every token of the vocabulary. tied: the embedding whose table it uses, if it has none of its own."""

    def __init__(self, hidden_size: int, vocab_size: int, tied: Embedding | None = None) -> None:
        super().__init__(vocab_size, hidden_size)
        # In a tuple, so that the embedding's parameter stays in one place of the module tree.
        self.tied = () if tied is None else (tied,)

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Make the table [V, N] on the last stage; the embedding, placed before, makes one of its own if it is tied."""
        self.settle(mesh, dtype)
        if mesh.ends:
            table = self.tied[0] if self.tied else self
            table.make()

    def bind(self, binding: Binding) -> None:
        """Take the kernel, and the way to join the ranks' parts."""
        sizes = [len(portion(self.shape[0], self.axis, rank)) for rank in range(self.axis.size)]
        self._gather, self._sum = all_gather(self.axis, sizes), all_reduce(self.axis)
        self._logits = binding.kernels.logits

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits, float32 [S, V], of hidden [S, N]; never rounded to a narrower dtype."""
        return self._gather(self._part(hidden))

    def likeliest(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the largest logit of every row, see `Likeliest`: each rank of its part, then all of what they found."""
        peaks, ids = self._part(hidden).max(dim=1)
        # Numbers of tokens are exact in float32.
        found = peaks.new_zeros((self.axis.size, 2, len(peaks)))
        found[self.axis.rank, 0], found[self.axis.rank, 1] = peaks, ids + self.rows.start
        peaks, owners = self._sum(found)[:, 0].max(dim=0)
        return found[:, 1].gather(0, owners[None])[0].long(), peaks.isfinite()

    def _part(self, hidden: Tensor) -> Tensor:
        table = self.tied[0] if self.tied else self
        return table.format.score(hidden, table.tensors, self._logits)
