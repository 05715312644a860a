"""Feed-forward blocks."""

from __future__ import annotations

from torch import Tensor, nn

from octavo.base.facts import Activation
from octavo.nn.assembly import Binding
from octavo.nn.linear import ColumnLinear, GateUpLinear, RowLinear


class MLP(nn.Module):
    """`down(activation(up(x)))`."""

    def __init__(self, hidden_size: int, intermediate_size: int, activation: Activation, bias: bool = False) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.up = ColumnLinear(hidden_size, intermediate_size, bias)
        self.down = RowLinear(intermediate_size, hidden_size, bias)

    def bind(self, binding: Binding) -> None:
        """Take the kernel."""
        self._activate = binding.kernels.activation

    def forward(self, x: Tensor) -> Tensor:
        """Return [T, hidden] from x [T, hidden]."""
        return self.down(self._activate(self.up(x), self.activation))


class GatedMLP(nn.Module):
    """`down(activation(gate(x)) * up(x))` (Shazeer 2020, "GLU variants")."""

    def __init__(self, hidden_size: int, intermediate_size: int, activation: Activation, bias: bool = False) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.gate_up = GateUpLinear(hidden_size, intermediate_size, bias)
        self.down = RowLinear(intermediate_size, hidden_size, bias)

    def bind(self, binding: Binding) -> None:
        """Take the kernel."""
        self._gated = binding.kernels.gated_activation

    def forward(self, x: Tensor) -> Tensor:
        """Return [T, hidden] from x [T, hidden]."""
        gate, up = self.gate_up(x)
        return self.down(self._gated(gate, up, self.activation))
