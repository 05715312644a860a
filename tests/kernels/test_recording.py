"""Work recorded on the processor: a replay does the same with what its inputs hold now, in memory that is used again."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from octavo.base.native import library
from octavo.device.cpu import CpuDevice
from octavo.device.recording import UnrecordableError
from octavo.ops.rms_norm.cpu import add_rms_norm as native_norm
from octavo.ops.rms_norm.reference import add_rms_norm as torch_norm

NATIVE = pytest.param(native_norm, marks=pytest.mark.skipif(isinstance(library(), str), reason="no compiler here"))


def _layers(x: Tensor, weight: Tensor, kept: Tensor, norm: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """Views, changes in place, new tensors, several results at once, and kernels, over and over."""
    residual = x.clone()
    for _ in range(6):
        y = norm(residual.view(-1, 8)[:, :8] * 0.5, residual, weight, 1e-6)
        first, second = y.split(4, -1)
        y = torch.cat((second.sin(), first), -1)
        peaks, places = y.max(dim=1)
        kept[1:].add_(peaks.sum())
        residual = torch.where((places % 2 == 0)[:, None], y, residual.clamp_(min=-1.0))
    zeros = torch.zeros_like(residual)
    zeros[0] = residual.sum(0)
    return residual, zeros


@pytest.mark.parametrize("norm", [NATIVE, torch_norm])
def test_a_replay_sees_what_inputs_hold_now(norm: Callable[..., Tensor]) -> None:
    device, found = CpuDevice(), list[tuple[Tensor, Tensor]]()
    x, weight, kept = torch.randn(5, 8), torch.randn(8), torch.zeros(3)
    graph = device.capture(lambda: found.append(_layers(x, weight, kept, norm)))
    for seed in range(3):
        fresh = torch.randn(5, 8, generator=torch.Generator().manual_seed(seed))
        expected_kept = kept.clone()
        expected = _layers(fresh, weight, expected_kept, norm)
        x.copy_(fresh)
        # What a replay does not write must not be left from the last.
        found[0][1].fill_(7.0)
        graph.replay()
        for one, other in zip((*found[0], kept), (*expected, expected_kept), strict=True):
            assert torch.equal(one, other)


def _numbers(slots: Tensor, lengths: Tensor, table: Tensor) -> list[Tensor]:
    """Whole numbers in all the ways that a step's inputs have."""
    starts = (lengths[slots] - 1).clamp_(min=0)
    columns = torch.arange(3)
    places = (starts // 4)[:, None] * 2 + columns
    wide = table[:, :7][slots]
    return [
        *(starts, (starts + 1).to(torch.int32), columns, places, wide, wide.long() * places[:, :1], starts % 3),
        *(table[slots[:, None], places].long(), table[slots, starts], starts - 5, (starts - 5) // 3, (starts - 5) % 3),
        *((starts - 5).clamp(max=1), starts.clamp(2, 3), lengths[slots - 4], table.t()[starts], starts * starts),
    ]


@pytest.mark.parametrize("inference", [True, False])
def test_whole_numbers_are_the_same_and_need_no_operation_where_kernels_are(inference: bool) -> None:
    device, found = CpuDevice(), list[Tensor]()
    slots, lengths = torch.tensor([2, 0, 3, 2]), torch.tensor([5, 1, 9, 0])
    table = torch.randint(1000, (4, 12), dtype=torch.int32)
    with torch.inference_mode(inference):
        graph = device.capture(lambda: found.extend(_numbers(slots, lengths, table)))
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        slots.copy_(torch.randint(4, (4,), generator=generator))
        lengths.copy_(torch.randint(12, (4,), generator=generator))
        table.copy_(torch.randint(1000, (4, 12), generator=generator))
        graph.replay()
        for one, other in zip(found, _numbers(slots, lengths, table), strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)
    if not isinstance(library(), str):
        assert len(graph) == 1  # pyright: ignore[reportArgumentType]


def test_memory_is_taken_again_and_outputs_stay() -> None:
    device, found = CpuDevice(), list[Tensor]()
    x = torch.ones(2**18)

    def work() -> None:
        y = x
        for _ in range(50):
            y = y + 1.0
        found.append(y)

    graphs = [device.capture(work) for _ in range(3)]
    # Two for the work, and one more for each result that is kept.
    assert device._arena.num_bytes < 6 * x.nbytes
    x.fill_(2.0)
    for number, graph in enumerate(graphs):
        graph.replay()
        assert found[number].unique().tolist() == [52.0]
    assert len({tensor.data_ptr() for tensor in found}) == 3
    # A result that nobody holds is no longer kept.
    before = device._arena.num_bytes
    found.clear()
    device.capture(work)
    assert device._arena.num_bytes == before


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: bool(x[0] > 0),
        lambda x: x.numpy(),
    ],
)
def test_what_depends_on_values_is_refused(work: Callable[[Tensor], object]) -> None:
    with pytest.raises(UnrecordableError, match="is not permitted while work is recorded"):
        CpuDevice().capture(lambda: work(torch.ones(3)))


@pytest.mark.skipif(isinstance(library(), str), reason="no compiler here")
def test_the_team_gives_the_same_whatever_its_size_and_whoever_calls() -> None:
    found = library()
    assert not isinstance(found, str)
    x, weight = torch.randn(3000, 64), torch.randn(64)
    expected = native_norm(x, torch.zeros_like(x), weight, 1e-6)
    wrong = list[int]()

    def call() -> None:
        for turn in range(60):
            if not torch.equal(native_norm(x, torch.zeros_like(x), weight, 1e-6), expected):
                wrong.append(turn)

    try:
        for size in (2, 5, 1, 3):
            found.resize(size)
            callers = [threading.Thread(target=call) for _ in range(2)]
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()
    finally:
        found.resize(1)
    assert wrong == []
