"""Slices tile the weight: whatever the sizes, every feature is held, and only by as many ranks as asked for."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from octavo.base.errors import CheckpointError, ConfigError
from octavo.device.registry import detect
from octavo.nn.assembly import Binding, Destination, Stored
from octavo.nn.attention.alibi import alibi
from octavo.nn.attention.layer import Attention
from octavo.nn.formats.base import WeightFormat
from octavo.nn.formats.dense import DenseFormat
from octavo.nn.heads import Heads
from octavo.nn.linear import ColumnLinear, GateUpLinear, Linear, QKVLinear, ReplicatedLinear, RowLinear
from octavo.nn.parallel.mesh import Axis, Mesh
from octavo.nn.parallel.placement import place, share
from octavo.ops.registry import bind
from octavo.worker.loader.assemble import assign_formats, destinations, finalize, materialize
from octavo.worker.loader.assemble import place as place_layers
from octavo.worker.loader.weights import Incoming, fill


def meshes(size: int) -> list[Mesh]:
    return [Mesh(tensor=Axis(size=size, rank=rank)) for rank in range(size)]


@given(units=st.integers(1, 24), unit=st.integers(1, 9), size=st.integers(1, 24), repeat=st.booleans())
def test_shares_tile(units: int, unit: int, size: int, repeat: bool) -> None:
    axes = [Axis(size=size, rank=rank) for rank in range(size)]
    if units % size and not (repeat and size % units == 0):
        with pytest.raises(ConfigError, match=f"{units} units of {unit} features cannot be spread over {size} ranks"):
            share(units * unit, axes[0], unit, repeat)
        return
    shares = [share(units * unit, axis, unit, repeat) for axis in axes]
    holders = Counter(feature for held in shares for feature in held)
    assert sorted(holders) == list(range(units * unit))
    assert set(holders.values()) == {max(1, size // units)}
    assert all(held.start % unit == 0 and len(held) % unit == 0 for held in shares)
    assert [held.start for held in shares] == sorted(held.start for held in shares)


@given(outs=st.integers(1, 12), ins=st.integers(1, 12), size=st.integers(1, 6))
def test_weights_tile(outs: int, ins: int, size: int) -> None:
    shape = (outs * size, ins * size)
    for role, times in (("column", 1), ("row", 1), ("replicated", size)):
        held = Counter(
            (out, into)
            for mesh in meshes(size)
            for placed in [place(role, mesh, shape)]
            for out in placed.outs
            for into in placed.ins
        )
        assert len(held) == shape[0] * shape[1]
        assert set(held.values()) == {times}


FUSED = DenseFormat(dtype=torch.float64)
# As formats that store each part by itself.
APART = DenseFormat(dtype=torch.float64, fuses=False)


def _filled(layer: Linear, mesh: Mesh, whole: dict[str, Tensor], weight_format: WeightFormat = FUSED) -> Linear:
    """Make a layer's share of the whole tensors, without collectives."""
    layer.assign("layer", lambda path, num_ins: weight_format)
    layer.place(mesh, torch.float64)
    layer.to_empty(device="cpu")
    targets: dict[str, Destination] = dict(layer.destinations())
    assert {name: target.shape for name, target in targets.items()} == {
        name: tuple(tensor.shape) for name, tensor in whole.items() if name in targets
    }
    for name, target in targets.items():
        target.tensor.copy_(whole[name][target.cut])
    layer.finalize()
    return layer


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("bias", [False, True])
def test_products_of_all_ranks_together(size: int, bias: bool) -> None:
    x = torch.randn(5, 24, dtype=torch.float64)
    weight, added = torch.randn(32, 24, dtype=torch.float64), torch.randn(32, dtype=torch.float64)
    whole = {"weight": weight, **({"bias": added} if bias else {})}
    expected = x @ weight.T + (added if bias else 0)
    columns = [_filled(ColumnLinear(24, 32, bias), mesh, whole)(x) for mesh in meshes(size)]
    torch.testing.assert_close(torch.cat(columns, -1), expected)
    copies = [_filled(ReplicatedLinear(24, 32, bias), mesh, whole)(x) for mesh in meshes(size)]
    assert all(torch.allclose(copy, expected) for copy in copies)
    rows = [_filled(RowLinear(24, 32, bias), mesh, whole) for mesh in meshes(size)]
    parts = [row.outputs(part)[0] for row, part in zip(rows, x.chunk(size, -1), strict=True)]
    torch.testing.assert_close(torch.stack(parts).sum(0), expected)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("weight_format", [FUSED, APART], ids=["fused", "apart"])
def test_fused_parts_keep_their_heads(size: int, weight_format: DenseFormat) -> None:
    """4 query heads and 2 key heads over up to 4 ranks: ranks 0 and 1 then hold the same key head."""
    heads, x = Heads(query=4, kv=2, dim=6), torch.randn(5, 24, dtype=torch.float64)
    whole = {
        f"{name}.weight": torch.randn(6 * n, 24, dtype=torch.float64) for name, n in (("q", 4), ("k", 2), ("v", 2))
    }
    whole |= {f"{name}.bias": torch.randn(len(whole[f"{name}.weight"]), dtype=torch.float64) for name in "qkv"}
    products = {name: (x @ whole[f"{name}.weight"].T + whole[f"{name}.bias"]).unflatten(-1, (-1, 6)) for name in "qkv"}
    for mesh in meshes(size):
        layer = _filled(QKVLinear(24, heads, bias=True), mesh, whole, weight_format)
        assert len(layer.run) == (1 if weight_format.fuses else 3)
        q, k, v = layer(x)
        rank, local = mesh.tensor.rank, heads.local(mesh)
        first = rank * 2 // size
        assert (local.query, local.kv) == (4 // size, max(1, 2 // size))
        torch.testing.assert_close(q, products["q"][:, rank * local.query : (rank + 1) * local.query])
        torch.testing.assert_close(k, products["k"][:, first : first + local.kv])
        torch.testing.assert_close(v, products["v"][:, first : first + local.kv])


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_parts_that_share_a_tensor_of_the_checkpoint(size: int, transposed: bool, groups: int) -> None:
    rows = {name: torch.randn(2 * units, 3, 5) for name, units in (("q", 2), ("k", 1), ("v", 1))}
    each = {name: len(heads) // groups for name, heads in rows.items()}
    order = [rows[name][g * each[name] : (g + 1) * each[name]] for g in range(groups) for name in "qkv"]
    weight = torch.cat(order).flatten(0, 1)
    stored = {"weight": weight.T if transposed else weight, "bias": weight[:, 0]}
    x = torch.randn(7, 5)
    for mesh in meshes(size):
        model = nn.ModuleDict({"qkv": QKVLinear(5, Heads(query=4, kv=2, dim=3), bias=True)})
        assign_formats(model, lambda path, num_ins: DenseFormat(dtype=torch.float32))
        place_layers(model, mesh, torch.float32)
        materialize(model, torch.device("cpu"))
        names = {f"qkv.{part}": Stored(name="attn", groups=groups, transposed=transposed) for part in "qkv"}
        targets, *_ = destinations(model, names)
        fill(targets, [_incoming(f"attn.{name}", tensor) for name, tensor in stored.items()], frozenset())
        finalize(model)
        for name, found in zip("qkv", model["qkv"](x), strict=True):
            held = rows[name].chunk(size)[mesh.tensor.rank]
            torch.testing.assert_close(found, torch.einsum("ti,hdi->thd", x, held) + held[..., 0])
    with pytest.raises(CheckpointError, match=r"attn.bias is \[23\], but the config asks for \[24\]"):
        fill(targets, [_incoming("attn.bias", weight[:-1, 0])], frozenset())


def _incoming(name: str, tensor: Tensor) -> Incoming:
    def read(cut: tuple[slice, ...], into: Tensor) -> None:
        into.copy_(tensor[cut])

    return Incoming(name=name, file="a test", shape=tuple(tensor.shape), read=read)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_slopes_and_sinks_follow_their_heads(size: int) -> None:
    device = detect("cpu")
    slopes, sinks = [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125], torch.arange(6.0)
    for mesh in meshes(size):
        layer = Attention(0, Heads(query=6, kv=6, dim=8), alibi(6, scale=2.0), sinks=True)
        layer.place(mesh, torch.float32)
        layer.bind(
            Binding(
                facts=device.facts,
                dtype="float32",
                device=device.torch_device,
                kernels=bind(device.facts, "float32"),
                mesh=mesh,
                max_model_len=8,
            )
        )
        materialize(layer, device.torch_device)
        target = layer.destinations()["sinks"]
        assert target.shape == (6,)
        target.tensor.copy_(sinks[target.cut])
        layer.finalize()
        assert layer.scoring.slopes is not None
        assert layer.scoring.slopes.tolist() == [2 * slope for slope in slopes[target.cut[0]]]
        assert layer.scoring.sinks is not None
        assert layer.scoring.sinks.tolist() == sinks.chunk(size)[mesh.tensor.rank].tolist()


def test_gate_and_up_are_cut_each_by_itself() -> None:
    x = torch.randn(3, 8, dtype=torch.float64)
    whole = {f"{name}.weight": torch.randn(12, 8, dtype=torch.float64) for name in ("gate", "up")}
    parts = [_filled(GateUpLinear(8, 12), mesh, whole)(x) for mesh in meshes(2)]
    torch.testing.assert_close(torch.cat([gate for gate, _ in parts], -1), x @ whole["gate.weight"].T)
    torch.testing.assert_close(torch.cat([up for _, up in parts], -1), x @ whole["up.weight"].T)
