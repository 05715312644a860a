"""The door to an NVIDIA GPU."""

from __future__ import annotations

import pytest
import torch

from octavo.device.registry import detect

pytestmark = pytest.mark.gpu


def test_facts() -> None:
    facts = detect("cuda").facts
    assert facts.kind == "cuda"
    assert facts.arch.startswith("sm_")
    assert facts.features == {"queue", "graphs"}
    assert 0 < detect().free_memory() <= facts.total_memory
    assert detect().facts.kind == "cuda", "it goes before the host"


def test_memory_comes_and_goes() -> None:
    device = detect("cuda")
    before = device.free_memory()
    taken = device.allocate(2**28)
    assert taken.shape == (2**28,)
    assert 0 <= before - device.free_memory() - 2**28 < 2**22
    del taken
    assert device.free_memory() == before

    def work() -> None:
        torch.ones(2**26, device=device.torch_device).mul(2.0).add(1.0)

    assert 2 * 2**28 <= device.peak(work) <= 3 * 2**28


def test_events_tell_when_work_is_done() -> None:
    device = detect("cuda")
    x = torch.randn(8192, 8192, device=device.torch_device)
    for _ in range(20):
        x = x @ x * 1e-4
    event = device.record()
    assert not event.done()
    event.wait()
    assert event.done()


def test_copies_from_and_to_pinned_memory_wait_for_nobody() -> None:
    device = detect("cuda")
    busy = torch.randn(8192, 8192, device=device.torch_device)
    target = torch.zeros(1000, dtype=torch.int64, device=device.torch_device)
    for _ in range(20):
        busy = busy @ busy * 1e-4
    host = device.pinned(8000).view(torch.int64)
    host.copy_(torch.arange(1000))
    target.copy_(host, non_blocking=True)
    back = device.pinned(8000).view(torch.int64)
    back.copy_(target, non_blocking=True)
    event = device.record()
    assert not event.done()
    event.wait()
    assert back.tolist() == list(range(1000))


def test_a_graph_does_the_same_work_on_new_values() -> None:
    device = detect("cuda")
    x = torch.zeros(4, device=device.torch_device)
    found = list[torch.Tensor]()

    def work() -> None:
        found.append((x * 2).cumsum(0))

    work()
    graph = device.capture(work)
    for value in (1.0, 3.0):
        x.fill_(value)
        graph.replay()
        assert found[1].tolist() == [2 * value * n for n in (1, 2, 3, 4)]


def test_what_reads_a_value_cannot_be_recorded() -> None:
    device = detect("cuda")
    x = torch.ones(4, device=device.torch_device)
    with pytest.raises(RuntimeError):
        device.capture(lambda: x.sum().item() and None)
    assert (x + 1).tolist() == [2.0] * 4, "the device goes on"
